"""The local search from the outside: a budget, stages of falling heat and rising p, the best assignment seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from equipoise.policies.random_numbers import STATE_SIZE, seed_state
from equipoise.study.oracle.budget import Budget
from equipoise.study.oracle.descent import MEASURES, descend
from equipoise.study.oracle.grid import new_grid, new_scratch
from equipoise.study.oracle.marginal import new_marginal
from equipoise.study.oracle.problem import Problem
from equipoise.study.oracle.room import new_room
from equipoise.types import Ints

__all__ = ["Found", "improve"]

CHUNK = 20_000
"""Candidates between two looks at the true cost and the clock; all sums are added up anew there."""
EVERY = 16
"""Steps between the columns of the coarse grid."""
TRIED = ((4, 0.3), (5, 0.05), (6, 0.01), (7, 0.001), (8, 0.001), (9, 0.001))
"""Norms (their p as a power of two) tried first, and at what heat: which one pays depends on ranks and traffic."""
TRIALS = 0.3
"""Share of the budget for that."""
HEATS = (0.002, 0.001, 0.0005, 0.0002)
"""Heats of the stages that follow, in mean prices of a step; then two without heat and with larger p."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best assignment seen.

    Parameters
    ----------
    rank : int64[requests]
    cost, start_cost : float
        Price of the counted steps, of this assignment and of the one that was given.
    candidates : int
        Exchanges looked at.
    """

    rank: Ints
    cost: float
    start_cost: float
    candidates: int


def improve(
    problem: Problem,
    rank: Ints,
    budget: Budget,
    *,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Found:
    """Search for a cheaper assignment; the one returned is never dearer than the one given.

    Parameters
    ----------
    problem : Problem
    rank : int64[requests]
        Where to start.
    budget : Budget
    seed : int
    progress : function, optional
        Called with the share of the budget that is used.
    """
    search = _Search(problem, rank, budget, seed, progress)
    search.look()
    start_cost = search.best_cost
    if problem.ranks > 1 and len(rank) > 1 and problem.counted.any():
        begin, trials = rank, {}
        for i, (squarings, heat) in enumerate(TRIED):
            trials[squarings] = search.stage(squarings, heat, TRIALS * (i + 1) / len(TRIED), begin)
        sharp = min(trials, key=lambda k: trials[k])
        stages = [(sharp, heat) for heat in HEATS] + [(sharp + 1, 0.0), (sharp + 2, 0.0)]
        for i, (squarings, heat) in enumerate(stages):
            search.stage(squarings, heat, TRIALS + (1 - TRIALS) * (i + 1) / len(stages), search.best)
    constant = problem.constant * float(problem.counted.sum())
    return Found(search.best, search.best_cost + constant, start_cost + constant, search.done)


class _Search:
    """The arrays of a search, what is used of its budget, and the best so far."""

    def __init__(
        self,
        problem: Problem,
        rank: Ints,
        budget: Budget,
        seed: int,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.problem, self.budget, self.progress = problem, budget, progress
        self.rank, self.best, self.best_cost = rank.copy(), rank.copy(), np.inf
        self.fine, self.coarse = new_grid(problem, 1), new_grid(problem, EVERY)
        self.scratch, self.marginal, self.room = (
            new_scratch(problem),
            new_marginal(problem),
            new_room(problem),
        )
        self.stream = np.zeros(STATE_SIZE, np.int64)
        seed_state(self.stream, seed)
        self.steps = max(float(problem.counted.sum()), 1.0)
        self.window = max(16, 8 * len(rank) // max(len(problem.counted), 1))
        self.began, self.done = time.monotonic(), 0

    def used(self) -> float:
        """Share of the budget."""
        shares = [0.0]
        if self.budget.seconds is not None:
            shares.append((time.monotonic() - self.began) / self.budget.seconds)
        if self.budget.candidates is not None:
            shares.append(self.done / self.budget.candidates)
        return max(shares)

    def look(self, squarings: int = 0, candidates: int = 0, heat: float = 0.0) -> float:
        """Price the assignment, keep it if it is the best, then search from it."""
        out = np.zeros(MEASURES)
        before = self.rank.copy()
        warmth = heat * self.best_cost / self.steps if candidates else 0.0
        descend(
            self.problem,
            self.rank,
            self.fine,
            self.coarse,
            self.scratch,
            self.marginal,
            self.room,
            squarings,
            candidates,
            self.window,
            warmth,
            self.stream,
            out,
        )
        if out[0] < self.best_cost:
            self.best, self.best_cost = before, float(out[0])
        self.done += candidates
        return float(out[0])

    def stage(self, squarings: int, heat: float, until: float, begin: Ints) -> float:
        """Search from an assignment until so much of the budget is used; the least price it came to."""
        self.rank[:] = begin
        least = np.inf
        while self.used() < until:
            chunk = CHUNK
            if self.budget.candidates is not None:
                chunk = min(chunk, max(1, int(until * self.budget.candidates) - self.done + 1))
            least = min(least, self.look(squarings, chunk, heat))
            if self.progress is not None:
                self.progress(min(1.0, self.used()))
        return min(least, self.look())

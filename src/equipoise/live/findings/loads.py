"""What every rank held while a run went on, worked out from when each answer began and ended.

A request decodes from its first token to its last, on the rank it was pinned to, and holds its prompt and what it has
been given so far (taken to grow evenly in between). So the batch B and the context C of a rank at any moment are known
without the engine's gauges, which are late and know no context. The same sums are taken of a simulated run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.types import Floats, Ints

__all__ = ["KNOWN", "Lives", "Loads", "grid", "loads_at", "max_over_mean", "step_ms", "token_mean_ms"]

KNOWN = 0.99
"""Share of the requests whose rank must be known for loads to be."""
POINTS = 2000
"""Moments that a run is looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """Decoding requests: where, from when to when, and how large.

    Parameters
    ----------
    first_s, last_s : float64[requests]
        First and last token.
    prompt_tokens, output_tokens : int64[requests]
    rank : int64[requests]
        Over all instances; -1: not known.
    """

    first_s: Floats
    last_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    rank: Ints

    @property
    def known(self) -> float:
        """Share of them whose rank is known."""
        return float((self.rank >= 0).mean()) if len(self.rank) else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """B and C of every rank at some moments.

    Parameters
    ----------
    at_s : float64[points]
    batch, context_tokens : float64[points, ranks]
    """

    at_s: Floats
    batch: Floats
    context_tokens: Floats


def grid(lives: Lives, points: int = POINTS) -> Floats:
    """Moments in the middle of equal stretches from the first token of a run to its last."""
    begin, end = float(lives.first_s.min()), float(lives.last_s.max())
    return begin + (np.arange(points) + 0.5) / points * (end - begin)


def loads_at(lives: Lives, at_s: Floats, ranks: int) -> Loads:
    """Batch and context of every rank at the moments, which rise."""
    span = lives.last_s - lives.first_s
    rate = np.divide(lives.output_tokens - 1, span, out=np.zeros(len(span)), where=span > 0)
    at_zero = (
        lives.prompt_tokens + 1 - lives.first_s * rate
    )  # so that C(t) = at_zero + rate * t while it runs
    batch, context = np.zeros((len(at_s), ranks)), np.zeros((len(at_s), ranks))
    for r in range(ranks):
        mine = (lives.rank == r) & (span > 0)
        if not mine.any():
            continue
        at = np.concatenate([lives.first_s[mine], lives.last_s[mine]])
        order = np.argsort(at, kind="stable")
        seen = np.searchsorted(at[order], at_s, side="right")

        def running(amount: Floats, order: Ints = order, seen: Ints = seen) -> Floats:
            """Sum over what runs: those that came less those that went."""
            steps = np.concatenate([amount, -amount])[order]
            return np.concatenate([[0.0], np.cumsum(steps)])[seen]

        batch[:, r] = np.rint(running(np.ones(int(mine.sum()))))
        context[:, r] = np.maximum(running(at_zero[mine]) + at_s * running(rate[mine]), 0.0)
    context[batch == 0] = 0.0
    return Loads(at_s, batch, context)


def max_over_mean(values: Floats, ranks: Sequence[int]) -> float:
    """Sum over time and instances of the largest rank over the sum of the means: 1 is even; NaN where nothing ran.

    Parameters
    ----------
    values : float64[points, ranks]
    ranks : sequence of int
        Ranks of each instance.
    """
    most = mean = 0.0
    for begin, end in _spans(ranks):
        most += float(values[:, begin:end].max(axis=1).sum())
        mean += float(values[:, begin:end].mean(axis=1).sum())
    return most / mean if mean > 0 else float("nan")


def step_ms(cost: StepCost, loads: Loads, ranks: Sequence[int]) -> Floats:
    """What a step costs at these loads, in milliseconds: float64[points, instances]; NaN where an instance is idle."""
    found = np.full((len(loads.at_s), len(ranks)), np.nan)
    for i, (begin, end) in enumerate(_spans(ranks)):
        B = np.rint(loads.batch[:, begin:end]).astype(np.int64)
        C = np.rint(loads.context_tokens[:, begin:end]).astype(np.int64)
        busy = B.sum(axis=1) > 0
        if busy.any():
            found[busy, i] = cost.cost(B[busy], C[busy]) * cost.us_per_unit / 1000.0
    return found


def token_mean_ms(lengths_ms: Floats, loads: Loads, ranks: Sequence[int]) -> float:
    """Mean time between two tokens, all tokens alike, of step lengths at moments evenly spread over time.

    At a moment with B running requests and steps of length L, tokens come at B / L a second. So their mean gap is the
    sum of B over the sum of B / L: moments of long steps yield fewer tokens.
    """
    running = np.stack([loads.batch[:, b:e].sum(axis=1) for b, e in _spans(ranks)], axis=1)
    good = np.isfinite(lengths_ms) & (lengths_ms > 0) & (running > 0)
    return (
        float(running[good].sum() / (running[good] / lengths_ms[good]).sum()) if good.any() else float("nan")
    )


def _spans(ranks: Sequence[int]) -> list[tuple[int, int]]:
    ends = np.cumsum([0, *ranks])
    return [(int(a), int(b)) for a, b in pairwise(ends)]

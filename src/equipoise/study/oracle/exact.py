"""The placement problem of a small run, solved to proof: a mixed-integer program, by HiGHS.

    minimise    sum over counted steps t and barriers m of  y[m, t]
    subject to  sum over ranks r of x[q, r] = 1                     every request stands on one rank
                y[m, t] >= price of the load of r at t, for all r   a step waits for its slowest rank

A convex price of the batch is the largest of its straight pieces, so each piece is a row of its own. A table that is
not convex gets binaries that say how large the batch is. Ranks are alike, so request k stands on one of the first
k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.cost.envelope import lower_convex_envelope
from equipoise.errors import InputError
from equipoise.study.oracle.grid import true_cost
from equipoise.study.oracle.problem import Problem
from equipoise.types import Floats, Ints

__all__ = ["MOST_BINARIES", "MOST_ENTRIES", "Exact", "ideal_cost", "solve"]

MOST_BINARIES = 3000
"""Beyond it a proof would not come within hours."""
MOST_ENTRIES = 2_000_000
"""Non-zero entries of the matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The best assignment found, and what is proven.

    Parameters
    ----------
    rank : int64[requests]
    cost : float
        Price of the counted steps under it.
    bound : float
        No assignment is cheaper: proven.
    """

    rank: Ints
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Share of the cost between it and the bound; 0: the assignment is optimal."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


class _Rows:
    """Rows of a sparse matrix, each ``low <= sum <= high``."""

    def __init__(self) -> None:
        self.at: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, columns: list[int], values: list[float], low: float, high: float) -> None:
        self.at += [len(self.low)] * len(columns)
        self.column += columns
        self.value += values
        self.low.append(low)
        self.high.append(high)


def solve(problem: Problem, *, seconds: float = 60.0) -> Exact:
    """Solve a small problem, or bound it as far as the time allows.

    Parameters
    ----------
    problem : Problem
    seconds : float
        Time limit.

    Raises
    ------
    InputError
        The problem is too large, or nothing was found in time.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    n, ranks, bars = len(problem.row), problem.ranks, len(problem.token)
    tables = [problem.batch[m] for m in range(bars)]
    convex = all((np.diff(table, 2) >= -1e-9 * max(1.0, table.max())).all() for table in tables)
    steps = np.flatnonzero(problem.counted)
    most = int(_totals(problem)[0].max()) if n else 0
    sizes = 0 if convex else len(steps) * ranks * (most + 1)
    alive = [np.flatnonzero((problem.start <= t) & (problem.end > t)) for t in steps]
    pieces = max((len(_pieces(table[: most + 1])) for table in tables), default=1) if convex else 1
    entries = sum(len(a) for a in alive) * ranks * bars * pieces
    if n * ranks + sizes > MOST_BINARIES or entries > MOST_ENTRIES:
        raise InputError(
            f"{n} requests on {ranks} ranks over {len(steps)} steps are too many for an exact solution "
            f"({n * ranks + sizes} binaries, {entries} entries)",
            fix=f"use fewer (up to {MOST_BINARIES} binaries, {MOST_ENTRIES} entries), or the local search",
        )
    scale = max(ideal_cost(problem) / max(len(steps), 1), 1e-300)
    slow = n * ranks
    size_at = slow + bars * len(steps)
    rows = _Rows()
    for q in range(n):
        rows.add([q * ranks + r for r in range(ranks)], [1.0] * ranks, 1.0, 1.0)
    for k, t in enumerate(steps):
        for r in range(ranks):
            here = [int(q) * ranks + r for q in alive[k]]
            own = [size_at + (k * ranks + r) * (most + 1) + b for b in range(most + 1)] if sizes else []
            if sizes:
                rows.add(own, [1.0] * len(own), 1.0, 1.0)
                rows.add(own + here, [-float(b) for b in range(most + 1)] + [1.0] * len(here), 0.0, 0.0)
            for m in range(bars):
                price = _life_prices(problem, m, alive[k], int(t)) / scale
                y = slow + m * len(steps) + k
                if sizes:
                    table = tables[m][: most + 1] / scale
                    rows.add([*own, *here, y], [*table, *price, -1.0], -np.inf, 0.0)
                    continue
                for slope, start in _pieces(tables[m][: most + 1]):
                    rows.add([*here, y], [*(price + slope / scale), -1.0], -np.inf, -start / scale)
    _capacity(problem, rows)
    total = size_at + sizes
    c = np.zeros(total)
    c[slow:size_at] = 1.0
    high = np.full(total, np.inf)
    high[:slow] = 1.0
    high[size_at:] = 1.0
    for q in range(min(n, ranks)):
        high[q * ranks + q + 1 : (q + 1) * ranks] = 0.0
    integral = np.zeros(total)
    integral[:slow] = 1
    integral[size_at:] = 1
    matrix = coo_array((rows.value, (rows.at, rows.column)), shape=(len(rows.low), total)).tocsr()
    found = milp(
        c,
        constraints=LinearConstraint(matrix, rows.low, rows.high),
        integrality=integral,
        bounds=Bounds(np.zeros(total), high),
        options={"time_limit": seconds, "mip_rel_gap": 1e-9},
    )
    if found.x is None:
        raise InputError(
            f"no assignment found within {seconds:g} s", fix="give more time, or use the local search"
        )
    rank = found.x[:slow].reshape(n, ranks).argmax(axis=1).astype(np.int64)
    constant = problem.constant * len(steps)
    proven = -np.inf if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale + constant
    cost = true_cost(problem, rank)
    return Exact(rank, cost, min(cost, max(proven, ideal_cost(problem))))


def _pieces(table: Floats) -> list[tuple[float, float]]:
    """Slope and value at 0 of the straight pieces of a convex table."""
    slopes = np.diff(table)
    kept = [i for i in range(len(slopes)) if i == 0 or slopes[i] > slopes[i - 1] + 1e-12 * abs(slopes[i])]
    return [(float(slopes[i]), float(table[i] - slopes[i] * i)) for i in kept] or [(0.0, float(table[0]))]


def _life_prices(problem: Problem, m: int, requests: Ints, t: int) -> Floats:
    """Price of the contexts of some requests at a step."""
    context = problem.context[requests] + (t - problem.start[requests])
    price = problem.token[m] * context
    for s, length in enumerate(problem.lengths):
        price = price + problem.saturated[m, s] * np.minimum(context, length)
    return np.asarray(price, np.float64)


def _capacity(problem: Problem, rows: _Rows) -> None:
    """What a rank holds when a request is placed there must fit; contexts may outgrow it later."""
    ranks = problem.ranks
    for q in range(len(problem.row)):
        t = problem.start[q]
        alive = np.flatnonzero((problem.start <= t) & (problem.end > t))
        context = (problem.context[alive] + (t - problem.start[alive])).astype(float)
        for r in range(ranks):
            here = [int(k) * ranks + r for k in alive]
            if problem.max_batch:
                rows.add(here, [1.0] * len(here), 0.0, float(problem.max_batch))
            if problem.largest:
                beyond = max(float(context.sum()) - problem.largest, 0.0)
                values = [
                    c / problem.largest + (beyond / problem.largest) * (k == q)
                    for k, c in zip(alive, context, strict=True)
                ]
                rows.add(here, values, -np.inf, 1.0 + beyond / problem.largest)


def _totals(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Requests, context and saturated tokens of all ranks together, step by step."""
    steps, n = len(problem.counted), len(problem.row)
    batch, context = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    saturated = np.zeros((len(problem.lengths), steps), np.int64)
    for q in range(n):
        first, end = int(problem.start[q]), int(problem.end[q])
        own = problem.context[q] + np.arange(end - first)
        batch[first:end] += 1
        context[first:end] += own
        for s, length in enumerate(problem.lengths):
            saturated[s, first:end] += np.minimum(own, length)
    return batch, context, saturated


def ideal_cost(problem: Problem) -> float:
    """Price of the counted steps if each were spread perfectly evenly: a bound no assignment can beat."""
    batch, context, saturated = _totals(problem)
    mean = batch / problem.ranks
    total = np.full(len(mean), problem.constant)
    for m in range(len(problem.token)):
        table = problem.batch[m]
        tail = float(table[-1] - table[-2]) if len(table) > 1 else 0.0
        envelope, _ = lower_convex_envelope(table, tail)
        total = total + np.interp(mean, np.arange(len(table)), envelope)
        total = total + problem.token[m] * context / problem.ranks
        for s in range(len(problem.lengths)):
            total = total + problem.saturated[m, s] * saturated[s] / problem.ranks
    return float((total * problem.counted).sum())

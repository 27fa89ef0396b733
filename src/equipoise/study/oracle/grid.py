"""The loads of all ranks over time, on every step or on every so many-th, and what an exchange would do to them.

The search does not look at the slowest rank alone: where three ranks are nearly as slow, making one of them faster is
progress that a maximum does not show. It minimises a p-norm of the ranks' prices (p in the hundreds, a power of two,
so that it is a few multiplications),

    sum over steps and barriers of  top * (sum over ranks of (price / top)^p)^(1/p),

and each exchange by its tangent, which lies above it: what the tangent calls cheaper is cheaper.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.study.oracle.problem import Problem
from equipoise.types import Floats, Floats2D, Ints, Ints2D

__all__ = ["Grid", "Scratch", "apply", "change", "fill", "new_grid", "new_scratch", "true_cost"]


class Grid(NamedTuple):
    """Loads on the steps 0, every, 2 every, ...; rows of the wide arrays are barrier x ranks + rank."""

    every: int
    counted: Floats
    batch: Ints2D
    """int64[ranks, columns]"""
    linear: Floats2D
    """float64[barriers x ranks, columns], price of the contexts."""
    power: Floats2D
    """float64[barriers x ranks, columns], (price / top)^p."""
    total: Floats2D
    """float64[barriers, columns], sum of these over the ranks."""
    slope: Floats2D
    """float64[barriers, columns], what the norm grows by for each of that sum."""
    inverse_top: Floats2D
    """float64[barriers, columns], 1 over the slowest rank's price when the grid was filled."""


class Scratch(NamedTuple):
    """Room for one exchange."""

    batch: Ints
    linear: Floats2D
    first: Floats2D
    second: Floats2D


def new_grid(problem: Problem, every: int) -> Grid:
    """An empty grid of a problem."""
    counted = np.ascontiguousarray(problem.counted[::every])
    bars, columns = len(problem.token), len(counted)
    wide = (bars * problem.ranks, columns)
    return Grid(
        every,
        counted,
        np.zeros((problem.ranks, columns), np.int64),
        np.zeros(wide),
        np.zeros(wide),
        np.zeros((bars, columns)),
        np.zeros((bars, columns)),
        np.zeros((bars, columns)),
    )


def new_scratch(problem: Problem) -> Scratch:
    """Room for an exchange of any length."""
    shape = (len(problem.token), max(len(problem.counted), 1))
    return Scratch(np.zeros(shape[1], np.int64), np.zeros(shape), np.zeros(shape), np.zeros(shape))


@jitable
def columns_of(problem, every, q):  # type: ignore[no-untyped-def]
    """First and end column of a request's life."""
    return -(-problem.start[q] // every), -(-problem.end[q] // every)


@jitable
def add_life(problem, every, q, sign, batch, linear, row, pace):  # type: ignore[no-untyped-def]
    """Add a request's life to a batch and to the rows ``row, row + pace, ...`` of context prices, one a barrier."""
    first, end = columns_of(problem, every, q)
    for t in range(first, end):
        batch[t] += int(sign)
    begin = problem.context[q] - problem.start[q]
    for m in range(len(problem.token)):
        own = linear[row + m * pace]
        base, each = sign * problem.token[m] * begin, sign * problem.token[m] * every
        for t in range(first, end):
            own[t] += base + each * t
        for s in range(len(problem.lengths)):
            price = sign * problem.saturated[m, s]
            if price != 0.0:
                length = problem.lengths[s]
                for t in range(first, end):
                    own[t] += price * min(begin + every * t, length)


@jitable
def norm_slope(grid, m, t, exponent):  # type: ignore[no-untyped-def]
    """Slope of the norm in the sum of powers."""
    if grid.counted[t] == 0.0 or grid.total[m, t] == 0.0:
        return 0.0
    return grid.total[m, t] ** (1.0 / exponent - 1.0) / (grid.inverse_top[m, t] * exponent)


@jitable
def fill(grid, problem, rank, squarings):  # type: ignore[no-untyped-def]
    """Add up the loads anew; returns the true price of the counted columns, the constant left out."""
    ranks, bars, columns = problem.ranks, len(problem.token), len(grid.counted)
    grid.batch[:] = 0
    grid.linear[:] = 0.0
    for q in range(len(rank)):
        add_life(problem, grid.every, q, 1.0, grid.batch[rank[q]], grid.linear, rank[q], ranks)
    exponent, true = 2.0**squarings, 0.0
    for m in range(bars):
        for t in range(columns):
            top = 0.0
            for r in range(ranks):
                top = max(top, problem.batch[m, grid.batch[r, t]] + grid.linear[m * ranks + r, t])
            grid.inverse_top[m, t] = 1.0 / top if top > 0.0 else 1.0
            true += top * grid.counted[t]
            total = 0.0
            for r in range(ranks):
                x = problem.batch[m, grid.batch[r, t]] + grid.linear[m * ranks + r, t]
                x *= grid.inverse_top[m, t]
                for _ in range(squarings):
                    x *= x
                grid.power[m * ranks + r, t] = x
                total += x
            grid.total[m, t] = total
            grid.slope[m, t] = norm_slope(grid, m, t, exponent)
    return true


@jitable
def powers(grid, problem, row, r, m, first, end, sign, squarings, scratch, out):  # type: ignore[no-untyped-def]
    """(price / top)^p of one rank and barrier with the exchange of the scratch added or taken off."""
    load, linear, inverse = grid.batch[r], grid.linear[row], grid.inverse_top[m]
    table, more, other = problem.batch[m], scratch.linear[m], scratch.batch
    for t in range(first, end):
        out[t] = (table[load[t] + int(sign) * other[t]] + linear[t] + sign * more[t]) * inverse[t]
    for _ in range(squarings):
        for t in range(first, end):
            out[t] *= out[t]


@jitable
def change(grid, problem, scratch, a, b, leave, leaving, come, coming, squarings):  # type: ignore[no-untyped-def]
    """What it would change if so many requests left rank a for b, and so many came from there; first and end column.

    The new powers stay in the scratch, for `apply`.
    """
    every, ranks, bars = grid.every, problem.ranks, len(problem.token)
    first, end = columns_of(problem, every, leave[0])
    for k in range(leaving):
        c, d = columns_of(problem, every, leave[k])
        first, end = min(first, c), max(end, d)
    for k in range(coming):
        c, d = columns_of(problem, every, come[k])
        first, end = min(first, c), max(end, d)
    scratch.batch[first:end] = 0
    for m in range(bars):
        scratch.linear[m, first:end] = 0.0
    for k in range(leaving):
        add_life(problem, every, leave[k], -1.0, scratch.batch, scratch.linear, 0, 1)
    for k in range(coming):
        add_life(problem, every, come[k], 1.0, scratch.batch, scratch.linear, 0, 1)
    delta = 0.0
    for m in range(bars):
        x, y = scratch.first[m], scratch.second[m]
        powers(grid, problem, m * ranks + a, a, m, first, end, 1.0, squarings, scratch, x)
        powers(grid, problem, m * ranks + b, b, m, first, end, -1.0, squarings, scratch, y)
        old_x, old_y, slope = grid.power[m * ranks + a], grid.power[m * ranks + b], grid.slope[m]
        for t in range(first, end):
            delta += slope[t] * (x[t] + y[t] - old_x[t] - old_y[t])
    return delta, first, end


@jitable
def apply(grid, problem, scratch, a, b, first, end, exponent):  # type: ignore[no-untyped-def]
    """Carry out the exchange that `change` looked at last."""
    ranks = problem.ranks
    for t in range(first, end):
        grid.batch[a, t] += scratch.batch[t]
        grid.batch[b, t] -= scratch.batch[t]
    for m in range(len(problem.token)):
        x, y = m * ranks + a, m * ranks + b
        for t in range(first, end):
            grid.linear[x, t] += scratch.linear[m, t]
            grid.linear[y, t] -= scratch.linear[m, t]
            now_x, now_y = scratch.first[m, t], scratch.second[m, t]
            grid.total[m, t] = max(
                grid.total[m, t] + now_x + now_y - grid.power[x, t] - grid.power[y, t], 0.0
            )
            grid.power[x, t], grid.power[y, t] = now_x, now_y
            grid.slope[m, t] = norm_slope(grid, m, t, exponent)


def true_cost(problem: Problem, rank: Ints) -> float:
    """Price of the counted steps if the requests stand so, constants included; in plain numpy."""
    grid = new_grid(problem, 1)
    return float(fill(grid, problem, rank, 0)) + problem.constant * float(problem.counted.sum())

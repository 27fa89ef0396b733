"""What a request costs where it is, and would cost elsewhere, to first order: one subtraction of running sums each.

The norm of `grid` has a price for a little more load on a rank at a step. Running sums of it over time, and of it times
time, give the price of a whole life, since a context grows by one a step. It filters candidates; it decides nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.study.oracle.problem import Problem
from equipoise.types import Floats2D

__all__ = ["Marginal", "life_price", "new_marginal", "refresh"]


class Marginal(NamedTuple):
    """float64[ranks, steps + 1] each: running sums of the price of one more request, one more token, and that x step.

    Rows of `saturated` are rank x lengths + length.
    """

    request: Floats2D
    token: Floats2D
    token_step: Floats2D
    saturated: Floats2D


def new_marginal(problem: Problem) -> Marginal:
    """Empty sums."""
    shape = (problem.ranks, len(problem.counted) + 1)
    lengths = (problem.ranks * len(problem.lengths), shape[1])
    return Marginal(np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(lengths))


@jitable
def refresh(marginal, grid, problem, exponent, r, begin):  # type: ignore[no-untyped-def]
    """Add up the sums of one rank anew, from a step on."""
    bars, ranks, lengths = len(problem.token), problem.ranks, len(problem.lengths)
    for t in range(begin, len(grid.counted)):
        request, token = 0.0, 0.0
        batch = grid.batch[r, t]
        for s in range(lengths):
            k = r * lengths + s
            marginal.saturated[k, t + 1] = marginal.saturated[k, t]
        for m in range(bars):
            x = grid.power[m * ranks + r, t]
            if x == 0.0:
                continue
            load = problem.batch[m, batch] + grid.linear[m * ranks + r, t]
            price = grid.slope[m, t] * exponent * x / load
            more = min(batch + 1, problem.batch.shape[1] - 1)
            request += price * (problem.batch[m, more] - problem.batch[m, more - 1])
            token += price * problem.token[m]
            for s in range(lengths):
                marginal.saturated[r * lengths + s, t + 1] += price * problem.saturated[m, s]
        marginal.request[r, t + 1] = marginal.request[r, t] + request
        marginal.token[r, t + 1] = marginal.token[r, t] + token
        marginal.token_step[r, t + 1] = marginal.token_step[r, t] + token * t


@jitable
def life_price(marginal, problem, q, r):  # type: ignore[no-untyped-def]
    """Price of one request's life on a rank, to first order."""
    first, end = problem.start[q], problem.end[q]
    begin = problem.context[q] - first
    price = marginal.request[r, end] - marginal.request[r, first]
    price += begin * (marginal.token[r, end] - marginal.token[r, first])
    price += marginal.token_step[r, end] - marginal.token_step[r, first]
    lengths = len(problem.lengths)
    for s in range(lengths):
        k = r * lengths + s
        middle = min(begin + (first + end) // 2, problem.lengths[s])
        price += middle * (marginal.saturated[k, end] - marginal.saturated[k, first])
    return price

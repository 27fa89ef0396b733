"""The compiled search: exchanges of requests between two ranks, kept where they make the norm cheaper.

An exchange is one request moved, two swapped, or two chains swapped: a request and those that follow it in its place,
until both chains end at about the same step. With full ranks only such chains leave every batch as it is.

Candidates go through three sieves, each some ten times as dear as the one before: the marginal prices, every so
many-th step, every step.
"""

from __future__ import annotations

import numpy as np
from numba import types

from equipoise._jit import borrowed, compiled, jitable, numba_type
from equipoise.policies.random_numbers import below
from equipoise.study.oracle.grid import Grid, Scratch, apply, change, fill
from equipoise.study.oracle.marginal import Marginal, life_price, refresh
from equipoise.study.oracle.problem import Problem
from equipoise.study.oracle.room import Room, fits, occupy
from equipoise.types import Floats, Ints

__all__ = ["CHAIN", "MEASURES", "descend"]

CHAIN = 12
"""Longest chain."""
MOVE, SWAP, KINDS = 0, 1, 12
"""Of so many candidates one is a move, one a swap of single requests, the others are swaps of chains."""
MEASURES = 5
"""Entries of ``out``: true price, candidates, those that passed the first sieve and the second, exchanges made."""


@jitable
def partner(problem, i, window, stream):  # type: ignore[no-untyped-def]
    """A request to exchange another one with: mostly one of the same step, which leaves the batches alone."""
    step = problem.start[i]
    first, end = problem.first_at[step], problem.first_at[step + 1]
    if end - first > 1 and below(stream, 4) > 0:
        return first + below(stream, end - first)
    away = 1 + below(stream, window)
    return i + away if below(stream, 2) == 1 else i - away


@jitable
def follower(problem, rank, q, gap):  # type: ignore[no-untyped-def]
    """The request that takes the place of another one on its rank, so many steps after its end or sooner; -1: none."""
    steps, end = len(problem.counted), problem.end[q]
    if end >= steps:
        return -1
    for k in range(problem.first_at[end], problem.first_at[min(steps, end + gap + 1)]):
        if rank[k] == rank[q]:
            return k
    return -1


@jitable
def chains(problem, rank, a, b, leave, come, stream):  # type: ignore[no-untyped-def]
    """Lengthen two chains until they end alike, to a step or roughly; how long they are."""
    leaving, coming = 1, 1
    rough = below(stream, 2)
    within, gap = (1 << below(stream, 6)) - 1 if rough else 0, below(stream, 4) * rough
    while True:
        end_a, end_b = problem.end[leave[leaving - 1]], problem.end[come[coming - 1]]
        if abs(end_a - end_b) <= within or max(leaving, coming) == CHAIN:
            break
        chain, length = (leave, leaving) if end_a < end_b else (come, coming)
        following = follower(problem, rank, chain[length - 1], gap)
        if following < 0 or following == leave[0] or following == come[0]:
            break
        chain[length] = following
        if end_a < end_b:
            leaving += 1
        else:
            coming += 1
    return leaving, coming


SIGNATURE = types.void(
    numba_type(Problem),
    numba_type(Ints),
    numba_type(Grid),
    numba_type(Grid),
    numba_type(Scratch),
    numba_type(Marginal),
    numba_type(Room),
    types.int64,
    types.int64,
    types.int64,
    types.float64,
    numba_type(Ints),
    numba_type(Floats),
)


@compiled(SIGNATURE, first_class=False)
def descend(  # type: ignore[no-untyped-def]
    problem, rank, fine, coarse, scratch, marginal, room, squarings, candidates, window, heat, stream, out
):
    """Look at so many candidates and carry out those that pay.

    Parameters
    ----------
    problem : Problem
    rank : int64[requests]
        The assignment, changed in place.
    fine, coarse : Grid
        On every step, and on every so many-th.
    scratch : Scratch
    marginal : Marginal
    room : Room
    squarings : int
        p is two to this power.
    candidates : int
        0: only add up.
    window : int
        Requests are exchanged with one of so many before or behind them in the order of their starts.
    heat : float
        Mean price of a step that an exchange may cost and still be made, sometimes (annealing).
    stream : int64[6]
        State of the random numbers.
    out : float64[MEASURES]
        First entry: true price of the counted steps, constant left out, when the search was called.
    """
    problem, rank, fine, coarse = borrowed(problem), borrowed(rank), borrowed(fine), borrowed(coarse)
    scratch, marginal, stream, out = borrowed(scratch), borrowed(marginal), borrowed(stream), borrowed(out)
    room = borrowed(room)
    exponent = 2.0**squarings
    out[0] = fill(fine, problem, rank, squarings)
    fill(coarse, problem, rank, squarings)
    n, ranks = len(rank), problem.ranks
    if ranks < 2 or n < 2 or candidates == 0:
        return
    for r in range(ranks):
        refresh(marginal, fine, problem, exponent, r, 0)
    occupy(room, problem, rank)
    leave, come = np.zeros(CHAIN, np.int64), np.zeros(CHAIN, np.int64)
    for _ in range(candidates):
        out[1] += 1.0
        i, kind = below(stream, n), below(stream, KINDS)
        a, leaving, coming = rank[i], 1, 0
        leave[0] = i
        if kind == MOVE:
            b = below(stream, ranks)
        else:
            j = partner(problem, i, window, stream)
            if j < 0 or j >= n:
                continue
            b = rank[j]
            come[0], coming = j, 1
        if a == b:
            continue
        if kind > SWAP:
            leaving, coming = chains(problem, rank, a, b, leave, come, stream)
        price = 0.0
        for k in range(leaving):
            price += life_price(marginal, problem, leave[k], b) - life_price(marginal, problem, leave[k], a)
        for k in range(coming):
            price += life_price(marginal, problem, come[k], a) - life_price(marginal, problem, come[k], b)
        allowed = heat * -np.log((below(stream, 1 << 20) + 1.0) / (1 << 20)) if heat > 0.0 else 0.0
        if price >= allowed:
            continue
        out[2] += 1.0
        if coarse.every > 1:
            rough, _, _ = change(coarse, problem, scratch, a, b, leave, leaving, come, coming, squarings)
            if rough * coarse.every >= allowed:
                continue
        out[3] += 1.0
        delta, first, end = change(fine, problem, scratch, a, b, leave, leaving, come, coming, squarings)
        if not delta < allowed - 1e-12 * out[0]:
            continue
        if not fits(room, problem, fine, scratch, a, b, first, end, leave, leaving, come, coming):
            continue
        out[4] += 1.0
        apply(fine, problem, scratch, a, b, first, end, exponent)
        if coarse.every > 1:
            _, c, d = change(coarse, problem, scratch, a, b, leave, leaving, come, coming, squarings)
            apply(coarse, problem, scratch, a, b, c, d, exponent)
        for k in range(leaving):
            rank[leave[k]] = b
        for k in range(coming):
            rank[come[k]] = a
        refresh(marginal, fine, problem, exponent, a, first)
        refresh(marginal, fine, problem, exponent, b, first)

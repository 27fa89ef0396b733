"""Which rows of different ranks belong to one step, where the source has no step id that all ranks share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.types import Floats, Ints

__all__ = ["MAX_RANKS", "counter_offsets", "instances_of_rows", "windows"]

LOCKSTEP_SHARE = 0.9
"""Counters run in lockstep where this share of the rows agrees on the distance between two of them."""
SAMPLE = 200_000
MAX_RANKS = 4096
"""Ranks of an instance; more are no ranks, but another number in their place."""


def windows(position: NDArray[Any], rank: NDArray[Any], span: float) -> Ints:
    """Steps by nearness: a new one begins where a rank comes a second time, or too far from the first row.

    Parameters
    ----------
    position : float array [rows]
        Clock, iteration or line number.
    rank : int array [rows]
    span : float
        Rows of one step lie no further apart, in units of ``position``.

    Returns
    -------
    int64[rows]
        Step of every row, from 0.
    """
    order = np.argsort(position, kind="stable")
    step, start, seen = -1, 0.0, set[int]()
    found: list[int] = []
    for at, r in zip(position[order].tolist(), rank[order].tolist(), strict=True):
        if step < 0 or r in seen or at - start > span:
            step, start = step + 1, at
            seen.clear()
        seen.add(r)
        found.append(step)
    steps = np.empty(len(order), np.int64)
    steps[order] = found
    return steps


def counter_offsets(counter: Ints, clock: Floats, rank: NDArray[Any]) -> dict[int, int] | None:
    """How far every rank's counter is ahead of that of the rank with the most rows; None: not in lockstep.

    A row is compared with the row of the other rank that was recorded nearest to it. In lockstep the difference of
    the counters is one and the same number for (nearly) all rows.
    """
    ranks, counts = np.unique(rank, return_counts=True)
    most = int(ranks[np.argmax(counts)])
    own = rank == most
    order = np.argsort(clock[own], kind="stable")
    times, ids = clock[own][order], counter[own][order]
    middles = (times[1:] + times[:-1]) / 2
    offsets = {most: 0}
    for r in ranks:
        if r == most:
            continue
        rows = np.flatnonzero(rank == r)
        rows = rows[:: max(1, len(rows) // SAMPLE)]
        distance = counter[rows] - ids[np.searchsorted(middles, clock[rows])]
        values, shares = np.unique(distance, return_counts=True)
        if shares.max() < LOCKSTEP_SHARE * len(rows):
            return None
        offsets[int(r)] = int(values[np.argmax(shares)])
    return offsets


def instances_of_rows(files: int, file: NDArray[Any], rank: NDArray[Any], position: Floats) -> Ints:
    """Instance of every file: files whose ranks meet at the same time come from different ones.

    Files with other ranks, or with the same ranks at another time (a log that was rotated), belong together.

    Parameters
    ----------
    files : int
        How many there are.
    file, rank : int array [rows]
    position : float64[rows]
        Time or step; NaN is anywhere.

    Returns
    -------
    int64[files]
        Number of the instance, from 0.
    """
    spans: list[dict[int, tuple[float, float]]] = [{} for _ in range(files)]
    if len(file):
        order = np.lexsort((rank, file))
        new = np.append(True, (np.diff(file[order]) != 0) | (np.diff(rank[order]) != 0))
        starts = np.flatnonzero(new)
        low = np.minimum.reduceat(np.nan_to_num(position[order], nan=-np.inf), starts)
        high = np.maximum.reduceat(np.nan_to_num(position[order], nan=np.inf), starts)
        for at, begin, end in zip(order[starts], low.tolist(), high.tolist(), strict=True):
            spans[int(file[at])][int(rank[at])] = (begin, end)
    held: list[dict[int, list[tuple[float, float]]]] = []
    numbers = []
    for span in spans:
        number = next((i for i, taken in enumerate(held) if _free(taken, span)), len(held))
        if number == len(held):
            held.append({})
        for r, reach in span.items():
            held[number].setdefault(r, []).append(reach)
        numbers.append(number)
    return np.array(numbers, np.int64)


def _free(taken: dict[int, list[tuple[float, float]]], span: dict[int, tuple[float, float]]) -> bool:
    return all(
        high < begin or low > end for r, (low, high) in span.items() for begin, end in taken.get(r, ())
    )

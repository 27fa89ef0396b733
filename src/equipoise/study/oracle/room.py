"""Whether every request still fits on its rank at the moment it is placed, when some change places."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.study.oracle.problem import Problem
from equipoise.types import Ints2D

__all__ = ["Room", "fits", "new_room", "occupy", "shift"]


class Room(NamedTuple):
    """int64[ranks, steps] each, or a single entry where no capacity is set."""

    tokens: Ints2D
    starting: Ints2D
    """Requests placed on a rank at a step."""


def new_room(problem: Problem) -> Room:
    """Empty ranks."""
    shape = (problem.ranks, len(problem.counted)) if problem.largest > 0 else (1, 1)
    return Room(np.zeros(shape, np.int64), np.zeros(shape, np.int64))


@jitable
def shift(room, problem, q, r, sign):  # type: ignore[no-untyped-def]
    """Put a request on a rank, or take it off."""
    first, end = problem.start[q], problem.end[q]
    room.starting[r, first] += sign
    for t in range(first, end):
        room.tokens[r, t] += sign * (problem.context[q] + t - first)


@jitable
def occupy(room, problem, rank):  # type: ignore[no-untyped-def]
    """Fill empty ranks."""
    if problem.largest > 0:
        room.tokens[:] = 0
        room.starting[:] = 0
        for q in range(len(rank)):
            shift(room, problem, q, rank[q], 1)


@jitable
def fits(room, problem, grid, scratch, a, b, first, end, leave, leaving, come, coming):  # type: ignore[no-untyped-def]
    """Whether an exchange respects the capacity; if so, the room is changed as if it were made.

    Contexts that outgrow a rank later are allowed, as in replay: what counts is the moment of a placement.
    """
    if problem.max_batch > 0:
        for t in range(first, end):
            more = scratch.batch[t]
            if more > 0 and grid.batch[a, t] + more > problem.max_batch:
                return False
            if more < 0 and grid.batch[b, t] - more > problem.max_batch:
                return False
    if problem.largest == 0:
        return True
    exchange(room, problem, a, b, leave, leaving, come, coming, 1)
    for t in range(first, end):
        if (room.starting[a, t] > 0 and room.tokens[a, t] > problem.largest) or (
            room.starting[b, t] > 0 and room.tokens[b, t] > problem.largest
        ):
            exchange(room, problem, a, b, leave, leaving, come, coming, -1)
            return False
    return True


@jitable
def exchange(room, problem, a, b, leave, leaving, come, coming, sign):  # type: ignore[no-untyped-def]
    """Carry the requests over, or back."""
    for k in range(leaving):
        shift(room, problem, leave[k], a, -sign)
        shift(room, problem, leave[k], b, sign)
    for k in range(coming):
        shift(room, problem, come[k], b, -sign)
        shift(room, problem, come[k], a, sign)

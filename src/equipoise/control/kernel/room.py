"""What the compiled allocator works on, as named tuples of arrays: drafts, prices, and the room it works in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from equipoise._jit import numba_type
from equipoise.types import Floats, Floats2D, Ints

__all__ = ["BINS", "DRAFTS", "ONE", "PRICES", "ROOM", "Drafts", "Room", "VerifyPrices"]

ONE = 1 << 22
"""One expected token. Whole numbers add up to the same in any order, so ranks cannot disagree on a sum."""

BINS = 64
"""Levels of survival per unit of cost that large ranks are sorted into; inside a level the fill sorts exactly."""


class VerifyPrices(NamedTuple):
    """A verify price as arrays: G groups, S saturation lengths."""

    constant: float
    """Price every step pays."""
    batch: Floats2D
    """float64[G, N + 1], price of 0 ... N query tokens; row 0 is the group that looks at no context."""
    tail: Floats
    """float64[G], price of each further query token."""
    context: Floats
    """float64[G], price of one context token read; 0 for group 0."""
    saturated: Floats2D
    """float64[G, S], price of one saturated token."""
    saturation_tokens: Ints
    """int64[S], the saturation lengths, ascending."""
    graphs: Ints
    """int64[sizes], captured graph sizes in query tokens, ascending; none: every rank runs what it has."""
    query_reads: float
    """How much of a further query token's context read is paid again."""
    ep_per_query: float
    """Price of one more query token of the average rank in experts and communication."""
    ep_free: float
    """Query tokens of the average rank up to which that costs nothing more."""


class Drafts(NamedTuple):
    """A snapshot's arrays."""

    context: Ints
    """int64[requests], tokens."""
    first: Ints
    """int64[ranks + 1], the first row of each rank."""
    survival: NDArray[np.float32]
    """float32[requests, drafts]."""


class Room(NamedTuple):
    """Where the allocator works; nothing in it outlives a call but `lengths`."""

    batch: Ints
    """int64[ranks], requests."""
    queries: Ints
    """int64[ranks], query tokens of the plan at hand."""
    points: Ints
    """int64[ranks], points of a rank's curve beyond the first, at which nothing is verified."""
    near: Ints
    """int64[ranks], the point a rank was at last."""
    lengths: Ints
    """int64[requests], the best plan."""
    trial: Ints
    """int64[requests], the plan at hand; the same array as `lengths` where only one is made."""
    rank_of: Ints
    """int64[requests], the rank of each row; small instances only."""
    positions: Ints
    """int64[drafts], what each position yields over all requests."""
    reads: Ints
    """int64[ranks, 1 + S], context tokens, then saturated ones, that every request reads anyway."""
    extra: Ints
    """int64[ranks, 1 + S], the same, once more for each verified draft of the plan at hand."""
    taken: Ints
    """int64[ranks, P + 1], verified drafts at each point."""
    gain: Ints
    """int64[ranks, P + 1], what they yield, in parts of `ONE`."""
    rows: Ints
    """int64[ranks, P], row of each position in the order taken; small instances only."""
    read: Ints
    """int64[ranks, P + 1, 1 + S], what the drafts of a point read again; small instances: one rank at a time."""
    work: Floats
    """float64[G, ranks, P + 1], time of each group that looks at contexts; their sum in row 0."""
    levels: NDArray[np.uint8]
    """uint8[drafts, requests], level of each position, 0: not worth it; large instances only."""


def _array(kind: Any, dimensions: int) -> types.Array:
    return types.Array(kind, dimensions, "C")


_INTS = _array(types.int64, 1)

PRICES = numba_type(VerifyPrices)
DRAFTS = types.NamedTuple([_INTS, _INTS, _array(types.float32, 2)], Drafts)
ROOM = types.NamedTuple(
    [_INTS] * 8
    + [_array(types.int64, 2)] * 5
    + [_array(types.int64, 3), _array(types.float64, 3), _array(types.uint8, 2)],
    Room,
)

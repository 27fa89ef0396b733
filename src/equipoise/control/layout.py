"""What the compiled allocator works on: the drafts it is given and the room it works in, as named tuples of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from equipoise._jit import numba_type
from equipoise.control.price import VerifyPrices
from equipoise.control.state import Snapshot, Survivals
from equipoise.types import Floats, Ints

__all__ = ["BINS", "DRAFTS", "ONE", "PRICES", "ROOM", "Drafts", "Room", "drafts_of", "new_room"]

ONE = 1 << 30
"""One expected token. Whole numbers add up to the same in any order, so ranks cannot disagree on a sum."""

BINS = 64
"""Levels of survival per unit of cost that large ranks are sorted into; inside a level the fill sorts exactly."""

SORTED_POSITIONS = 4096
"""Positions of an instance up to which every one is sorted; above, levels."""


class Drafts(NamedTuple):
    """A snapshot's arrays."""

    context: Ints
    """int64[requests], tokens."""
    first: Ints
    """int64[ranks + 1], the first row of each rank."""
    survival: Survivals
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
    """int64[requests], the plan at hand."""
    rank_of: Ints
    """int64[requests], the rank of each row."""
    positions: Ints
    """int64[drafts], what each position yields over all requests."""
    reads: Ints
    """int64[ranks, 1 + S], context tokens, then saturated ones, that every request reads anyway."""
    extra: Ints
    """int64[ranks, 1 + S], the same, once more for each verified draft of the plan at hand."""
    read: Ints
    """int64[P + 1, 1 + S], what the drafts of a point read again; one rank at a time."""
    taken: Ints
    """int64[ranks, P + 1], verified drafts at each point."""
    gain: Ints
    """int64[ranks, P + 1], what they yield, in 2**-30 tokens."""
    rows: Ints
    """int64[ranks, P], row of each position in the order taken; small ranks only."""
    work: Floats
    """float64[G, ranks, P + 1], time of each group that looks at contexts; their sum in row 0."""
    levels: NDArray[np.uint8]
    """uint8[requests, drafts], level of each position, 0: not worth it; large ranks only."""


def _array(kind: Any, dimensions: int) -> types.Array:
    return types.Array(kind, dimensions, "C")


_INTS, _INTS2D = _array(types.int64, 1), _array(types.int64, 2)

PRICES = numba_type(VerifyPrices)
DRAFTS = types.NamedTuple([_INTS, _INTS, _array(types.float32, 2)], Drafts)
ROOM = types.NamedTuple(
    [_INTS] * 8 + [_INTS2D] * 6 + [_array(types.float64, 3), _array(types.uint8, 2)],
    Room,
)


def drafts_of(snapshot: Snapshot) -> Drafts:
    """The arrays of a snapshot."""
    return Drafts(snapshot.context_tokens, snapshot.first, snapshot.survival)


def new_room(snapshot: Snapshot, prices: VerifyPrices) -> Room:
    """Room for one call."""
    n, drafts, ranks = len(snapshot.context_tokens), snapshot.drafts, snapshot.ranks
    kinds = 1 + len(prices.saturation_tokens)
    small = n * drafts <= SORTED_POSITIONS
    widest = int(np.diff(snapshot.first).max())
    most = widest * drafts if small else BINS
    ints = np.int64
    return Room(
        batch=np.empty(ranks, ints),
        queries=np.empty(ranks, ints),
        points=np.zeros(ranks, ints),
        near=np.zeros(ranks, ints),
        lengths=np.zeros(n, ints),
        trial=np.zeros(n, ints),
        rank_of=np.empty(n, ints),
        positions=np.empty(drafts, ints),
        reads=np.empty((ranks, kinds), ints),
        extra=np.empty((ranks, kinds), ints),
        read=np.empty((most + 1, kinds), ints),
        taken=np.empty((ranks, most + 1), ints),
        gain=np.empty((ranks, most + 1), ints),
        rows=np.empty((ranks, most if small else 0), ints),
        work=np.empty((len(prices.tail), ranks, most + 1)),
        levels=np.empty((0 if small else n, drafts), np.uint8),
    )

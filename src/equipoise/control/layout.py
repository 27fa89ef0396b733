"""The allocator's arguments: a snapshot's arrays and the room for one call."""

from __future__ import annotations

import numpy as np

from equipoise.control.kernel.room import BINS, ONE, Drafts, Room, VerifyPrices
from equipoise.control.state import Snapshot

__all__ = ["ONE", "drafts_of", "empty_room", "new_room", "sorts_all"]

SORTED_POSITIONS, OF_A_RANK = 4096, 512
"""Positions of an instance, and of its average rank, up to which every one is sorted; above, levels."""
MOST_CELLS = 1 << 18
"""Points of all curves up to which every position is one."""


def drafts_of(snapshot: Snapshot) -> Drafts:
    """The arrays of a snapshot."""
    return Drafts(snapshot.context_tokens, snapshot.first, snapshot.survival)


def sorts_all(positions: int, widest: int, ranks: int) -> bool:
    """Whether every position is sorted, of an instance with so many, and so many on its largest rank."""
    return positions <= min(SORTED_POSITIONS, OF_A_RANK * ranks) and widest * ranks <= MOST_CELLS


def new_room(snapshot: Snapshot, prices: VerifyPrices) -> Room:
    """Room for one call."""
    n, drafts, ranks = len(snapshot.context_tokens), snapshot.drafts, snapshot.ranks
    kinds, ints = 1 + len(prices.saturation_tokens), np.int64
    widest = int((snapshot.first[1:] - snapshot.first[:-1]).max())
    small = sorts_all(n * drafts, widest * drafts, ranks)
    most = widest * drafts if small else BINS
    by_rank, curves = np.zeros((4, ranks), ints), np.empty((2, ranks, most + 1), ints)
    lengths = np.zeros(n, ints)
    return Room(
        batch=by_rank[0],
        queries=by_rank[1],
        points=by_rank[2],
        near=by_rank[3],
        lengths=lengths,
        trial=np.zeros(n, ints) if small else lengths,
        rank_of=np.empty(n if small else 0, ints),
        positions=np.empty(drafts, ints),
        reads=np.empty((ranks, kinds), ints),
        extra=np.empty((ranks, kinds), ints),
        taken=curves[0],
        gain=curves[1],
        rows=np.empty((ranks, most if small else 0), ints),
        read=np.empty((1 if small else ranks, most + 1, kinds), ints),
        work=np.empty((len(prices.tail), ranks, most + 1)),
        levels=np.empty((drafts, 0 if small else n), np.uint8),
    )


def empty_room(ranks: int, prices: VerifyPrices) -> Room:
    """Room for curves from elsewhere: no requests in it."""
    first = np.zeros(ranks + 1, dtype=np.int64)
    return new_room(Snapshot(np.zeros(0, np.int64), np.zeros((0, 1), np.float32), first), prices)

"""A rank's own part of a plan: verify lengths that keep to the cap and the deadline, best positions first."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.evaluate import batch_price, context_price
from equipoise.control.layout import BINS
from equipoise.control.points import weight_of
from equipoise.control.solve import inside

__all__ = ["fill", "fill_binned", "fill_sorted"]


@jitable
def fill_sorted(room, r, cap, deadline):  # type: ignore[no-untyped-def]
    """Take the first positions that fit; the rank's part of `trial` is 0 before."""
    k = inside(room, r, cap - room.batch[r], deadline, 0)
    for at in range(k):
        room.trial[room.rows[r, at]] += 1


@jitable
def fill_binned(drafts, prices, room, slope, trim, r, cap, deadline):  # type: ignore[no-untyped-def]
    """Take all levels that fit, and of the next one the best positions that still do."""
    k = inside(room, r, cap - room.batch[r], deadline, 0)
    least = BINS - k + 1  # levels from here on are taken whole
    width, kinds = drafts.survival.shape[1], room.reads.shape[1]
    queries = room.batch[r] + room.taken[r, k]
    size = room.taken[r, k + 1] - room.taken[r, k] if k < room.points[r] else 0
    tight, reading = size > 0 and queries < cap, prices.query_reads > 0.0
    keys, found = np.empty(size), np.empty(size, dtype=np.int64)
    extra = np.zeros(kinds, dtype=np.int64)
    n, again, levels, floor = 0, 0, room.levels.reshape(-1), np.uint8(least)
    for row in range(drafts.first[r], drafts.first[r + 1]):
        j, at = 0, row * width
        while j < width and levels[at + j] >= floor:
            j += 1
        room.trial[row] = j
        if not tight:
            continue
        again += j * drafts.context[row]
        for s in range(kinds - 1):
            extra[1 + s] += j * min(drafts.context[row], prices.saturation_tokens[s])
        while j < width and room.levels[row, j] == least - 1 and n < size:
            key = np.float64(drafts.survival[row, j]) - trim
            key *= weight_of(prices, slope, drafts.context[row])
            at = n
            while at > 0 and keys[at - 1] < key:  # few: sorted as they come, equal ones as they came
                keys[at], found[at] = keys[at - 1], found[at - 1]
                at -= 1
            keys[at], found[at] = key, row
            n += 1
            j += 1
    extra[0] = again
    for at in range(n):
        if queries >= cap:
            break
        row, sign = found[at], 1
        while True:
            extra[0] += sign * drafts.context[row]
            for s in range(kinds - 1):
                extra[1 + s] += sign * min(drafts.context[row], prices.saturation_tokens[s])
            if sign < 0:
                break
            own = 0.0
            for g in range(1, len(prices.tail)):
                own += context_price(prices, g, room.reads[r], extra)
                if len(prices.graphs) == 0:
                    own += batch_price(prices, g, queries + 1)
            if own <= deadline:
                room.trial[row] += 1
                queries += 1
                break
            if not reading:
                return  # nothing else is cheaper
            sign = -1  # taken back: one with a shorter context may fit


@jitable
def fill(drafts, prices, room, small, slope, trim, cap, deadline):  # type: ignore[no-untyped-def]
    """Every rank's part, into `trial`."""
    room.trial[:] = 0
    for r in range(len(room.batch)):
        if small:
            fill_sorted(room, r, cap, deadline)
        else:
            fill_binned(drafts, prices, room, slope, trim, r, cap, deadline)

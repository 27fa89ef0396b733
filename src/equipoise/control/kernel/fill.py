"""The ranks' parts of a plan: verify lengths that keep to the cap and the deadline, best positions first."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.kernel.points import weight_of
from equipoise.control.kernel.prices import batch_price, context_price
from equipoise.control.kernel.room import BINS, ONE
from equipoise.control.kernel.scan import inside

__all__ = ["fill_binned", "fill_sorted"]


@jitable
def fill_sorted(room, cap, deadline):  # type: ignore[no-untyped-def]
    """Take the first positions that fit; every rank's part."""
    room.trial[:] = 0
    for r in range(len(room.batch)):
        k = inside(room, r, cap - room.batch[r], deadline, 0)
        for at in range(k):
            room.trial[room.rows[r, at]] += 1


@jitable
def fill_binned(drafts, prices, room, slope, trim, cap, deadline):  # type: ignore[no-untyped-def]
    """Take all levels that fit, and of the next one the best positions that still do; every rank's part.

    Fills the rank's query tokens and reads, and returns what the plan yields: of whole levels that is known already.
    """
    width, widest = drafts.survival.shape[1], 0
    for r in range(len(room.batch)):
        widest = max(widest, room.batch[r] * width)
    keys, found = np.empty(widest), np.empty(widest, dtype=np.int64)
    whole = np.empty(widest, dtype=np.uint8)  # small numbers in few bytes: 32 to an instruction
    expected = 0
    for r in range(len(room.batch)):
        low, high = drafts.first[r], drafts.first[r + 1]
        k = inside(room, r, cap - room.batch[r], deadline, room.near[r])
        floor = np.uint8(BINS - k + 1)  # levels from here on are taken whole
        room.queries[r] = room.batch[r] + room.taken[r, k]
        room.extra[r, :] = room.read[r, k, :]
        expected += room.batch[r] * ONE + room.gain[r, k]
        mine = room.trial[low:high]
        whole[: high - low] = 0
        for j in range(width):
            level_of = room.levels[j, low:high]
            for i in range(len(level_of)):
                whole[i] += np.uint8(level_of[i] >= floor)
        for i in range(len(mine)):
            mine[i] = whole[i]
        if k < room.points[r] and room.taken[r, k + 1] > room.taken[r, k] and room.queries[r] < cap:
            n = candidates(drafts, prices, room, slope, trim, low, high, floor - np.uint8(1), keys, found)
            expected += take(drafts, prices, room, r, cap, deadline, found[:n])
    return expected


@jitable
def candidates(drafts, prices, room, slope, trim, low, high, level, keys, found):  # type: ignore[no-untyped-def]
    """Positions of a level, the best first, equal ones as they come; return how many."""
    n, width = 0, drafts.survival.shape[1]
    for row in range(low, high):
        j = room.trial[row]
        while j < width and room.levels[j, row] == level:
            key = np.float64(drafts.survival[row, j]) - trim
            key *= weight_of(prices, slope, drafts.context[row])
            at = n
            while at > 0 and keys[at - 1] < key:  # few: sorted as they come
                keys[at], found[at] = keys[at - 1], found[at - 1]
                at -= 1
            keys[at], found[at] = key, row
            n += 1
            j += 1
    return n


@jitable
def take(drafts, prices, room, r, cap, deadline, rows):  # type: ignore[no-untyped-def]
    """Give one more position to each of these rows that still fits; return what they yield."""
    kinds, queries, extra = room.reads.shape[1], room.queries[r], room.extra[r]
    won, reading, ragged = 0, prices.query_reads > 0.0, len(prices.graphs) == 0
    for row in rows:
        if queries >= cap:
            break
        tokens, own = drafts.context[row], 0.0
        extra[0] += tokens
        for s in range(kinds - 1):
            extra[1 + s] += min(tokens, prices.saturation_tokens[s])
        for g in range(1, len(prices.tail)):
            own += context_price(prices, g, room.reads[r], extra)
            if ragged:
                own += batch_price(prices, g, queries + 1)
        if own <= deadline:
            won += int(drafts.survival[row, room.trial[row]] * np.float32(ONE))
            room.trial[row] += 1
            queries += 1
            continue
        extra[0] -= tokens  # taken back: one with a shorter context may fit
        for s in range(kinds - 1):
            extra[1 + s] -= min(tokens, prices.saturation_tokens[s])
        if not reading:
            break  # nothing else is cheaper
    room.queries[r] = queries
    return won

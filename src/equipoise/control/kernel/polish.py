"""Few requests: what a prefix order cannot see, mended move by move.

With few positions the one that just does not fit matters. From a scan's plan every change of one request's length, and
of two requests' lengths together, is tried against the true price until none helps.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.kernel.prices import batch_price, captured, context_price, ep_price
from equipoise.control.kernel.room import ONE

__all__ = ["polish", "rate_of_loads", "set_loads"]

SWEEPS = 40


@jitable
def set_loads(drafts, prices, room, lengths):  # type: ignore[no-untyped-def]
    """Fill each rank's query tokens and further reads under a plan; return the expected tokens in 2**-22."""
    expected, width = 0, drafts.survival.shape[1]
    flat = drafts.survival.reshape(-1)
    for r in range(len(room.queries)):
        low, high = drafts.first[r], drafts.first[r + 1]
        queries, again = high - low, 0
        expected += queries * ONE
        for row in range(low, high):
            mine, start = lengths[row], row * width
            queries += mine
            again += mine * drafts.context[row]
            for at in range(start, start + mine):
                expected += np.int64(np.float64(flat[at]) * ONE)
        room.queries[r], room.extra[r, 0] = queries, again
        for s in range(len(prices.saturation_tokens)):
            again = 0
            for row in range(low, high):
                again += lengths[row] * min(drafts.context[row], prices.saturation_tokens[s])
            room.extra[r, 1 + s] = again
    return expected


@jitable
def rate_of_loads(prices, room, expected):  # type: ignore[no-untyped-def]
    """Expected tokens, in 2**-22, per unit of time."""
    ranks, most, total = len(room.queries), 0, 0
    for r in range(ranks):
        most = max(most, room.queries[r])
        total += room.queries[r]
    padded = len(prices.graphs) > 0
    level = captured(prices, most)
    price = prices.constant + batch_price(prices, 0, level) + ep_price(prices, total, ranks)
    for g in range(1, len(prices.tail)):
        slowest = 0.0
        for r in range(ranks):
            own = batch_price(prices, g, level if padded else room.queries[r])
            own += context_price(prices, g, room.reads[r], room.extra[r])
            slowest = max(slowest, own)
        price += slowest
    return expected / price if price > 0.0 else 0.0


@jitable
def move(drafts, prices, room, row, to):  # type: ignore[no-untyped-def]
    """Change one request's length in the trial and its loads; return the change in expected tokens, in 2**-22."""
    r, was = room.rank_of[row], room.trial[row]
    change = np.int64(0)
    for j in range(min(to, was), max(to, was)):
        change += np.int64(np.float64(drafts.survival[row, j]) * ONE)
    room.queries[r] += to - was
    room.extra[r, 0] += (to - was) * drafts.context[row]
    for s in range(len(prices.saturation_tokens)):
        room.extra[r, 1 + s] += (to - was) * min(drafts.context[row], prices.saturation_tokens[s])
    room.trial[row] = to
    return change if to > was else -change


@jitable
def polish(drafts, prices, room, pairs):  # type: ignore[no-untyped-def]
    """Improve the trial in place by one length at a time, or also two; return its rate and its tokens."""
    n, width = len(room.trial), drafts.survival.shape[1]
    expected = set_loads(drafts, prices, room, room.trial)
    best = rate_of_loads(prices, room, expected)
    for _ in range(SWEEPS):
        better, one, one_to, two, two_to = best * (1 + 1e-13), -1, 0, -1, 0
        for i in range(n):
            was_i, at_i = room.trial[i], expected
            for to_i in range(width + 1):
                if to_i == was_i:
                    continue
                at_i += move(drafts, prices, room, i, to_i)
                found = rate_of_loads(prices, room, at_i)
                if found > better:
                    better, one, one_to, two = found, i, to_i, -1
                for k in range(i + 1, n if pairs else 0):
                    was_k, at_k = room.trial[k], at_i
                    for to_k in range(width + 1):
                        if to_k == was_k:
                            continue
                        at_k += move(drafts, prices, room, k, to_k)
                        found = rate_of_loads(prices, room, at_k)
                        if found > better:
                            better, one, one_to, two, two_to = found, i, to_i, k, to_k
                    move(drafts, prices, room, k, was_k)
            move(drafts, prices, room, i, was_i)
        if one < 0:
            break
        expected += move(drafts, prices, room, one, one_to)
        if two >= 0:
            expected += move(drafts, prices, room, two, two_to)
        best = better
    return best, expected

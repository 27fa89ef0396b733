"""The compiled allocator: from contexts, survivals and prices to verify lengths, in one call."""

from __future__ import annotations

import numpy as np
from numba import types

from equipoise._jit import borrowed, compiled, jitable
from equipoise.control.kernel.fill import fill_binned, fill_sorted
from equipoise.control.kernel.levels import binned_points
from equipoise.control.kernel.points import base_loads, query_slope, sorted_points
from equipoise.control.kernel.polish import polish, rate_of_loads, set_loads
from equipoise.control.kernel.prices import batch_price, captured, context_price, ep_price
from equipoise.control.kernel.room import DRAFTS, ONE, PRICES, ROOM
from equipoise.control.kernel.scan import best_deadline, bounds_of, caps_between, rate_at

__all__ = ["allocate_kernel", "enumerate_kernel"]

POLISHED, PAIRED = 48, 12
"""Requests of an instance up to which single lengths, and pairs of them, are tried at the end."""
STARTS = 4
"""Caps that a small instance's plan is polished from."""
EXHAUSTIVE = 200_000
"""Ranks x caps x deadlines up to which a small instance tries all."""
SAMPLE = 1024
"""Requests a large instance is sampled down to where only the price of experts is sought."""
FREE = 2.0**62


@jitable
def keep(room, found, expected, out, cap, deadline, trim):  # type: ignore[no-untyped-def]
    """Keep the trial if it is the best so far."""
    if found > out[3]:
        room.lengths[:] = room.trial
        out[0], out[1], out[2], out[3], out[4] = cap, deadline, trim, found, expected


@jitable
def from_every_cap(drafts, prices, room, slope, trim, out):  # type: ignore[no-untyped-def]
    """For few requests: the best deadline of every cap, and the plans of the best caps polished."""
    low, high, earliest, _, _ = bounds_of(room)
    caps = caps_between(prices, low, high)
    rates, deadlines = np.empty(len(caps)), np.empty(len(caps))
    for i in range(len(caps)):
        rates[i], deadlines[i] = -1.0, earliest
        for r in range(len(room.batch)):
            for k in range(room.points[r] + 1):
                when = room.work[0, r, k]
                if when >= earliest:
                    found = rate_at(prices, room, caps[i], when)
                    if found > rates[i]:
                        rates[i], deadlines[i] = found, when
    for _ in range(STARTS):
        at = np.argmax(rates)
        fill_sorted(room, caps[at], deadlines[at])
        found, expected = polish(drafts, prices, room, True)
        keep(room, found, expected, out, caps[at], deadlines[at], trim)
        rates[at] = -1.0
    for drafted in range(
        drafts.survival.shape[1] + 1
    ):  # where drafts read long contexts, prefixes start badly
        room.trial[:] = drafted
        found, expected = polish(drafts, prices, room, True)
        keep(room, found, expected, out, caps[len(caps) - 1], np.inf, trim)
    return out[3]


@jitable
def best_for_all(prices, room, n, width, out):  # type: ignore[no-untyped-def]
    """One length for all requests where that is better: a plan is never worse."""
    ranks, groups, padded, table = len(room.batch), len(prices.tail), len(prices.graphs) > 0, prices.batch
    last, none = table.shape[1] - 1, np.zeros_like(room.reads[0])
    reads = np.empty((groups, ranks))
    for g in range(1, groups):
        for r in range(ranks):
            reads[g, r] = context_price(prices, g, room.reads[r], none)
    widest, expected = room.batch.max(), n * ONE
    for drafted in range(width + 1):
        level = captured(prices, widest * (1 + drafted))
        price = prices.constant + batch_price(prices, 0, level) + ep_price(prices, n * (1 + drafted), ranks)
        for g in range(1, groups):
            slowest = 0.0
            for r in range(ranks):
                queries = level if padded else room.batch[r] * (1 + drafted)
                own = reads[g, r] * (1.0 + prices.query_reads * drafted) + table[g, min(queries, last)]
                if queries > last:
                    own += prices.tail[g] * (queries - last)
                slowest = max(slowest, own)
            price += slowest
        if drafted > 0:
            expected += room.positions[drafted - 1]
        found = expected / price if price > 0.0 else 0.0
        if found > out[3]:
            room.lengths[:] = drafted
            out[0], out[1], out[2], out[3], out[4] = FREE, np.inf, 0.0, found, expected


@jitable
def sampled_trim(drafts, prices, room, slope, per_query):  # type: ignore[no-untyped-def]
    """What a token must yield to pay for its experts in a large instance, from a sample of its requests."""
    stride = max(1, len(drafts.context) // SAMPLE)
    if binned_points(drafts, prices, room, slope, 0.0, stride) >= 0:
        return 0.0  # the whole look that follows says what is wrong
    _, _, free = best_deadline(prices, room)
    trim = min(1.0, free / ONE * per_query)
    if prices.ep_free > 0.0:
        binned_points(drafts, prices, room, slope, trim, stride)
        _, _, paid = best_deadline(prices, room)
        trim = min(1.0, paid / ONE * per_query) if paid >= free else 0.0
    return trim


@compiled(types.int64(DRAFTS, PRICES, ROOM, types.float64, types.float64[::1]), first_class=False)
def allocate_kernel(drafts, prices, room, last_rate, out):  # type: ignore[no-untyped-def]
    """Fill the room's `lengths` and `out`; return the first row whose survivals are wrong, or -1.

    Parameters
    ----------
    drafts : Drafts
    prices : VerifyPrices
    room : Room
    last_rate : float
        Expected tokens per unit of time of the plan before this: the price of a token in experts and communication
        follows from it; 0: find out.
    out : float64[5]
        Cap, deadline, trim, then rate and tokens in 2**-22.
    """
    drafts, prices, room = borrowed(drafts), borrowed(prices), borrowed(room)
    n, ranks, width = len(drafts.context), len(room.batch), drafts.survival.shape[1]
    small = room.levels.size == 0
    base_loads(drafts, prices, room)
    slope = query_slope(prices, room.batch, width)
    out[3] = -1.0
    per_query = prices.ep_per_query / ranks
    trim, passes = min(1.0, last_rate * per_query), 1
    if per_query > 0.0 and n > 0 and small:
        passes = 2
    elif per_query > 0.0 and n > 0 and (trim == 0.0 or prices.ep_free > 0.0):
        trim = sampled_trim(drafts, prices, room, slope, per_query)
    for _ in range(passes):
        if small:
            wrong = sorted_points(drafts, prices, room, slope, trim)
        else:
            wrong = binned_points(drafts, prices, room, slope, trim, 1)
        if wrong >= 0:
            return wrong
        low, high, _, _, total = bounds_of(room)
        if n <= PAIRED and ranks * total * (high - low + 1) <= EXHAUSTIVE:
            rate = from_every_cap(drafts, prices, room, slope, trim, out)
        else:
            cap, deadline, rate = best_deadline(prices, room)
            if small:
                fill_sorted(room, cap, deadline)
                if n <= POLISHED:
                    found, expected = polish(drafts, prices, room, False)
                else:
                    expected = set_loads(drafts, prices, room, room.trial)
                    found = rate_of_loads(prices, room, expected)
                keep(room, found, expected, out, cap, deadline, trim)
            else:
                expected = fill_binned(drafts, prices, room, slope, trim, cap, deadline)
                keep(room, rate_of_loads(prices, room, expected), expected, out, cap, deadline, trim)
        # what one more token must yield to pay for its experts, at the rate just found
        trim = min(1.0, rate / ONE * per_query)
    best_for_all(prices, room, n, width, out)
    return -1


@compiled(types.float64(DRAFTS, PRICES, ROOM), first_class=False)
def enumerate_kernel(drafts, prices, room):  # type: ignore[no-untyped-def]
    """Try all plans; fill the first best one and return its rate in 2**-22 tokens per unit of time."""
    drafts, prices, room = borrowed(drafts), borrowed(prices), borrowed(room)
    n, width = len(drafts.context), drafts.survival.shape[1]
    base_loads(drafts, prices, room)
    room.trial[:] = 0
    best = -1.0
    while True:
        found = rate_of_loads(prices, room, set_loads(drafts, prices, room, room.trial))
        if found > best:
            best = found
            room.lengths[:] = room.trial
        at = n - 1
        while at >= 0 and room.trial[at] == width:
            room.trial[at] = 0
            at -= 1
        if at < 0:
            return best
        room.trial[at] += 1

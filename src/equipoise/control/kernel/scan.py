"""The deadline scan: how long the step should take, and how many query tokens its largest rank should have.

A plan is two numbers that every rank is held to: a cap on its query tokens and a deadline for the time it takes in
the groups that look at contexts. Each rank verifies what fits, best first. The heaviest rank's mandatory work is the
earliest deadline; light ranks fill up to it for nothing.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.kernel.prices import batch_price, captured, ep_price
from equipoise.control.kernel.room import ONE

__all__ = ["best_deadline", "bounds_of", "caps_between", "inside", "rate_at"]

COARSE, FINE, TURNS = 9, 64, 3
GOLDEN = 0.6180339887498949


@jitable
def inside(room, r, space, deadline, k):  # type: ignore[no-untyped-def]
    """Last point of a rank within so many drafts and a deadline, sought from point k."""
    while k < room.points[r] and room.taken[r, k + 1] <= space and room.work[0, r, k + 1] <= deadline:
        k += 1
    while k > 0 and (room.taken[r, k] > space or room.work[0, r, k] > deadline):
        k -= 1
    return k


@jitable
def rate_at(prices, room, cap, deadline):  # type: ignore[no-untyped-def]
    """Expected tokens, in 2**-22, per unit of time if every rank keeps to a cap and a deadline.

    Positions of a point that fits in part are taken to be alike. Fills the ranks' query tokens too. Without calls in
    its loop: a call would hand over the room, a hundred words.
    """
    ranks, groups, padded = len(room.batch), len(prices.tail), len(prices.graphs) > 0
    batch, points, near, verified = room.batch, room.points, room.near, room.queries
    count, gain, work, together = room.taken, room.gain, room.work, room.work[0]
    expected, total, most = 0, 0, 0
    slowest = np.zeros(groups)
    for r in range(ranks):
        mine, last = batch[r], points[r]
        space, k = cap - mine, near[r]
        while k < last and count[r, k + 1] <= space and together[r, k + 1] <= deadline:
            k += 1
        while k > 0 and (count[r, k] > space or together[r, k] > deadline):
            k -= 1
        near[r] = k
        queries, won, part = count[r, k], gain[r, k], 0.0
        if k < last:
            step = count[r, k + 1] - queries
            more, when = min(step, space - queries), together[r, k]
            if together[r, k + 1] > deadline > when:
                more = min(more, int(step * ((deadline - when) / (together[r, k + 1] - when))))
            elif deadline <= when:
                more = 0 if together[r, k + 1] > when else more
            if more > 0:
                part = more / step
                won += np.int64((gain[r, k + 1] - won) * part)
                queries += more
        for g in range(1, groups):
            own = work[g, r, k]
            if part > 0.0:
                own += part * (work[g, r, k + 1] - own)
            if own > slowest[g]:
                slowest[g] = own
        queries += mine
        verified[r] = queries
        expected += won + mine * ONE
        total += queries
        most = max(most, queries)
    level = captured(prices, most)
    price = prices.constant + batch_price(prices, 0, level) + ep_price(prices, total, ranks)
    for g in range(1, groups):
        price += slowest[g]
        if padded:
            price += batch_price(prices, g, level)
    return expected / price if price > 0.0 else 0.0


@jitable
def bounds_of(room):  # type: ignore[no-untyped-def]
    """Lowest and highest cap, earliest and latest deadline, and the points of all curves."""
    low, high, total = 0, 0, 0
    earliest, latest = 0.0, 0.0
    for r in range(len(room.batch)):
        last = room.points[r]
        low = max(low, room.batch[r])
        high = max(high, room.batch[r] + room.taken[r, last])
        earliest = max(earliest, room.work[0, r, 0])
        latest = max(latest, room.work[0, r, last])
        total += last + 1
    return low, high, earliest, latest, total


@jitable
def caps_between(prices, low, high):  # type: ignore[no-untyped-def]
    """Caps worth trying: the captured sizes, or every number of query tokens."""
    if len(prices.graphs) == 0 or low >= prices.graphs[-1]:
        return np.arange(low, high + 1)
    found = np.empty(len(prices.graphs) + max(0, high - prices.graphs[-1]) + 1, dtype=np.int64)
    n = 0
    for size in prices.graphs:
        if size >= low:
            found[n] = size
            n += 1
            if size >= high:
                return found[:n]
    for queries in range(prices.graphs[-1] + 1, high + 1):
        found[n] = queries
        n += 1
    return found[:n]


@jitable
def best_cap(prices, room, caps, deadline, best, at, low, high, finest):  # type: ignore[no-untyped-def]
    """Best cap for a deadline between two: a coarse look, then a finer one around the best."""
    while True:
        step = max(1, (high - low) // (COARSE - 1))
        for i in range(low, high + step, step):
            where = min(i, high)
            found = rate_at(prices, room, caps[where], deadline)
            if found > best:
                best, at = found, where
        if step <= finest:
            return best, at
        low, high = max(low, at - step), min(high, at + step)


@jitable
def golden(prices, room, cap, best, deadline, low, high, steps):  # type: ignore[no-untyped-def]
    """Best deadline for a cap between two: the tokens won grow ever slower with time, so there is one best."""
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = rate_at(prices, room, cap, left), rate_at(prices, room, cap, right)
    for _ in range(steps):
        if at_left > best:
            best, deadline = at_left, left
        if at_right > best:
            best, deadline = at_right, right
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = rate_at(prices, room, cap, left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = rate_at(prices, room, cap, right)
    return best, deadline


@jitable
def best_deadline(prices, room):  # type: ignore[no-untyped-def]
    """The cap and the deadline of the best plan, and its rate in 2**-22 tokens per unit of time.

    One after the other, each given the other: a coarse look at all deadlines, then finer ones around the best.
    """
    low_cap, high_cap, earliest, latest, _ = bounds_of(room)
    room.near[:] = 0
    caps = caps_between(prices, low_cap, high_cap)
    best, at, deadline = -1.0, len(caps) - 1, latest
    step, finest = (latest - earliest) / (COARSE - 1), max(1, len(caps) // FINE)
    # Where sizes are captured, a deadline that is good below one of them is bad below the next: both are looked at.
    stride = max(1, len(caps) // (COARSE - 1)) if len(prices.graphs) > 0 else len(caps)
    for where in range(len(caps) - 1, -1, -stride):
        for i in range(COARSE if step > 0.0 else 1):
            found = rate_at(prices, room, caps[where], earliest + step * i)
            if found > best:
                best, at, deadline = found, where, earliest + step * i
    reach = stride
    for turn in range(TURNS):
        before = best
        if step > 0.0:
            low, high = max(earliest, deadline - step), min(latest, deadline + step)
            best, deadline = golden(prices, room, caps[at], best, deadline, low, high, 4)
            step *= 0.4
        rate_at(prices, room, caps[len(caps) - 1], deadline)
        enough = min(len(caps) - 1, np.searchsorted(caps, room.queries.max()))  # larger caps change nothing
        low_at, high_at = max(0, min(at, enough) - reach), min(enough, at + reach)
        best, at = best_cap(prices, room, caps, deadline, best, at, low_at, high_at, finest)
        reach = max(1, len(caps) // 8)
        if turn > 0 and best <= before * (1 + 1e-6):
            break
    if room.levels.size == 0:  # where a query token more or less is seen
        if step > 0.0:
            low, high = max(earliest, deadline - step), min(latest, deadline + step)
            best, deadline = golden(prices, room, caps[at], best, deadline, low, high, 8)
        low_at, high_at = max(0, at - finest), min(len(caps) - 1, at + finest)
        best, at = best_cap(prices, room, caps, deadline, best, at, low_at, high_at, 1)
    # A larger cap than the plan needs would let a rank that fills exactly step into the next captured size.
    rate_at(prices, room, caps[at], deadline)
    at = min(at, np.searchsorted(caps, room.queries.max()))
    return caps[at], deadline, best

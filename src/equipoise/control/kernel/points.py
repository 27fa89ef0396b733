"""Each rank's curve: what it verifies for a little more time, as points (verified drafts, expected tokens, time).

Within a rank the draft positions are taken by survival per unit of cost. Survival never rises along a request and the
cost of a position is the same all along it, so a prefix of that order is a prefix of every request.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.kernel.prices import batch_price
from equipoise.control.kernel.room import ONE

__all__ = ["add_work", "base_loads", "query_slope", "sorted_points", "weight_of", "worst_survival"]

NO_SLOPE = 1e-12
"""Where a query token costs nothing but its reads."""


@jitable
def base_loads(drafts, prices, room):  # type: ignore[no-untyped-def]
    """Fill B and the reads of each rank."""
    for r in range(len(room.batch)):
        low, high = drafts.first[r], drafts.first[r + 1]
        room.batch[r] = high - low
        total = 0
        for tokens in drafts.context[low:high]:
            total += tokens
        room.reads[r, 0] = total
        if len(room.rank_of) > 0:
            room.rank_of[low:high] = r
        for s in range(len(prices.saturation_tokens)):
            total = 0
            for i in range(low, high):
                total += min(drafts.context[i], prices.saturation_tokens[s])
            room.reads[r, 1 + s] = total


@jitable
def query_slope(prices, batch, drafts):  # type: ignore[no-untyped-def]
    """Average price of one more query token on a rank, contexts left out: what its reads are weighed against."""
    low, high = 0, 0
    for r in range(len(batch)):
        low, high = max(low, batch[r]), max(high, batch[r] * (1 + drafts))
    slope = 0.0
    if high > low:
        for g in range(len(prices.tail)):
            slope += (batch_price(prices, g, high) - batch_price(prices, g, low)) / (high - low)
    return max(slope, NO_SLOPE)


@jitable
def weight_of(prices, slope, context):  # type: ignore[no-untyped-def]
    """What a position of a request is worth against one that reads no context: 1 down to 0."""
    if prices.query_reads == 0.0:
        return 1.0
    read = 0.0
    for g in range(1, len(prices.tail)):
        read += prices.context[g] * context
        for s in range(len(prices.saturation_tokens)):
            read += prices.saturated[g, s] * min(context, prices.saturation_tokens[s])
    return slope / (slope + prices.query_reads * read)


@jitable
def worst_survival(survival):  # type: ignore[no-untyped-def]
    """First row whose survivals are no probabilities, or rise; -1: none."""
    for i in range(survival.shape[0]):
        before = np.float32(1.0)
        for j in range(survival.shape[1]):
            if not (survival[i, j] >= 0.0 and survival[i, j] <= before):
                return i
            before = survival[i, j]
    return -1


@jitable
def add_work(prices, room, r):  # type: ignore[no-untyped-def]
    """Fill the time of a rank's points from their reads: each group's, and the sum in row 0.

    A loop without calls: large instances have 16,000 points, and a call costs as much as ten of them.
    """
    reads, batch, work, table = room.reads, room.batch[r], room.work, prices.batch
    read = room.read[r if len(room.read) > 1 else 0]
    last, again, padded = table.shape[1] - 1, prices.query_reads, len(prices.graphs) > 0
    for k in range(room.points[r] + 1):
        queries = batch + room.taken[r, k]
        total = 0.0
        for g in range(1, len(prices.tail)):
            own = prices.context[g] * (reads[r, 0] + again * read[k, 0])
            for s in range(len(prices.saturation_tokens)):
                own += prices.saturated[g, s] * (reads[r, 1 + s] + again * read[k, 1 + s])
            if not padded:
                own += (
                    table[g, queries]
                    if queries <= last
                    else table[g, last] + prices.tail[g] * (queries - last)
                )
            work[g, r, k] = own
            total += own
        work[0, r, k] = total


@jitable
def sorted_points(drafts, prices, room, slope, trim):  # type: ignore[no-untyped-def]
    """Every position a point of its own, best first; for small ranks. Return a row that is wrong, or -1.

    ``trim`` is the survival from which a position is worth its price in experts and communication.
    """
    wrong = worst_survival(drafts.survival)
    if wrong >= 0:
        return wrong
    width, kinds, read = drafts.survival.shape[1], room.reads.shape[1], room.read[0]
    room.positions[:] = 0
    for r in range(len(room.batch)):
        mine, start = room.batch[r], drafts.first[r]
        keys = np.empty(mine * width)
        for i in range(mine):
            weight = weight_of(prices, slope, drafts.context[start + i])
            for j in range(width):
                survives = np.float64(drafts.survival[start + i, j])
                worthy = survives > trim and survives > 0.0
                keys[i * width + j] = -(survives - trim) * weight if worthy else 1.0
                room.positions[j] += np.int64(survives * ONE)
        k, gain = 0, np.int64(0)
        room.taken[r, 0], room.gain[r, 0], read[0, :] = 0, 0, 0
        for at in np.argsort(keys, kind="mergesort"):
            if keys[at] > 0:
                break
            row = start + at // width
            room.rows[r, k] = row
            k += 1
            gain += np.int64(np.float64(drafts.survival[row, at % width]) * ONE)
            room.taken[r, k], room.gain[r, k] = k, gain
            read[k, 0] = read[k - 1, 0] + drafts.context[row]
            for s in range(kinds - 1):
                short = min(drafts.context[row], prices.saturation_tokens[s])
                read[k, 1 + s] = read[k - 1, 1 + s] + short
        room.points[r] = k
        add_work(prices, room, r)
    return -1

"""Curves of large ranks: a point for each level of survival per unit of cost, not for each draft.

A large instance has 40,000 drafts and more, so what is done to each of them decides how long a plan takes: all but the
counting goes position by position along the requests of a rank, in loops that compilers turn into vector code.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.kernel.points import add_work, weight_of, worst_survival
from equipoise.control.kernel.room import BINS, ONE

__all__ = ["binned_points"]

PACKED, MASK = 1 << 43, 127
"""Drafts of a level above bit 43, what they yield below: one addition for both."""
LEAST_SAMPLE = 8


@jitable
def binned_points(drafts, prices, room, slope, trim, stride):  # type: ignore[no-untyped-def]
    """Fill all ranks' points; return a row whose survivals are wrong, or -1.

    With a ``stride`` above 1 every so manieth request stands for as many: good enough for a price of experts.
    """
    ranks, width, kinds = len(room.batch), drafts.survival.shape[1], room.reads.shape[1]
    widest, shortest = 0, drafts.context[0]
    for r in range(ranks):
        widest = max(widest, room.batch[r])
    for tokens in drafts.context:
        shortest = min(shortest, tokens)
    scale = (1.0 - trim) * weight_of(prices, slope, shortest)
    scale = BINS * (1.0 - 1e-6) / scale if scale > 0.0 else 0.0
    per_token = prices.query_reads * prices.context.sum()
    least, one, zero = np.float32(trim), np.float32(1.0), np.float32(0.0)
    chances = np.empty((1 + width, widest), dtype=np.float32)  # row 0: what a first draft must not exceed
    chances[0, :] = one
    weights, yields = np.empty(widest, dtype=np.float32), np.empty((width, widest), dtype=np.int32)
    level_of, counts = (
        np.empty((width, widest), dtype=np.uint8),
        np.empty((1 + kinds) * (MASK + 1), dtype=np.int64),
    )
    tokens_of = np.empty(widest, dtype=np.int64)
    room.positions[:] = 0
    wrong = 0
    for r in range(ranks):
        low, high = drafts.first[r], drafts.first[r + 1]
        jump = max(1, min(stride, (high - low) // LEAST_SAMPLE))
        mine = (high - low + jump - 1) // jump
        context, survival = drafts.context[low:high], drafts.survival[low:high]
        if jump == 1:
            tokens_of[:mine] = context
            for j in range(width):
                for i in range(mine):
                    chances[1 + j, i] = survival[i, j]
        else:
            for i in range(mine):
                tokens_of[i] = context[i * jump]
                chances[1:, i] = survival[i * jump]
        if kinds > 1:
            for i in range(mine):
                weights[i] = scale * weight_of(prices, slope, tokens_of[i])
        else:
            for i in range(mine):
                weights[i] = scale * slope / (slope + per_token * tokens_of[i])
        for j in range(width):
            for i in range(mine):
                survives = chances[1 + j, i]
                wrong |= (survives < zero) | (survives > chances[j, i]) | (survives != survives)
            for i in range(mine):
                survives = chances[1 + j, i]
                level = np.int32((survives - least) * weights[i] + one)
                level_of[j, i] = level if survives > least else 0
                yields[j, i] = np.int32(survives * np.float32(ONE))
            won = 0
            for i in range(mine):
                won += yields[j, i]
            room.positions[j] += won
        if wrong:
            return worst_survival(drafts.survival)
        count_levels(prices, tokens_of[:mine], level_of, yields, counts)
        add_points(room, r, jump, counts)
        add_work(prices, room, r)
        if jump == 1:
            room.levels[:, low:high] = level_of[:, :mine]
    return -1


@jitable
def count_levels(prices, tokens_of, level_of, yields, counts):  # type: ignore[no-untyped-def]
    """Drafts of each level, what they yield and what they read; side by side, so that one look at memory serves all."""
    width, kinds = level_of.shape[0], 1 + len(prices.saturation_tokens)
    each = np.uint64(1 + kinds)
    counts[:] = 0
    for i in range(len(tokens_of)):
        tokens = tokens_of[i]
        for j in range(width):
            at = np.uint64(level_of[j, i] & np.uint8(MASK)) * each
            counts[at] += PACKED + np.int64(yields[j, i])
            counts[at + np.uint64(1)] += tokens
        for s in range(kinds - 1):
            short = min(tokens, prices.saturation_tokens[s])
            for j in range(width):
                counts[np.uint64(level_of[j, i] & np.uint8(MASK)) * each + np.uint64(2 + s)] += short


@jitable
def add_points(room, r, jump, counts):  # type: ignore[no-untyped-def]
    """A rank's points from its levels, the best first."""
    taken, gain, read, kinds = room.taken[r], room.gain[r], room.read[r], room.reads.shape[1]
    count, won = 0, 0
    taken[0], gain[0], read[0, :] = 0, 0, 0
    for k in range(1, BINS + 1):
        at = (BINS + 1 - k) * (1 + kinds)
        count += jump * (counts[at] >> 43)
        won += jump * (counts[at] & (PACKED - 1))
        taken[k], gain[k] = count, won
        for s in range(kinds):
            read[k, s] = read[k - 1, s] + jump * counts[at + 1 + s]
    room.points[r] = BINS

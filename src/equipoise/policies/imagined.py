"""Pools as they would be had other rules placed everything: what ``dualpath,z=auto`` compares.

An imagined pool holds the requests that really run, on ranks of its own choosing. A request goes into all of them when
it is placed, grows by a token a step and leaves them when it is told to have ended. Sums of a rank and a count of steps
say what it holds; saturated contexts count as they were at the start.

Instances are given one count of steps between them: exact for one, a mean for several. Of the requests placed it knows
a bounded number; where a younger one takes the place of one that still runs, that one leaves the imagined pools.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, RANK_BITS, RANK_MASK, PolicyContext
from equipoise.types import Floats, Ints, Ints2D, Ints3D, Memory, Ranks

__all__ = [
    "COUNT",
    "THRESHOLDS",
    "Imagined",
    "enter",
    "imagine",
    "imagined_of",
    "memory_size",
    "remove",
    "rooms",
    "slot",
    "start",
    "tick",
]

THRESHOLDS = (1.01, 1.02, 1.03, 1.05, 1.07, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0)
"""Imagined: what they allow above the mean grows by about a half from one to the next."""
COUNT = len(THRESHOLDS)
KNOWN_PER_RANK, MOST_KNOWN = 512, 1 << 19
LIVES = 32
"""Mean lives of a request over which prices are taken."""
LATELY = 1024
"""Requests over which sizes and lives are taken."""
PACKED = 60 // RANK_BITS
"""Ranks kept in one number."""
WORDS = -(-COUNT // PACKED)
HEADER = 8
RANKS, INSTANCES, SATURATIONS, KNOWN, CLOCK, RUNNING, PRICED, ROUNDS = range(HEADER)
"""Positions in the header: the shape; steps of all instances, own requests, the clock at the last pricing, rounds."""
SEEN, SIZE, SQUARE, ENDS, LIFE, WATCHED = range(6)
"""Positions in `Imagined.learnt`: requests seen, means of their context and its square, requests ended, their mean
output, steps watched since the first of them ended."""
LEARNT = 6


class Imagined(NamedTuple):
    """The imagined pools, as they stand in a policy's memory."""

    header: Ints
    batch: Ints2D
    """int64[thresholds, ranks]"""
    base: Ints2D
    """int64[thresholds, ranks], sum of contexts at the start, times the instances, less the clocks then."""
    saturated: Ints3D
    """int64[thresholds, ranks, saturations], at the start."""
    lengths: Ints
    """int64[saturations], the saturation lengths."""
    request: Ints
    """int64[known], number + 1 of a running request."""
    context: Ints
    start: Ints
    """int64[known], the clock when it was placed."""
    rank: Ints2D
    """int64[known, words], its rank in each imagined pool, packed."""
    thresholds: Floats
    price: Floats
    """float64[thresholds], mean price of a step."""
    last: Floats
    """float64[thresholds], price of the step that runs."""
    learnt: Floats


def known(ranks: int) -> int:
    """Room for so many requests: a power of two."""
    room = 1
    while room < min(KNOWN_PER_RANK * ranks, MOST_KNOWN):
        room *= 2
    return room


def memory_size(context: PolicyContext) -> tuple[int, int]:
    """What `Imagined` takes."""
    sums = COUNT * context.ranks * (2 + len(context.prices.saturation_tokens))
    lengths = len(context.prices.saturation_tokens)
    return HEADER + sums + lengths + known(context.ranks) * (3 + WORDS), 3 * COUNT + LEARNT


def start(memory: Memory, context: PolicyContext) -> None:
    """Note the shape and the thresholds."""
    memory.ints[RANKS], memory.ints[INSTANCES] = context.ranks, context.instances
    memory.ints[SATURATIONS] = len(context.prices.saturation_tokens)
    memory.ints[KNOWN] = known(context.ranks)
    memory.floats[:COUNT] = THRESHOLDS
    imagined_of(memory).lengths[:] = context.prices.saturation_tokens


@jitable
def imagined_of(memory: Memory) -> Imagined:
    """What stands in the memory."""
    ints, floats = memory.ints, memory.floats
    n, s, room = ints[RANKS], ints[SATURATIONS], ints[KNOWN]
    base = HEADER + COUNT * n
    saturated = base + COUNT * n
    lengths = saturated + COUNT * n * s
    request = lengths + s
    context = request + room
    begin = context + room
    rank = begin + room
    return Imagined(
        ints[:HEADER],
        ints[HEADER:base].reshape((COUNT, n)),
        ints[base:saturated].reshape((COUNT, n)),
        ints[saturated:lengths].reshape((COUNT, n, s)),
        ints[lengths:request],
        ints[request:context],
        ints[context:begin],
        ints[begin:rank],
        ints[rank : rank + WORDS * room].reshape((room, WORDS)),
        floats[:COUNT],
        floats[COUNT : 2 * COUNT],
        floats[2 * COUNT : 3 * COUNT],
        floats[3 * COUNT :],
    )


@jitable
def remove(imagined: Imagined, at: int) -> None:
    """Take a known request out of all imagined pools."""
    header, tokens = imagined.header, imagined.context[at]
    base = tokens * header[INSTANCES] - imagined.start[at]
    for k in range(COUNT):
        rank = (imagined.rank[at, k // PACKED] >> (RANK_BITS * (k % PACKED))) & RANK_MASK
        imagined.batch[k, rank] -= 1
        imagined.base[k, rank] -= base
        for s in range(len(imagined.lengths)):
            imagined.saturated[k, rank, s] -= min(tokens, imagined.lengths[s])
    imagined.request[at] = 0
    header[RUNNING] -= 1


@jitable
def slot(imagined: Imagined, request: int) -> int:
    """Where a request is kept."""
    return request & (imagined.header[KNOWN] - 1)


@jitable
def enter(imagined: Imagined, request: int, tokens: int, where: Ints2D, i: int) -> None:
    """Count a placed request in, on the ranks in row `i`; one too old, or itself placed before, goes."""
    header, at = imagined.header, slot(imagined, request)
    if imagined.request[at] != 0:
        remove(imagined, at)
    imagined.request[at], imagined.context[at], imagined.start[at] = request + 1, tokens, header[CLOCK]
    imagined.rank[at, :] = 0
    for k in range(COUNT):
        rank = where[i, k]
        imagined.rank[at, k // PACKED] |= rank << (RANK_BITS * (k % PACKED))
        imagined.batch[k, rank] += 1
        imagined.base[k, rank] += tokens * header[INSTANCES] - header[CLOCK]
        for s in range(len(imagined.lengths)):
            imagined.saturated[k, rank, s] += min(tokens, imagined.lengths[s])
    header[RUNNING] += 1


@jitable
def tick(imagined: Imagined, ranks: Ranks) -> None:
    """Instances at their boundary have done a step; prices are means over time, so the last counts for its steps."""
    header, learnt, last = imagined.header, imagined.learnt, -1
    for r in range(len(ranks.instance)):
        if ranks.instance[r] != last and ranks.starts_in_s[r] == 0.0:
            header[CLOCK] += 1
        last = ranks.instance[r]
    steps = (header[CLOCK] - header[PRICED]) / header[INSTANCES]
    header[PRICED] = header[CLOCK]
    if learnt[ENDS] == 0.0 or steps == 0.0:
        return
    share = steps / (steps + min(learnt[WATCHED], LIVES * learnt[LIFE]))
    for k in range(COUNT):
        imagined.price[k] += share * (imagined.last[k] - imagined.price[k])
    learnt[WATCHED] += steps


@jitable
def rooms(ranks: Ranks) -> tuple[Ints, Ints]:
    """Tokens and requests that each rank may hold, whatever it holds now; -1 where no request may go."""
    n = len(ranks.batch)
    tokens, slots = np.empty(n, np.int64), np.empty(n, np.int64)
    for r in range(n):
        slots[r] = ranks.free_slots[r] + ranks.batch[r]
        tokens[r] = ranks.free_tokens[r] + ranks.context_tokens[r]
        if ranks.free_tokens[r] < 0:
            tokens[r] = -1 if ranks.free_slots[r] > 0 else NO_LIMIT // 2
    return tokens, slots


@jitable
def imagine(imagined: Imagined, k: int, ranks: Ranks, tokens: Ints, slots: Ints, others: int) -> Ranks:
    """The pool as it would be, so many requests of others on each rank."""
    n, clock, instances = len(ranks.batch), imagined.header[CLOCK], imagined.header[INSTANCES]
    running = max(ranks.batch.sum(), 1)
    context = others * ranks.context_tokens.sum() // running
    pool = Ranks(
        imagined.batch[k] + others,
        (imagined.base[k] + imagined.batch[k] * clock) // instances + context,
        np.full(n, -1),
        np.empty(n, np.int64),
        imagined.saturated[k].copy(),
        ranks.unseen_requests,
        ranks.instance,
        ranks.rank,
        ranks.starts_in_s,
        ranks.report_age_steps,
    )
    for s in range(pool.saturated_tokens.shape[1]):
        pool.saturated_tokens[:, s] += others * ranks.saturated_tokens[:, s].sum() // running
    for r in range(n):
        pool.free_slots[r] = slots[r] - pool.batch[r]
        if tokens[r] >= 0 and pool.free_slots[r] > 0:
            pool.free_tokens[r] = max(tokens[r] - pool.context_tokens[r], -1)
    return pool

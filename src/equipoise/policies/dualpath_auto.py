"""``dualpath,z=auto``: the threshold whose imagined pool has lately been the cheapest.

For each threshold of a short list the policy imagines the pool as it would be had that threshold placed everything
(`equipoise.policies.imagined`), and prices its steps with the step cost. Real requests are placed with the threshold
that has been cheapest over the last lives of requests. All imagined pools hold the same requests at any time, so their
prices differ by the threshold alone, and small differences show soon.

Until requests have been seen to end, and where nobody tells of ends, the threshold follows from the sizes of requests
and the exchange rate of the step cost: the mean plus E[c^2] / (2 E[c]) tokens, what a request reaches beyond a line
drawn anywhere (mean excess of renewal theory), or plus the price of a third of a request where that is more.

What other routers place is taken to be spread evenly. The work of a round is bounded: for each threshold a pass over
the ranks for each request placed, and some more.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import borrowed, jitable, shortened
from equipoise.cost.evaluate import rank_work
from equipoise.policies.api import NO_LIMIT, STAY, book, fewest_tokens, learning, placement
from equipoise.policies.dualpath import AVERAGE, place_within
from equipoise.policies.imagined import (
    CLOCK,
    COUNT,
    ENDS,
    INSTANCES,
    LATELY,
    LIFE,
    ROUNDS,
    RUNNING,
    SEEN,
    SIZE,
    SQUARE,
    WATCHED,
    Imagined,
    enter,
    imagine,
    imagined_of,
    memory_size,
    remove,
    rooms,
    slot,
    start,
    tick,
)
from equipoise.policies.weights import batch_prices
from equipoise.types import Floats, Prices, Ranks, Requests

__all__ = ["finished", "memory_size", "place", "start", "step_price", "threshold"]

FIRST = 1.05
"""Before anything is known: the paper's threshold."""
MOST_PRICED = 1 << 14
"""About so many ranks are priced a round: of large pools, not every step is."""


@jitable
def take_in(learnt: Floats, requests: Requests) -> None:
    """Take the contexts of requests offered for the first time into the means."""
    for i in range(len(requests.context_tokens)):
        if requests.waited_steps[i] == 0:
            tokens = float(requests.context_tokens[i])
            learnt[SEEN] += 1.0
            share = 1.0 / min(learnt[SEEN], float(LATELY))
            learnt[SIZE] += share * (tokens - learnt[SIZE])
            learnt[SQUARE] += share * (tokens * tokens - learnt[SQUARE])


@jitable
def cheapest(price: Floats) -> int:
    """The lowest price, each taken with half of its neighbours': one that is low among high ones had luck."""
    best, least, last = 0, np.inf, len(price) - 1
    for k in range(len(price)):
        around = price[k] + 0.5 * (price[max(k - 1, 0)] + price[min(k + 1, last)])
        if around < least:
            best, least = k, around
    return best


@jitable
def guess(learnt: Floats, ranks: Ranks, prices: Prices) -> float:
    """The threshold that the sizes of requests and the step cost ask for.

    Tokens allowed above the mean: what a request reaches beyond a line drawn anywhere, or what a third of a further
    request costs; contexts that are more even than that cost more in batches than they win.
    """
    tokens, running, n = ranks.context_tokens.sum(), ranks.batch.sum(), len(ranks.batch)
    if tokens == 0 or learnt[SIZE] == 0.0:
        return FIRST
    a_token = prices.context.sum()
    if a_token == 0.0:
        return float(NO_LIMIT)
    with_context, without, _ = batch_prices(prices, running // n)
    above = max(learnt[SQUARE] / (2.0 * learnt[SIZE]), (with_context + without) / (3.0 * a_token))
    return 1.0 + above * n / tokens


@jitable
def threshold(imagined: Imagined, ranks: Ranks, prices: Prices) -> float:
    """The cheapest, once it is known; not where ends must have gone untold, as far more is imagined than runs."""
    learnt = imagined.learnt
    known = learnt[ENDS] > 0.0 and learnt[WATCHED] >= learnt[LIFE]
    if known and imagined.header[RUNNING] <= 2 * (ranks.batch.sum() + len(ranks.batch)):
        return imagined.thresholds[cheapest(imagined.price)]
    return min(max(guess(learnt, ranks, prices), imagined.thresholds[0]), imagined.thresholds[COUNT - 1])


@jitable
def step_price(prices: Prices, pool: Ranks) -> float:
    """Price of a step of all instances, each waiting for its own slowest ranks."""
    tops, total = np.zeros(len(prices.context)), 0.0
    for r in range(len(pool.batch)):
        own = 0.0
        for t in range(len(tops)):
            work = rank_work(prices, t, pool.batch[r], pool.context_tokens[r], pool.saturated_tokens, r)
            own += work
            tops[t] = max(tops[t], work if prices.barrier_step == 0 else 0.0)
        if prices.barrier_step == 1:
            tops[0] = max(tops[0], own)
        if r + 1 == len(pool.batch) or pool.instance[r + 1] != pool.instance[r]:
            total += tops.sum()
            tops[:] = 0.0
    return total


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    ranks, requests, prices, memory = borrowed(ranks), borrowed(requests), borrowed(prices), borrowed(memory)
    imagined, n = imagined_of(memory), len(ranks.batch)
    header = imagined.header
    tick(imagined, ranks)
    take_in(imagined.learnt, requests)
    tokens, slots = rooms(ranks)
    others = max(ranks.batch.sum() - header[RUNNING], 0) // n
    place_within(threshold(imagined, ranks, prices), params[AVERAGE], ranks, requests, prices, out)
    count = 0
    while count < len(out) and out[count] != STAY:
        count += 1
    some, chosen = shortened(requests, count), np.empty(count, np.int64)
    where = np.empty((count, COUNT), np.int64)
    every = 1 + COUNT * n * len(prices.context) // MOST_PRICED
    priced = header[ROUNDS] % every == 0
    header[ROUNDS] += 1
    for k in range(COUNT):
        pool = imagine(imagined, k, ranks, tokens, slots, others)
        place_within(imagined.thresholds[k], params[AVERAGE], pool, some, prices, chosen)
        for i in range(count):
            if chosen[i] == STAY:  # no room, but run it does
                chosen[i] = fewest_tokens(pool, -NO_LIMIT)
                book(pool, chosen[i], some, i, prices)
            where[i, k] = chosen[i]
        if priced:
            imagined.last[k] = step_price(prices, pool)
    for i in range(count):
        enter(imagined, requests.request[i], requests.context_tokens[i], where, i)


@learning
def finished(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """A request that has ended leaves all imagined pools, and says by its length how many steps were done."""
    imagined = imagined_of(memory)
    header, learnt = imagined.header, imagined.learnt
    learnt[ENDS] += 1.0
    learnt[LIFE] += (output_tokens - learnt[LIFE]) / min(learnt[ENDS], float(LATELY))
    at = slot(imagined, request)
    if imagined.request[at] == request + 1:
        header[CLOCK] = max(header[CLOCK], imagined.start[at] + (output_tokens - 1) * header[INSTANCES])
        remove(imagined, at)

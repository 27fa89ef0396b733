"""What a rank and a request weigh under a step cost: the load that is to be kept level beside the batch.

Terms that see no context are kept down by a cap on the batch. The others have a weight: the price of what a rank holds
in them, added up. Where most of the price of a request stands in terms that see no context, the weight is that of the
context alone: the cap sees to the batches. Otherwise it is the whole price, and where every term sees context, or
there is one barrier a step, weight is all there is.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.cost.evaluate import rank_work
from equipoise.policies.box import Load
from equipoise.types import Floats, Ints, Prices

__all__ = [
    "batch_price",
    "capped",
    "level_price",
    "rank_weights",
    "request_weights",
    "sees_context",
    "whole_weight",
]


@jitable
def sees_context(prices: Prices, term: int) -> bool:
    """Whether the price of a term depends on the contexts; of one barrier a step, all of it does."""
    return prices.barrier_step == 1 or prices.context[term] > 0.0 or prices.saturated[term].sum() > 0.0


@jitable
def batch_price(prices: Prices, term: int, batch: int) -> float:
    """Price of a batch in a term."""
    last = prices.batch.shape[1] - 1
    return prices.batch[term, min(batch, last)] + prices.batch_tail[term] * max(batch - last, 0)


@jitable
def one_more(prices: Prices, term: int, batch: int) -> float:
    """Price of a further request, whatever its context, on the convex envelope of the batch prices."""
    last = prices.envelope.shape[1] - 1
    if batch >= last:
        return prices.envelope_tail[term]
    return prices.envelope[term, batch + 1] - prices.envelope[term, batch]


@jitable
def capped(prices: Prices, batch: int) -> bool:
    """Whether a further request costs anything in terms that see no context: only then is a cap of use."""
    for t in range(len(prices.context)):
        if not sees_context(prices, t) and (one_more(prices, t, batch) > 0.0 or prices.batch_tail[t] > 0.0):
            return True
    return False


@jitable
def whole_weight(prices: Prices, batch: int) -> bool:
    """Whether a request costs as much in the terms that see context as in the others, its context apart."""
    with_context, without = 0.0, 0.0
    for t in range(len(prices.context)):
        if sees_context(prices, t):
            with_context += one_more(prices, t, batch)
        else:
            without += one_more(prices, t, batch)
    return with_context >= without


@jitable
def rank_weights(prices: Prices, load: Load, whole: bool, weight: Floats, tops: Floats) -> None:
    """Fill in the weight of every rank, and the largest price of every term."""
    for t in range(len(tops)):
        seen = sees_context(prices, t)
        for r in range(len(weight)):
            work = rank_work(prices, t, load.batch[r], load.context_tokens[r], load.saturated_tokens, r)
            tops[t] = max(tops[t], work)
            if seen:
                weight[r] += work if whole else work - batch_price(prices, t, load.batch[r])


@jitable
def request_weights(prices: Prices, context_tokens: Ints, whole: bool, batch: int, weight: Floats) -> None:
    """Fill in the weight of requests, at a batch."""
    for t in range(len(prices.context)):
        if not sees_context(prices, t):
            continue
        fixed = one_more(prices, t, batch) if whole else 0.0
        for i in range(len(weight)):
            tokens = context_tokens[i]
            weight[i] += fixed + prices.context[t] * tokens
            for s in range(len(prices.saturation_tokens)):
                weight[i] += prices.saturated[t, s] * min(tokens, prices.saturation_tokens[s])


@jitable
def level_price(prices: Prices, load: Load, chosen: Ints, tops: Floats) -> float:
    """Price of the step once the chosen ranks hold what they were given; `tops` are the prices before."""
    total, slowest = 0.0, 0.0
    for rank in chosen:
        if rank >= 0 and prices.barrier_step == 1:
            own = 0.0
            for t in range(len(tops)):
                own += rank_work(
                    prices, t, load.batch[rank], load.context_tokens[rank], load.saturated_tokens, rank
                )
            slowest = max(slowest, own)
    if prices.barrier_step == 1:
        return slowest
    for t in range(len(tops)):
        top = tops[t]
        for rank in chosen:
            if rank >= 0:
                own = rank_work(
                    prices, t, load.batch[rank], load.context_tokens[rank], load.saturated_tokens, rank
                )
                top = max(top, own)
        total += top
    return total

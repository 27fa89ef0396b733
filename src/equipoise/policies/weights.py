"""What a rank and a request weigh under a step cost: the load that is to be kept level beside the batch.

A weight is a price in the terms that see context, added up: that of the contexts alone while a cap sees to the batches,
or of the requests too, in which case nothing else is needed. The latter is better where one term has all that matters:
a rank may then run more requests with less context. It needs a term that sees context and is dearer by the request than
those that see none; a single such term, for of two that disagree on what a request is worth, both would have to be kept
level; and contexts that matter: if batches are even, they must set ranks apart by more than half a request (the
spread of a sum of so many contexts), or the best that can be done is to keep the batches even.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.cost.evaluate import rank_work
from equipoise.policies.box import Load
from equipoise.types import Floats, Ints, Prices

__all__ = [
    "batch_price",
    "batch_prices",
    "level_price",
    "rank_weights",
    "request_weights",
    "sees_context",
]


@jitable
def sees_context(prices: Prices, term: int) -> bool:
    """Whether the price of a term depends on the contexts; of one barrier a step, all of it does."""
    seen = prices.barrier_step == 1 or prices.context[term] > 0.0
    for s in range(len(prices.saturation_tokens)):
        seen |= prices.saturated[term, s] > 0.0
    return seen


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
def batch_prices(prices: Prices, batch: int) -> tuple[float, float, int]:
    """Price of a further request, its context apart, in terms that see context and in the others; how many see it."""
    with_context, without, terms = 0.0, 0.0, 0
    for t in range(len(prices.context)):
        if sees_context(prices, t):
            with_context += one_more(prices, t, batch)
            terms += 1
        else:
            without += one_more(prices, t, batch)
    return with_context, without, 1 if prices.barrier_step == 1 else terms


@jitable
def rank_weights(prices: Prices, load: Load, whole: bool, weight: Floats, tops: Floats) -> None:
    """Fill in the weight of every rank, and the largest price of every term: of one barrier a step, of their sum."""
    if prices.barrier_step == 1:
        for r in range(len(weight)):
            own, fixed = 0.0, 0.0
            for t in range(len(tops)):
                own += rank_work(prices, t, load.batch[r], load.context_tokens[r], load.saturated_tokens, r)
                fixed += batch_price(prices, t, load.batch[r])
            tops[0] = max(tops[0], own)
            weight[r] = own if whole else own - fixed
        return
    last, saturations = prices.batch.shape[1] - 1, len(prices.saturation_tokens)
    for t in range(len(tops)):
        seen = sees_context(prices, t)
        at_none, per_request, per_token, top = (
            prices.batch[t, 0],
            prices.batch_tail[t],
            prices.context[t],
            0.0,
        )
        if last == 0 and saturations == 0:
            # The same sums as below: without look-ups they take a third of the time.
            for r in range(len(weight)):
                fixed = at_none + per_request * load.batch[r]
                work = fixed + per_token * load.context_tokens[r]
                top = max(top, work)
                if seen:
                    weight[r] += work if whole else work - fixed
        else:
            for r in range(len(weight)):
                fixed = batch_price(prices, t, load.batch[r])
                work = rank_work(prices, t, load.batch[r], load.context_tokens[r], load.saturated_tokens, r)
                top = max(top, work)
                if seen:
                    weight[r] += work if whole else work - fixed
        tops[t] = max(tops[t], top)


@jitable
def request_weights(prices: Prices, context_tokens: Ints, weight: Floats) -> None:
    """Fill in what the contexts of requests weigh."""
    for t in range(len(prices.context)):
        for i in range(len(weight)):
            tokens = context_tokens[i]
            weight[i] += prices.context[t] * tokens
            for s in range(len(prices.saturation_tokens)):
                weight[i] += prices.saturated[t, s] * min(tokens, prices.saturation_tokens[s])


@jitable
def request_price(prices: Prices, batch: int, context_tokens: int) -> float:
    """What a further request costs in all terms, at a batch: its share in a step that is spread evenly."""
    price = 0.0
    for t in range(len(prices.context)):
        price += one_more(prices, t, batch) + prices.context[t] * context_tokens
        for s in range(len(prices.saturation_tokens)):
            price += prices.saturated[t, s] * min(context_tokens, prices.saturation_tokens[s])
    return price


@jitable
def level_price(prices: Prices, load: Load, chosen: Ints, tops: Floats) -> float:
    """Price of the step once the chosen ranks hold what they were given; `tops` are the prices before."""
    if prices.barrier_step == 1:
        slowest = tops[0]
        for rank in chosen:
            if rank >= 0:
                own = 0.0
                for t in range(len(tops)):
                    own += rank_work(
                        prices, t, load.batch[rank], load.context_tokens[rank], load.saturated_tokens, rank
                    )
                slowest = max(slowest, own)
        return slowest
    total = 0.0
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

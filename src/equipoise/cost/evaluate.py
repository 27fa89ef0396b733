"""A step cost evaluated inside compiled code: what the replay kernel and the policies call.

The slow twin and `StepCost` do the same sums in the same order, so all three agree to the last bit.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.types import Ints, Prices

__all__ = ["even_price", "rank_work", "slowest_sum", "term_price", "term_work"]


@jitable
def rank_work(
    prices: Prices, term: int, batch: int, context_tokens: int, saturated_tokens: Ints, rank: int
) -> float:
    """Price of one rank's share of one term.

    Parameters
    ----------
    prices : Prices
    term : int
    batch, context_tokens : int
        B and C of the rank.
    saturated_tokens : int64[ranks, saturations]
        K of all ranks; a row of its own would cost compiled code more than the sum.
    rank : int
    """
    last = prices.batch.shape[1] - 1
    inside = prices.batch[term, min(batch, last)]
    work = inside + prices.batch_tail[term] * max(batch - last, 0) + prices.context[term] * context_tokens
    for s in range(saturated_tokens.shape[1]):
        work += prices.saturated[term, s] * saturated_tokens[rank, s]
    return work


@jitable
def term_price(prices: Prices, term: int, batch: Ints, context_tokens: Ints, saturated_tokens: Ints) -> float:
    """Price of one term over the ranks of an instance: its slowest rank's.

    Parameters
    ----------
    batch, context_tokens : int64[ranks]
    saturated_tokens : int64[ranks, saturations]
    """
    slowest = 0.0
    if prices.batch.shape[1] == 1 and saturated_tokens.shape[1] == 0:
        # The same sum as `rank_work` where no term has a table: without the look-ups it takes half the time.
        at_none, per_request, per_token = prices.batch[term, 0], prices.batch_tail[term], prices.context[term]
        for r in range(len(batch)):
            own = at_none + per_request * batch[r] + per_token * context_tokens[r]
            if own > slowest:
                slowest = own
        return slowest
    for r in range(len(batch)):
        own = rank_work(prices, term, batch[r], context_tokens[r], saturated_tokens, r)
        if own > slowest:
            slowest = own
    return slowest


@jitable
def term_work(
    prices: Prices, term: int, batch: Ints, total_batch: int, total_context: int, total_saturated: Ints
) -> float:
    """Price of one term added up over the ranks of an instance: what they compute, waiting left out.

    Context prices are linear, so their totals suffice; only a batch table has to be read rank by rank.

    Parameters
    ----------
    batch : int64[ranks]
    total_batch, total_context : int
        B and C of all ranks together.
    total_saturated : int64[saturations]
    """
    last = prices.batch.shape[1] - 1
    if last == 0:
        work = len(batch) * prices.batch[term, 0] + prices.batch_tail[term] * total_batch
    else:
        work = 0.0
        for r in range(len(batch)):
            work += prices.batch[term, min(batch[r], last)] + prices.batch_tail[term] * max(batch[r] - last, 0)
    work += prices.context[term] * total_context
    for s in range(len(total_saturated)):
        work += prices.saturated[term, s] * total_saturated[s]
    return work


@jitable
def slowest_sum(prices: Prices, batch: Ints, context_tokens: Ints, saturated_tokens: Ints) -> float:
    """Price of a step with one barrier: the largest sum over terms, the constant left out."""
    slowest = 0.0
    for r in range(len(batch)):
        own = 0.0
        for t in range(len(prices.context)):
            own += rank_work(prices, t, batch[r], context_tokens[r], saturated_tokens, r)
        if own > slowest:
            slowest = own
    return slowest


@jitable
def even_price(
    prices: Prices, term: int, batch: int, context_tokens: int, saturated_tokens: Ints, ranks: int
) -> float:
    """Price of one term if these totals were spread evenly over so many ranks.

    The batch price is read from its lower convex envelope, linearly between whole batches.
    """
    mean_batch = batch / ranks
    last = prices.envelope.shape[1] - 1
    low = min(batch // ranks, last)
    slope = prices.envelope_tail[term]
    if low < last:
        slope = prices.envelope[term, low + 1] - prices.envelope[term, low]
    price = (
        prices.envelope[term, low]
        + slope * (mean_batch - low)
        + prices.context[term] * (context_tokens / ranks)
    )
    for s in range(len(saturated_tokens)):
        price += prices.saturated[term, s] * (saturated_tokens[s] / ranks)
    return price

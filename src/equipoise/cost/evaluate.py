"""A step cost evaluated inside compiled code: what the replay kernel and the policies call.

The slow twin and `StepCost` do the same sums in the same order, so all three agree to the last bit.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.types import Ints, Prices

__all__ = ["rank_work", "step_price"]


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
def step_price(
    prices: Prices,
    batch: Ints,
    context_tokens: Ints,
    saturated_tokens: Ints,
    total_batch: int,
    total_context: int,
    total_saturated: Ints,
) -> tuple[float, float, float]:
    """Price of a step of one instance, its ideal, and the work of the average rank.

    Parameters
    ----------
    batch, context_tokens : int64[ranks]
        B and C.
    saturated_tokens : int64[ranks, saturations]
        K.
    total_batch, total_context : int
        Their sums over the ranks.
    total_saturated : int64[saturations]

    Returns
    -------
    cost : float
        The slowest rank of every barrier.
    ideal : float
        The same totals spread evenly: the batch price is read from its lower convex envelope, linearly between whole
        batches.
    work : float
        Mean over ranks of what a rank computes, its part of the constant included; the rest of the cost is bubble.
        Context prices are linear, so their totals suffice; only a batch table has to be read rank by rank.
    """
    ranks, saturations, last = len(batch), len(total_saturated), prices.batch.shape[1] - 1
    mean_batch = total_batch / ranks
    low = min(total_batch // ranks, last)
    cost, ideal, work = prices.constant, prices.constant, prices.constant
    for t in range(len(prices.context)):
        at_none, per_request, per_token = prices.batch[t, 0], prices.batch_tail[t], prices.context[t]
        slowest, together = 0.0, 0.0
        if last == 0 and saturations == 0:
            # The same sum as below: without look-ups it takes half the time.
            for r in range(ranks):
                own = at_none + per_request * batch[r] + per_token * context_tokens[r]
                if own > slowest:
                    slowest = own
        else:
            for r in range(ranks):
                own = prices.batch[t, min(batch[r], last)] + per_request * max(batch[r] - last, 0)
                together += own
                own += per_token * context_tokens[r]
                for s in range(saturations):
                    own += prices.saturated[t, s] * saturated_tokens[r, s]
                if own > slowest:
                    slowest = own
        cost += slowest
        if last == 0:
            together = ranks * at_none + per_request * total_batch
        together += per_token * total_context
        slope = (
            prices.envelope[t, low + 1] - prices.envelope[t, low] if low < last else prices.envelope_tail[t]
        )
        even = prices.envelope[t, low] + slope * (mean_batch - low) + per_token * (total_context / ranks)
        for s in range(saturations):
            together += prices.saturated[t, s] * total_saturated[s]
            even += prices.saturated[t, s] * (total_saturated[s] / ranks)
        work += together / ranks
        ideal += even
    if prices.barrier_step:
        cost = prices.constant + slowest_sum(prices, batch, context_tokens, saturated_tokens)
    return cost, ideal, work


@jitable
def slowest_sum(prices: Prices, batch: Ints, context_tokens: Ints, saturated_tokens: Ints) -> float:
    """Price of a step with one barrier: the largest sum over terms, the constant left out."""
    slowest = 0.0
    for r in range(len(batch)):
        own = 0.0
        for t in range(len(prices.context)):
            own += rank_work(prices, t, batch[r], context_tokens[r], saturated_tokens, r)
        slowest = max(slowest, own)
    return slowest

"""What one step of an instance costs, attention and beyond, part by part."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.cost.evaluate import rank_work, step_price
from equipoise.fleet.kernel.layout import PARTS
from equipoise.fleet.kernel.state import RING_MASK

__all__ = ["barrier", "price_step"]


@jitable
def barrier(prices, slowness, queries, context, saturated):  # type: ignore[no-untyped-def]
    """Price of a step whose ranks differ in speed: every rank's own work times its slowness, the constant even."""
    cost = prices.constant
    if prices.barrier_step:
        slowest = 0.0
        for r in range(len(queries)):
            own = 0.0
            for t in range(len(prices.context)):
                own += rank_work(prices, t, queries[r], context[r], saturated, r)
            slowest = max(slowest, slowness[r] * own)
        return cost + slowest
    for t in range(len(prices.context)):
        slowest = 0.0
        for r in range(len(queries)):
            own = rank_work(prices, t, queries[r], context[r], saturated, r)
            slowest = max(slowest, slowness[r] * own)
        cost += slowest
    return cost


@jitable
def mixed_price(prices, prefill, slowness, pieces, width):  # type: ignore[no-untyped-def]
    """What prompt tokens add to a step: the slowest rank's, and the even spread of the same.

    The constant is paid once a step: the larger of decode's and prefill's.
    """
    constant = max(0.0, prefill.constant - prices.constant)
    cost, even = constant, constant
    slowest_sum = 0.0
    for t in range(len(prefill.token)):
        slowest, together = 0.0, 0.0
        for r in range(width):
            slowest = max(slowest, slowness[r] * pieces[t, r])
            together += pieces[t, r]
        cost += slowest
        even += together / width
    if prefill.barrier_step:
        for r in range(width):
            own = 0.0
            for t in range(len(prefill.token)):
                own += pieces[t, r]
            slowest_sum = max(slowest_sum, slowness[r] * own)
        cost = constant + slowest_sum
    return cost, even


@jitable
def price_step(  # type: ignore[no-untyped-def]
    prices,
    prefill,
    extras,
    slowness,
    queries,
    padded,
    context,
    saturated,
    totals_k,
    pieces,
    mixed,
    swap,
    ring,
    part,
):
    """Fill `part` with the parts of a step's price; return the price, its ideal, and the average rank's own work.

    Parameters
    ----------
    prices : Prices
    prefill : PrefillPrices
    extras : Extras
    slowness : float64[ranks]
    queries, context : int64[ranks]
        Q, and the context that is read.
    padded : int64[ranks]
        Room.
    saturated : int64[ranks, saturations]
    totals_k : int64[saturations]
        Room.
    pieces : float64[terms, ranks]
        Prompt tokens' price; read only if `mixed`.
    mixed : bool
    swap : float
        Price of the tokens swapped.
    ring : int
        Place in the ring of skews.
    part : float64[parts]
    """
    width = len(queries)
    total_q, total_c, most = 0, 0, 0
    for r in range(width):
        total_q += queries[r]
        total_c += context[r]
        most = max(most, queries[r])
    for s in range(len(totals_k)):
        total = 0
        for r in range(width):
            total += saturated[r, s]
        totals_k[s] = total
    attention, ideal, work = step_price(prices, queries, context, saturated, total_q, total_c, totals_k)
    part[PARTS.ATTENTION], part[PARTS.ATTENTION_IDEAL] = attention, ideal
    paid = queries
    level = most
    padding = 0.0
    if len(extras.graph_sizes) > 0:
        if most > 0:
            for g in range(len(extras.graph_sizes)):
                if extras.graph_sizes[g] >= most:
                    level = extras.graph_sizes[g]
                    break
        for r in range(width):
            padded[r] = level
        paid = padded
        levelled, _, _ = step_price(prices, padded, context, saturated, level * width, total_c, totals_k)
        padding = levelled - attention
    part[PARTS.PADDING] = padding
    part[PARTS.SPREAD] = 0.0
    if extras.uneven:
        part[PARTS.SPREAD] = barrier(prices, slowness, paid, context, saturated) - (attention + padding)
    mean_q = total_q / width
    ffn = extras.ffn_per_mean * mean_q + extras.ffn_per_max * level
    ffn_even = (extras.ffn_per_mean + extras.ffn_per_max) * mean_q
    skew, skew_even = 0.0, 0.0
    if len(extras.skew) > 0:
        factor = extras.skew[ring & RING_MASK] - 1.0
        skew, skew_even = ffn * factor, ffn_even * factor
    comm = extras.comm_fixed + extras.comm_per_mean * mean_q + extras.comm_per_max * level
    comm_even = (extras.comm_per_mean + extras.comm_per_max) * mean_q
    added, added_even = 0.0, 0.0
    if mixed:
        added, added_even = mixed_price(prices, prefill, slowness, pieces, width)
    part[PARTS.OVERHEAD], part[PARTS.FFN], part[PARTS.SKEW], part[PARTS.COMM] = (
        extras.overhead,
        ffn,
        skew,
        comm,
    )
    part[PARTS.MIXED], part[PARTS.SWAP] = added, swap
    cost = attention + padding + part[PARTS.SPREAD] + extras.overhead + ffn + skew + comm + added + swap
    ideal = ideal + extras.overhead + ffn_even + skew_even + extras.comm_fixed + comm_even + added_even
    work = work + extras.overhead + ffn_even + skew_even + extras.comm_fixed + comm_even + added_even
    return cost, ideal, work

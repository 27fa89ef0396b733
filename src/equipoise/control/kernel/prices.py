"""What query tokens and context reads cost: pieces that compiled code calls, and the plain twin too."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.control.kernel.room import VerifyPrices
from equipoise.types import Ints

__all__ = ["batch_price", "captured", "context_price", "ep_price"]


@jitable
def batch_price(prices: VerifyPrices, group: int, queries: int) -> float:
    """Price of so many query tokens in one group, contexts left out."""
    last = prices.batch.shape[1] - 1
    if queries <= last:
        return prices.batch[group, queries]
    return prices.batch[group, last] + prices.tail[group] * (queries - last)


@jitable
def captured(prices: VerifyPrices, queries: int) -> int:
    """Smallest captured graph that holds so many query tokens; themselves where there is none, or for 0."""
    if queries == 0 or len(prices.graphs) == 0 or queries > prices.graphs[-1]:
        return queries
    return prices.graphs[np.searchsorted(prices.graphs, queries)]


@jitable
def context_price(prices: VerifyPrices, group: int, reads: Ints, extra: Ints) -> float:
    """Price of one rank's reads in one group.

    Parameters
    ----------
    prices : VerifyPrices
    group : int
    reads, extra : int64[1 + S]
        Context tokens, then saturated ones: read once a request, and once more for each verified draft.
    """
    price = prices.context[group] * (reads[0] + prices.query_reads * extra[0])
    for s in range(len(prices.saturation_tokens)):
        price += prices.saturated[group, s] * (reads[1 + s] + prices.query_reads * extra[1 + s])
    return price


@jitable
def ep_price(prices: VerifyPrices, total_queries: int, ranks: int) -> float:
    """Price of experts and communication, above what is paid anyway."""
    return prices.ep_per_query * max(0.0, total_queries / ranks - prices.ep_free)

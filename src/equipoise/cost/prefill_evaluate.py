"""A prefill cost evaluated inside compiled code: one chunk, one term, no arrays made.

`PrefillCost.work` does the same sums in the same order for a single chunk, so the two agree to the last bit.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.cost.prefill import PrefillPrices

__all__ = ["chunk_work", "reads_up_to"]


@jitable
def reads_up_to(position: int, bound: int) -> int:
    """Sum of min(p, bound) over the positions 1 ... `position`; both at most 2**31 - 1."""
    within = min(position, bound)
    return within * (within + 1) // 2 + (position - within) * bound


@jitable
def chunk_work(prices: PrefillPrices, term: int, offset: int, tokens: int) -> float:
    """Price of a chunk of `tokens` behind `offset` earlier ones, for one term, in the cost's unit.

    It never falls as `tokens` grows, so the chunk that fits a budget is found by halving.
    """
    last = offset + tokens
    pairs = last * (last + 1) // 2 - offset * (offset + 1) // 2
    work = prices.token[term] * tokens + prices.pair[term] * pairs
    for s in range(len(prices.saturation_tokens)):
        bound = prices.saturation_tokens[s]
        work += prices.saturated[term, s] * (reads_up_to(last, bound) - reads_up_to(offset, bound))
    return float(work)

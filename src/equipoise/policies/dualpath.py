"""``dualpath``: among ranks with few tokens the smallest batch, otherwise the fewest tokens.

DualPath (arXiv 2602.21548), decode phase 2, restated. When a round of requests is fetched:

1. Take the prefix P of the queue that would fit if the free memory of all ranks were one pool.
2. threshold = z * (resident tokens of all ranks + context of P) / ranks: z times the *projected* mean.
3. For each request, oldest first, among the ranks where it fits: a rank is *low* if its tokens with the request stay
   within the threshold. If there are low ranks, take the one with the fewest requests; otherwise the one with the
   fewest tokens. If it fits nowhere, the round ends.

``average=current`` is the short reading of the rule (tokens below z times the *current* mean, the request itself not
counted): on an almost empty pool it calls every rank high and turns into ``least_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from equipoise._jit import borrowed, jitable
from equipoise.policies.api import (
    NO_LIMIT,
    STAY,
    Parameter,
    PolicySpec,
    book,
    fewest_requests,
    fewest_tokens,
    placement,
)
from equipoise.types import Ints, Prices, Ranks, Requests

Z, AVERAGE = 0, 1
AUTO = "auto"
PROJECTED, CURRENT = 0.0, 1.0


@jitable
def poolable_tokens(ranks: Ranks, requests: Requests) -> int:
    """Context of the longest prefix of the queue that fits into the free memory of all ranks taken together."""
    free = 0
    for r in range(len(ranks.free_tokens)):
        free += max(ranks.free_tokens[r], 0)
    total, taken = 0, 0
    for i in range(len(requests.context_tokens)):
        taken += requests.reserve_tokens[i]
        if taken > free:
            break
        total += requests.context_tokens[i]
    return total


@jitable
def token_limit(z: float, tokens: int, ranks: int) -> int:
    """Z times the mean, as a whole number of tokens (rounded down: a count is at most x if it is at most floor x)."""
    if z >= NO_LIMIT:  # an unbounded z times no tokens would be NaN
        return NO_LIMIT
    limit = z * tokens / ranks
    return int(limit) if limit < NO_LIMIT else NO_LIMIT


@jitable
def token_limit_below(z: float, tokens: int, ranks: int) -> int:
    """Z times the mean, strictly: the largest whole number of tokens below it."""
    limit = token_limit(z, tokens, ranks)
    return limit - 1 if limit < NO_LIMIT and limit == z * tokens / ranks else limit


@jitable
def place_within(
    z: float, average: float, ranks: Ranks, requests: Requests, prices: Prices, out: Ints
) -> None:
    """The rule, at a threshold."""
    projected = average == PROJECTED
    resident = ranks.context_tokens.sum()
    pending = poolable_tokens(ranks, requests) if projected else 0
    limit = token_limit(z, resident + pending, len(ranks.batch))
    blocked = False
    for i in range(len(out)):
        tokens = requests.context_tokens[i]
        if projected:
            most = limit - tokens
        else:
            # The current mean moves with every placement.
            most = token_limit_below(z, resident, len(ranks.batch))
        rank = STAY
        if not blocked:
            rank = fewest_requests(ranks, requests.reserve_tokens[i], most)
            if rank == STAY:
                rank = fewest_tokens(ranks, requests.reserve_tokens[i])
        out[i] = rank
        if rank == STAY:
            blocked = True
        else:
            book(ranks, rank, requests, i, prices)
            resident += tokens


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    ranks, requests, prices = borrowed(ranks), borrowed(requests), borrowed(prices)
    place_within(params[Z], params[AVERAGE], ranks, requests, prices, out)


def with_own_z(params: Mapping[str, Any]) -> PolicySpec | None:
    """``z=auto``: see `equipoise.policies.dualpath_auto`."""
    if params["z"] != AUTO:
        return None
    from equipoise.policies import dualpath_auto as auto

    return replace(
        SPEC, place=auto.place, finished=auto.finished, memory_size=auto.memory_size, start=auto.start
    )


SPEC = PolicySpec(
    name="dualpath",
    place=place,
    summary="fewest requests among the ranks within z times the mean tokens, otherwise fewest tokens",
    source="DualPath, arXiv 2602.21548, section on decode scheduling; source article, policy D",
    parameters=(
        Parameter(
            "z",
            1.05,
            "threshold over the mean tokens of a rank; the paper uses 1.05; auto: whichever has been cheapest lately",
            low=0.0,
            words=(AUTO,),
        ),
        Parameter(
            "average",
            "projected",
            "mean with the waiting requests that fit (the paper), or the current mean (the short reading)",
            choices=("projected", "current"),
        ),
    ),
    aliases=("D",),
    variant=with_own_z,
)

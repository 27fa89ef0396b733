"""``iqr_lex``: longest first, to the smallest batch among the ranks whose tokens are no outlier.

Staggered Batch Scheduling (arXiv 2512.16134), decode allocation, Algorithm 3. The requests of a window, longest
first:

1. Q1 and Q3 are the quartiles of the ranks' tokens. A rank above Q3 + k * (Q3 - Q1) is masked.
2. Among the others: the fewest requests, of equals the fewest tokens.
3. The choice is counted in before the next request is looked at.

Readings where the text leaves room: the window is what waits (the paper's adaptive buffering window is a property
of the router, not of the rule); the quartiles are taken anew for every request, by linear interpolation between
ranks; k is 1.5, the usual fence, which another project's design also uses. Where every rank that has room is
masked, the mask is lifted: the paper has no capacity filter. The window ends at the first request that the pool has
no room for.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY, Parameter, PolicySpec, book, fits, placement
from equipoise.policies.fetch import fetch, longest_first
from equipoise.types import Ints

FENCE = 0


@jitable
def four_times_quartile(ordered: Ints, quartile: int) -> int:
    """Four times the first (1) or third (3) quartile of sorted values: a whole number."""
    position = quartile * (len(ordered) - 1)
    i, part = position // 4, position % 4
    return (4 - part) * ordered[i] + (part * ordered[i + 1] if part > 0 else 0)


@jitable
def raise_one(ordered: Ints, value: int, by: int) -> None:
    """Let one entry of a sorted array grow, O(length)."""
    i = np.searchsorted(ordered, value, side="right") - 1
    while i + 1 < len(ordered) and ordered[i + 1] < value + by:
        ordered[i] = ordered[i + 1]
        i += 1
    ordered[i] = value + by


@jitable
def least_of(ranks, reserve_tokens, at_most):  # type: ignore[no-untyped-def]
    """Rank with the smallest (batch, tokens) among those with room whose tokens are at most so many; -1: none."""
    best, batch, tokens = STAY, NO_LIMIT, NO_LIMIT
    for r in range(len(ranks.batch)):
        b, c = ranks.batch[r], ranks.context_tokens[r]
        if (b < batch or (b == batch and c < tokens)) and c <= at_most and fits(ranks, r, reserve_tokens):
            best, batch, tokens = r, b, c
    return best


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    out[:] = STAY
    ordered = np.sort(ranks.context_tokens)
    for i in longest_first(requests, fetch(ranks, requests)):
        q1, q3 = four_times_quartile(ordered, 1), four_times_quartile(ordered, 3)
        fence = (q3 + params[FENCE] * (q3 - q1)) / 4.0
        best = least_of(ranks, requests.reserve_tokens[i], fence)
        if best == STAY:
            best = least_of(ranks, requests.reserve_tokens[i], np.inf)
        out[i] = best
        if best != STAY:
            raise_one(ordered, ranks.context_tokens[best], requests.context_tokens[i])
            book(ranks, best, requests, i, prices)


SPEC = PolicySpec(
    name="iqr_lex",
    place=place,
    summary="longest first, to the fewest requests among the ranks whose tokens are no outlier by quartiles",
    source="Staggered Batch Scheduling, arXiv 2512.16134, Algorithm 3",
    parameters=(
        Parameter("k", 1.5, "fence above the third quartile, in interquartile ranges", low=0.0, high=1e6),
    ),
    aliases=("sbs",),
)

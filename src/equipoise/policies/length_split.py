"""``length_split``: long requests by batch, short ones by tokens (or the other way round).

The source article's policy C: a request longer than the P-th percentile of the last N goes to the rank with the
fewest requests, any other to the rank with the fewest tokens. ``swapped=true`` exchanges the two.

As written it feeds back on itself: a rank that holds long contexts holds few requests, so the next long request goes
there too. Swapped, long requests are spread by tokens and short ones fill up the batches.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import (
    NO_LIMIT,
    Parameter,
    PolicyContext,
    PolicySpec,
    fewest_requests,
    fewest_tokens,
    one_by_one,
)
from equipoise.types import Floats, Ints, Memory, Prices, Ranks, Requests

WINDOW, PERCENTILE, SWAPPED = 0, 1, 2

# Layout of memory.ints: how many lengths were seen, then the last N in order of arrival, then the same sorted.
SEEN, HEADER = 0, 1


@jitable
def percentile_length(sorted_lengths: Ints, count: int, percentile: float) -> int:
    """Nearest-rank percentile of the first ``count`` sorted lengths: the least that P percent do not exceed.

    The slack keeps rounding from lifting a whole rank to the next one: 0.55 * 100 is above 55.
    """
    position = int(np.ceil(percentile * count / 100.0 - 1e-9)) - 1
    return sorted_lengths[min(max(position, 0), count - 1)]


@jitable
def remember(memory: Memory, window: int, length: int) -> None:
    """Slide the window by one: the oldest length leaves the sorted half, the new one enters, O(N) moves."""
    seen = memory.ints[SEEN]
    ring = memory.ints[HEADER : HEADER + window]
    order = memory.ints[HEADER + window : HEADER + 2 * window]
    count = min(seen, window)
    if count == window:
        oldest = ring[seen % window]
        hole = np.searchsorted(order, oldest)
        for k in range(hole, window - 1):
            order[k] = order[k + 1]
        count -= 1
    spot = count
    while spot > 0 and order[spot - 1] > length:
        order[spot] = order[spot - 1]
        spot -= 1
    order[spot] = length
    ring[seen % window] = length
    memory.ints[SEEN] = seen + 1


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Long by A and short by B as written; exchanged if swapped. The request itself joins the window afterwards."""
    tokens = requests.context_tokens[i]
    window = int(params[WINDOW])
    count = min(memory.ints[SEEN], window)
    long_request = False
    if count > 0:
        order = memory.ints[HEADER + window : HEADER + 2 * window]
        long_request = tokens > percentile_length(order, count, params[PERCENTILE])
    by_batch = long_request != (params[SWAPPED] != 0.0)
    room = requests.reserve_tokens[i]
    rank = fewest_requests(ranks, room, NO_LIMIT) if by_batch else fewest_tokens(ranks, room)
    if rank >= 0:  # a request that stays queued is counted once, when it is placed
        remember(memory, window, tokens)
    return rank


def memory_size(context: PolicyContext) -> tuple[int, int]:
    """One counter and two windows."""
    return HEADER + 2 * int(context.params["window"]), 0


SPEC = PolicySpec(
    name="length_split",
    place=one_by_one(pick),
    summary="requests longer than a percentile of the last N by batch, the others by tokens",
    source="source article, policy C (N and P are not given there)",
    parameters=(
        Parameter("window", 1000, "N: how many recent requests", low=1, high=100_000, integer=True),
        Parameter(
            "percentile",
            80.0,
            "P: percentile of their context above which a request is long",
            low=0,
            high=100,
        ),
        Parameter("swapped", False, "exchange the two rules: long by tokens, short by batch"),
    ),
    aliases=("C",),
    memory_size=memory_size,
)

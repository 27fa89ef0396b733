"""The two stages of BalanceRoute (arXiv 2605.06113), for `br0` and `brh`: they differ in the outlook only.

1. While the pool has ample free slots: the rank with the most free slots (of equals the fewest tokens) takes the
   request that is worth most to it, one at a time (`equipoise.policies.overflow`).
2. When slots are scarce: the rank with the least load takes the set worth most among all sets of the oldest four
   waiting requests that its slots allow; if no set is worth anything, the single request that is worth most; and so
   on.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY
from equipoise.policies.overflow import Outlook, give, lightest_rank, one_at_a_time, worth
from equipoise.types import Ints, Prices, Ranks, Requests

__all__ = ["balance_route"]

WINDOW = 4
"""R_max of the paper."""


@jitable
def oldest_unplaced(out: Ints, window: Ints) -> int:
    """Fill in the positions of the oldest requests that are not placed; how many there are, up to the window."""
    count = 0
    for i in range(len(out)):
        if count == len(window):
            break
        if out[i] == STAY:
            window[count] = i
            count += 1
    return count


@jitable
def best_set(outlook: Outlook, rank: int, ranks: Ranks, requests: Requests, window: Ints, count: int) -> int:
    """The set of requests to place, bit j for the j-th of the window; one of them fits."""
    best, most = 0, -np.inf
    single, most_alone = 0, -np.inf
    for members in range(1, 1 << count):
        size, tokens, reserve_tokens = 0, 0, 0
        for j in range(count):
            if members >> j & 1:
                size += 1
                tokens += requests.context_tokens[window[j]]
                reserve_tokens += requests.reserve_tokens[window[j]]
        if size > ranks.free_slots[rank] or reserve_tokens > ranks.free_tokens[rank]:
            continue
        value = worth(outlook, rank, tokens)
        if value > most:
            best, most = members, value
        if size == 1 and value > most_alone:
            single, most_alone = members, value
    return best if most > 0.0 else single


@jitable
def balance_route(ranks: Ranks, requests: Requests, prices: Prices, outlook: Outlook, out: Ints) -> None:
    """Both stages; fills ``out``."""
    out[:] = STAY
    one_at_a_time(outlook, ranks, requests, prices, out)
    window = np.empty(WINDOW, np.int64)
    while True:
        count = oldest_unplaced(out, window)
        smallest = NO_LIMIT
        for j in range(count):
            smallest = min(smallest, requests.reserve_tokens[window[j]])
        rank = lightest_rank(outlook, 0, ranks, smallest)
        if rank == STAY:
            return
        members = best_set(outlook, rank, ranks, requests, window, count)
        for j in range(count):
            if members >> j & 1:
                give(outlook, rank, ranks, requests, window[j], prices, out)

"""What a rule that places a whole round takes from the queue: the oldest requests that the pool has room for.

Engines fetch in order of arrival and only then ask where each request goes. A rule that sorts what was fetched, longest
first say, starves nobody: it changes who goes where, not who goes.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.types import Ints, Ranks, Requests

__all__ = ["fetch", "longest_first"]


@jitable
def fetch(ranks: Ranks, requests: Requests) -> int:
    """How many of the oldest requests fit if slots and free tokens of all ranks were one; each on some rank by itself.

    The first that does not fit holds back those behind it.
    """
    slots, free, largest = 0, 0, -1
    for r in range(len(ranks.batch)):
        if ranks.free_tokens[r] >= 0:
            slots += ranks.free_slots[r]
            free += ranks.free_tokens[r]
            largest = max(largest, ranks.free_tokens[r])
    count = min(slots, len(requests.reserve_tokens))
    for i in range(count):
        takes = requests.reserve_tokens[i]
        free -= takes
        if free < 0 or takes > largest:
            return i
    return count


@jitable
def longest_first(requests: Requests, count: int) -> Ints:
    """Positions of the oldest `count` requests, longest context first, the older of equals first."""
    return np.argsort(-requests.context_tokens[:count], kind="mergesort")

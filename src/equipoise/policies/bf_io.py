"""``bf_io``: the heuristic of the code released with BF-IO.

The paper (arXiv 2601.17855) states an integer program: fill all free slots so that the imbalance summed over the
next H steps is least. Its released code (Echoscd/Load-Balancing-Release,
``simlib/strategies/strategy_balance_future.py``) solves it by a rule of two stages, on the worth

    F(S) = sum over h = 0 ... H of 0.86^h * (S - 43 * max(0, S - margin_h))          H = 72

of S tokens on a rank (`equipoise.policies.overflow`; running requests do not grow in its projection):

1. While the pool has more than seven free slots: the rank with the most (of equals the fewest tokens) takes the
   request of the first 1,024 that is worth most to it.
2. Then the lightest rank again and again. Let M be its least margin over all steps. For each number of requests
   from its free slots down to one: the set of so many with the largest sum up to M, or else the smallest sum above;
   the first sum within M ends the search. The set worth most is placed; if none is worth anything, the best single
   request.

In the second stage the code orders ranks by a mix of their load now and at step H. With the time constants of its
simulator the share of the latter is above 0.99 from the second step on, so here it is the load at step H. The code
also forces a request after three failures, which its own fallback makes impossible.

The code is given the true output lengths, or noisy ones. A policy has none: the expected remaining steps of BR-H
(`equipoise.policies.brh`), learnt from the requests that have ended, take their place. ``horizon=0`` is the released
variant without prediction. The code finds sums by a bit set over all candidates; here sets of two and more are sought
among the oldest ten, single requests among all: a bit set over contexts of half a million tokens is no work for a
router. Its cost is that of BR-H.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import STAY, Parameter, PolicySpec, fits, placement
from equipoise.policies.foresight import finished, look_ahead, memory_with_rows, note, start
from equipoise.policies.overflow import (
    Outlook,
    best_request,
    give,
    least_room,
    lightest_rank,
    one_at_a_time,
    worth,
)
from equipoise.types import Ints, Ranks, Requests

HORIZON, DECAY, PENALTY = 0, 1, 2
OLDEST, MOST_SLOTS = 10, 7


@jitable
def least_margin(outlook: Outlook, rank: int) -> int:
    """What a rank lacks to the largest load at the step where that is least, in whole tokens."""
    least = np.inf
    for h in range(len(outlook.envelope)):
        least = min(least, outlook.envelope[h] - outlook.load[rank, h])
    return int(least)


@jitable
def better_sum(tokens: int, than: int, margin: int) -> bool:
    """Whether a sum is to be preferred: the largest up to the margin, else the smallest above (``than`` -1: none)."""
    if than < 0:
        return True
    if tokens <= margin:
        return than > margin or tokens > than
    return than > margin and tokens < than


@jitable
def sets_by_size(
    rank: int,
    ranks: Ranks,
    requests: Requests,
    out: Ints,
    margin: int,
    oldest: Ints,
    members: Ints,
    sums: Ints,
) -> None:
    """Fill in, for each size, the preferred set that a rank has room for and its sum; sum -1: there is none.

    Sets of two and more are bits over `oldest`, which is filled in too; a set of one is a position among all requests.
    """
    sums[:] = -1
    count = 0
    for i in range(len(out)):
        if out[i] != STAY or not fits(ranks, rank, requests.reserve_tokens[i]):
            continue
        if better_sum(requests.context_tokens[i], sums[1], margin):
            members[1], sums[1] = i, requests.context_tokens[i]
        if count < len(oldest):
            oldest[count] = i
            count += 1
    most = min(ranks.free_slots[rank], len(sums) - 1)
    if most < 2:
        return
    for bits in range(1, 1 << count):
        size, tokens, reserve_tokens = 0, 0, 0
        for j in range(count):
            if bits >> j & 1:
                size += 1
                tokens += requests.context_tokens[oldest[j]]
                reserve_tokens += requests.reserve_tokens[oldest[j]]
        fitting = 2 <= size <= most and reserve_tokens <= ranks.free_tokens[rank]
        if fitting and better_sum(tokens, sums[size], margin):
            members[size], sums[size] = bits, tokens


@jitable
def choose_size(outlook: Outlook, rank: int, margin: int, sums: Ints) -> int:
    """The size whose set is worth most, from many to one, up to the first sum within the margin; 0: none."""
    best, most = 0, 0.0
    for size in range(len(sums) - 1, 0, -1):
        if sums[size] < 0:
            continue
        value = worth(outlook, rank, sums[size])
        if value > most:
            best, most = size, value
            if sums[size] <= margin:
                break
    return best


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    horizon = int(params[HORIZON])
    outlook = look_ahead(ranks, memory, horizon, params[DECAY], params[PENALTY], 0)
    out[:] = STAY
    one_at_a_time(outlook, ranks, requests, prices, out)
    oldest = np.empty(OLDEST, np.int64)
    members, sums = np.zeros(MOST_SLOTS + 1, np.int64), np.zeros(MOST_SLOTS + 1, np.int64)
    while True:
        rank = lightest_rank(outlook, horizon, ranks, least_room(requests, out))
        if rank == STAY:
            break
        margin = least_margin(outlook, rank)
        sets_by_size(rank, ranks, requests, out, margin, oldest, members, sums)
        size = choose_size(outlook, rank, margin, sums)
        if size >= 2:
            for j in range(OLDEST):
                if members[size] >> j & 1:
                    give(outlook, rank, ranks, requests, oldest[j], prices, out)
            continue
        i = members[1] if size == 1 else best_request(outlook, rank, ranks, requests, out)
        give(outlook, rank, ranks, requests, i, prices, out)
    note(ranks, requests, memory, out)


SPEC = PolicySpec(
    name="bf_io",
    place=place,
    summary="br0 with a fixed fine, foresight, and the best-filling set of requests where slots are scarce",
    source="code released with BF-IO (arXiv 2601.17855), github.com/Echoscd/Load-Balancing-Release",
    parameters=(
        Parameter("horizon", 72, "H: steps looked ahead; 0: none", low=0, high=255, integer=True),
        Parameter("decay", 0.86, "weight of a step relative to the one before", low=0.0, high=1.0),
        Parameter("penalty", 43.0, "fine for a token beyond the largest load", low=0.0, high=1e6),
    ),
    aliases=("bfio",),
    memory_size=lambda context: memory_with_rows(context, int(context.params["horizon"]) + 1),
    start=start,
    finished=finished,
)

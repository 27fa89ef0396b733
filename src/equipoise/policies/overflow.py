"""What BF-IO and BalanceRoute share: a score that rewards filling a rank up to the largest, and fines going beyond.

A rank's *margin* at a step is what it lacks to the largest load of all ranks, the *envelope*. A set of requests of S
tokens placed on it is worth, over steps h = 0 ... H with weights d_h,

    F(S) = sum of d_h * (S - penalty * max(0, S - margin_h))

(arXiv 2605.06113, and the released code of arXiv 2601.17855). All ranks shown count as workers behind one barrier,
as in both papers. A placed request is taken to add its context at every step of the outlook: its growth is left out
there too.

First stage of both: while slots are ample, the rank with the most free slots takes the single request that is worth
most to it. Both choose *whom* to place as well as where, so a request may wait while later ones are placed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY, book, fits
from equipoise.types import Floats, Floats2D, Ints, Prices, Ranks, Requests

__all__ = [
    "AMPLE_SLOTS",
    "Outlook",
    "best_request",
    "give",
    "least_room",
    "lightest_rank",
    "now",
    "one_at_a_time",
    "worth",
]

AMPLE_SLOTS = 7
"""Free slots of the pool beyond which they are ample: ``GREEDY_SLOT_THRESHOLD`` of the released BF-IO code."""


class Outlook(NamedTuple):
    """Loads as they are expected to be, steps 0 (now) to H ahead."""

    load: Floats2D
    """float64[ranks, steps], tokens."""
    envelope: Floats
    """float64[steps], the largest of them."""
    weight: Floats
    """float64[steps], d_h."""
    penalty: float


@jitable
def now(ranks: Ranks, penalty: float) -> Outlook:
    """The outlook without foresight: loads as they are, one step."""
    load = np.empty((len(ranks.batch), 1))
    envelope = np.zeros(1)
    for r in range(len(ranks.batch)):
        load[r, 0] = ranks.context_tokens[r]
        envelope[0] = max(envelope[0], load[r, 0])
    return Outlook(load, envelope, np.ones(1), penalty)


@jitable
def worth(outlook: Outlook, rank: int, tokens: int) -> float:
    """F(S): what so many tokens are worth on a rank."""
    total = 0.0
    for h in range(len(outlook.envelope)):
        beyond = tokens - (outlook.envelope[h] - outlook.load[rank, h])
        total += outlook.weight[h] * (tokens - outlook.penalty * max(beyond, 0.0))
    return total


@jitable
def give(
    outlook: Outlook, rank: int, ranks: Ranks, requests: Requests, i: int, prices: Prices, out: Ints
) -> None:
    """Place a request: answer, view and outlook."""
    out[i] = rank
    book(ranks, rank, requests, i, prices)
    tokens = requests.context_tokens[i]
    for h in range(len(outlook.envelope)):
        outlook.load[rank, h] += tokens
        outlook.envelope[h] = max(outlook.envelope[h], outlook.load[rank, h])


@jitable
def best_request(outlook: Outlook, rank: int, ranks: Ranks, requests: Requests, out: Ints) -> int:
    """The unplaced request worth most on a rank, the oldest of equals; -1: none fits."""
    best, most = STAY, -np.inf
    for i in range(len(out)):
        if out[i] == STAY and fits(ranks, rank, requests.reserve_tokens[i]):
            value = worth(outlook, rank, requests.context_tokens[i])
            if value > most:
                best, most = i, value
    return best


@jitable
def free_slots(ranks: Ranks) -> int:
    """Requests that still fit, over all ranks that take any."""
    total = 0
    for r in range(len(ranks.batch)):
        if ranks.free_tokens[r] >= 0:
            total += ranks.free_slots[r]
    return total


@jitable
def least_room(requests: Requests, out: Ints) -> int:
    """The room that the smallest unplaced request takes; more than any rank has: all are placed."""
    least = NO_LIMIT
    for i in range(len(out)):
        if out[i] == STAY:
            least = min(least, requests.reserve_tokens[i])
    return least


@jitable
def emptiest_rank(ranks: Ranks, reserve_tokens: int) -> int:
    """Most free slots, of equals the fewest tokens, among the ranks with so much room; -1: none."""
    best, slots, tokens = STAY, 0, NO_LIMIT
    for r in range(len(ranks.batch)):
        s, c = ranks.free_slots[r], ranks.context_tokens[r]
        if (s > slots or (s == slots and c < tokens)) and fits(ranks, r, reserve_tokens):
            best, slots, tokens = r, s, c
    return best


@jitable
def lightest_rank(outlook: Outlook, step: int, ranks: Ranks, reserve_tokens: int) -> int:
    """Least load at a step of the outlook, of equals the first, among the ranks with so much room; -1: none."""
    best, least = STAY, np.inf
    for r in range(len(ranks.batch)):
        if outlook.load[r, step] < least and fits(ranks, r, reserve_tokens):
            best, least = r, outlook.load[r, step]
    return best


@jitable
def one_at_a_time(outlook: Outlook, ranks: Ranks, requests: Requests, prices: Prices, out: Ints) -> None:
    """The first stage."""
    while free_slots(ranks) > AMPLE_SLOTS:
        rank = emptiest_rank(ranks, least_room(requests, out))
        if rank == STAY:
            return
        give(outlook, rank, ranks, requests, best_request(outlook, rank, ranks, requests, out), prices, out)

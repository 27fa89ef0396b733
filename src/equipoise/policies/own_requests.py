"""What a policy itself has running on each rank: what it placed, less what it was told has ended.

A running request grows by a token a step, so a count of steps for each instance gives the contexts. The count goes up
whenever the policy is asked at the instance's boundary; a request that ends says by its length how many steps it has
really been. The sums of the last steps are kept, to be held against reports that are as old.

Requests of others, and those that were aborted without a word, are not in it: see `equipoise.policies.picture`.
"""

from __future__ import annotations

from typing import NamedTuple

from equipoise._jit import jitable
from equipoise.types import Ints, Ints2D, Ranks, Requests

__all__ = [
    "HISTORY",
    "RECENT",
    "Own",
    "begin",
    "context_now",
    "forget",
    "own_of",
    "remember",
    "sent_tokens",
    "size",
    "stream_at",
    "tick",
]

HEADER = 8
RANKS, KNOWN, OFFERED, REPORTED = 0, 1, 2, 3
"""Positions in the header: ranks, room for known starts, requests offered so far, whether reports have lacked any."""
COLUMNS = 8
HISTORY = 64
"""Steps remembered."""
LAST_SENT = 16
"""Contexts remembered of the last requests sent to a rank."""
RECENT = 64
"""Contexts remembered of the last requests offered."""
STARTS_PER_RANK, MOST_STARTS = 256, 1 << 20


class Own(NamedTuple):
    """Views into ``memory.ints``; one entry a rank unless it says otherwise."""

    header: Ints
    instance: Ints
    """Instance, from 0."""
    clock: Ints
    """Steps, by instance."""
    batch: Ints
    context: Ints
    """Sum of the contexts at the start."""
    starts: Ints
    """Sum of the clocks at the start."""
    sent: Ints
    """Requests ever placed there."""
    others_batch: Ints
    """What others had running there when last looked at (`equipoise.policies.picture`) ..."""
    sent_since: Ints
    """... and what has been placed there since."""
    last_sent: Ints2D
    """int64[ranks, LAST_SENT], contexts."""
    past_batch: Ints2D
    """int64[HISTORY, ranks]: what was running at the last boundaries."""
    past_context: Ints2D
    recent: Ints
    """int64[RECENT], contexts of the last requests offered."""
    request: Ints
    """int64[known], number + 1 of a request whose start is known."""
    start: Ints
    """int64[known], its clock then."""


def starts(ranks: int) -> int:
    """Room for the starts of so many requests: a power of two."""
    room = 1
    while room < min(STARTS_PER_RANK * ranks, MOST_STARTS):
        room *= 2
    return room


def size(ranks: int) -> int:
    """How much of ``memory.ints`` it takes."""
    return HEADER + ranks * (COLUMNS + LAST_SENT + 2 * HISTORY) + RECENT + 2 * starts(ranks)


def begin(ints: Ints, ranks: int) -> None:
    """Note the shape."""
    ints[RANKS], ints[KNOWN] = ranks, starts(ranks)


@jitable
def stream_at(own: Own) -> int:
    """The position in ``memory.ints`` behind it."""
    n = own.header[RANKS]
    return HEADER + n * (COLUMNS + LAST_SENT + 2 * HISTORY) + RECENT + 2 * own.header[KNOWN]


@jitable
def own_of(ints: Ints) -> Own:
    """What stands at the beginning of ``memory.ints``."""
    n, known = ints[RANKS], ints[KNOWN]
    sizes = HEADER + COLUMNS * n
    batches = sizes + LAST_SENT * n
    contexts = batches + HISTORY * n
    recent = contexts + HISTORY * n
    request = recent + RECENT
    return Own(
        ints[:HEADER],
        ints[HEADER : HEADER + n],
        ints[HEADER + n : HEADER + 2 * n],
        ints[HEADER + 2 * n : HEADER + 3 * n],
        ints[HEADER + 3 * n : HEADER + 4 * n],
        ints[HEADER + 4 * n : HEADER + 5 * n],
        ints[HEADER + 5 * n : HEADER + 6 * n],
        ints[HEADER + 6 * n : HEADER + 7 * n],
        ints[HEADER + 7 * n : sizes],
        ints[sizes:batches].reshape((n, LAST_SENT)),
        ints[batches:contexts].reshape((HISTORY, n)),
        ints[contexts:recent].reshape((HISTORY, n)),
        ints[recent:request],
        ints[request : request + known],
        ints[request + known : request + 2 * known],
    )


@jitable
def context_now(own: Own, rank: int) -> int:
    """Tokens of the own requests of a rank."""
    return own.context[rank] + own.batch[rank] * own.clock[own.instance[rank]] - own.starts[rank]


@jitable
def tick(own: Own, ranks: Ranks) -> None:
    """A policy is asked: instances that are at their boundary have done a step; keep what runs there now."""
    first, last = ranks.instance.min(), -1
    for r in range(len(own.batch)):
        i = ranks.instance[r] - first
        own.instance[r] = i
        if i != last and ranks.starts_in_s[r] == 0.0:
            own.clock[i] += 1
        last = i
    if not own.header[REPORTED]:
        if ranks.unseen_requests.max() == 0:
            return
        own.header[REPORTED] = 1  # nothing older is known: what runs now stands for it
        for r in range(len(own.batch)):
            own.past_batch[:, r], own.past_context[:, r] = own.batch[r], context_now(own, r)
    for r in range(len(own.batch)):
        if ranks.starts_in_s[r] == 0.0:
            at = own.clock[own.instance[r]] % HISTORY
            own.past_batch[at, r], own.past_context[at, r] = own.batch[r], context_now(own, r)


@jitable
def remember(own: Own, ranks: Ranks, requests: Requests, i: int, rank: int) -> None:
    """A request has been placed; it starts a step later where its instance is in the middle of one."""
    tokens, request = requests.context_tokens[i], requests.request[i]
    begins = own.clock[own.instance[rank]] + (1 if ranks.starts_in_s[rank] > 0.0 else 0)
    at = request & (len(own.request) - 1)
    own.request[at], own.start[at] = request + 1, begins
    own.batch[rank] += 1
    own.context[rank] += tokens
    own.starts[rank] += begins
    own.last_sent[rank, own.sent[rank] % LAST_SENT] = tokens
    own.sent[rank] += 1
    own.sent_since[rank] += 1


@jitable
def forget(own: Own, request: int, rank: int, context_tokens: int, output_tokens: int) -> None:
    """A request has ended, and with it its last step; the boundary itself is counted when the policy is asked."""
    i, at = own.instance[rank], request & (len(own.request) - 1)
    start = own.clock[i] + 1 - output_tokens
    if own.request[at] == request + 1:
        start, own.request[at] = own.start[at], 0
        own.clock[i] = max(own.clock[i], start + output_tokens - 1)
    own.batch[rank] -= 1
    own.context[rank] -= context_tokens
    own.starts[rank] -= start


@jitable
def sent_tokens(own: Own, rank: int, count: int) -> int:
    """Contexts of the last `count` requests sent to a rank; beyond those remembered, at their mean."""
    known, total = min(count, LAST_SENT), 0
    for k in range(1, known + 1):
        total += own.last_sent[rank, (own.sent[rank] - k) % LAST_SENT]
    return total if known == count else total * count // known

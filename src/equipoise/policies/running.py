"""What a policy remembers of the requests it has placed: which run on a rank, and how long each has run.

A rank shows the sum of its contexts only. Every running request adds one token a step, so the steps it has taken
follow from that sum: where all its requests are known, contexts now = contexts at the start + sum of (clock - start
of each), which gives the *clock* of the rank, a count of steps from an origin of its own. Ages are differences of
clocks.

Requests that others placed, or that found no room in the table, have no age; on a rank that holds such requests the
clock stands still until they are gone. An abort, of which a policy is not told, shows as a table longer than the
batch: the oldest entries go.
"""

from __future__ import annotations

from typing import NamedTuple

from equipoise._jit import jitable
from equipoise.policies.api import PolicyContext
from equipoise.policies.prompts import most_ranks
from equipoise.types import Ints, Ints2D, Memory, Ranks

__all__ = ["Running", "begin", "behind", "enter", "leave", "memory_for", "running_of", "tick"]

RANKS, CAPACITY, HEADER = 0, 1, 2
"""Positions in memory.ints of the table's shape, and where the table begins."""
PER_RANK, PER_REQUEST = 4, 3
MOST_REQUESTS, LEAST_REQUESTS, MOST_ENTRIES = 1024, 64, 1 << 21


class Running(NamedTuple):
    """Views into ``memory.ints``."""

    entries: Ints
    """int64[ranks], how many requests are known."""
    contexts: Ints
    """int64[ranks], sum of their contexts at the start."""
    starts: Ints
    """int64[ranks], sum of their starts."""
    clock: Ints
    """int64[ranks], steps."""
    request: Ints2D
    """int64[ranks, capacity], number."""
    context: Ints2D
    """int64[ranks, capacity], context at the start, in tokens."""
    start: Ints2D
    """int64[ranks, capacity], the clock when it started."""


def memory_for(context: PolicyContext) -> int:
    """How much of ``memory.ints`` to give to a table: 1,024 requests a rank up to 2,048 ranks, fewer beyond."""
    ranks = most_ranks(context)
    entries = min(MOST_REQUESTS, MOST_ENTRIES // context.groups // ranks)
    return size_of(ranks, max(LEAST_REQUESTS, entries))


def begin(ints: Ints, ranks: int, size: int) -> None:
    """Note the shape of an empty table that is to take up to `size` of ``memory.ints``."""
    entries = ((size - HEADER) // ranks - PER_RANK) // PER_REQUEST
    ints[RANKS], ints[CAPACITY] = ranks, min(MOST_REQUESTS, entries)


@jitable
def size_of(ranks: int, capacity: int) -> int:
    """How much of ``memory.ints`` a table takes, its shape included."""
    return HEADER + ranks * (PER_RANK + PER_REQUEST * capacity)


@jitable
def behind(ints: Ints) -> int:
    """The position in ``memory.ints`` behind the table."""
    return size_of(ints[RANKS], ints[CAPACITY])


@jitable
def running_of(ints: Ints) -> Running:
    """The table that stands at the beginning of ``memory.ints``."""
    n, capacity = ints[RANKS], ints[CAPACITY]
    at = HEADER + PER_RANK * n
    size = n * capacity
    return Running(
        ints[HEADER : HEADER + n],
        ints[HEADER + n : HEADER + 2 * n],
        ints[HEADER + 2 * n : HEADER + 3 * n],
        ints[HEADER + 3 * n : at],
        ints[at : at + size].reshape((n, capacity)),
        ints[at + size : at + 2 * size].reshape((n, capacity)),
        ints[at + 2 * size : at + 3 * size].reshape((n, capacity)),
    )


@jitable
def remove(table: Running, r: int, k: int) -> None:
    """Take out an entry; the last one fills its place."""
    last = table.entries[r] - 1
    table.entries[r] = last
    table.contexts[r] -= table.context[r, k]
    table.starts[r] -= table.start[r, k]
    table.request[r, k] = table.request[r, last]
    table.context[r, k] = table.context[r, last]
    table.start[r, k] = table.start[r, last]


@jitable
def ages_known(table: Running, ranks: Ranks, r: int) -> bool:
    """Whether everything that runs on a rank is in the table."""
    return 0 < table.entries[r] == ranks.batch[r]


@jitable
def tick(table: Running, ranks: Ranks) -> None:
    """Bring the table up to date with what the ranks show."""
    for r in range(len(ranks.batch)):
        while table.entries[r] > ranks.batch[r]:
            oldest = 0
            for k in range(table.entries[r]):
                if table.start[r, k] < table.start[r, oldest]:
                    oldest = k
            remove(table, r, oldest)
        if ages_known(table, ranks, r):
            grown = ranks.context_tokens[r] - table.contexts[r] + table.starts[r]
            table.clock[r] = max(table.clock[r], grown // table.entries[r])


@jitable
def enter(table: Running, r: int, request: int, context_tokens: int, starts_in_s: float) -> None:
    """Note a request that has been placed; one that has to wait for its instance's boundary starts a step later."""
    k = table.entries[r]
    if k == table.request.shape[1]:
        return
    begins = table.clock[r] + (1 if starts_in_s > 0.0 else 0)
    table.entries[r] = k + 1
    table.contexts[r] += context_tokens
    table.starts[r] += begins
    table.request[r, k], table.context[r, k], table.start[r, k] = request, context_tokens, begins


@jitable
def leave(memory: Memory, request: int, r: int) -> None:
    """Strike out a request that has ended, if it is there."""
    table = running_of(memory.ints)
    for k in range(table.entries[r]):
        if table.request[r, k] == request:
            remove(table, r, k)
            return

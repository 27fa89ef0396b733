"""The loads of the ranks some steps ahead, each running request taken to end when the lengths seen so far say.

The binary projection of BalanceRoute's BR-H and of the released BF-IO code: a request adds its context to every step
before its predicted end, and nothing from then on.

``memory.ints`` holds `running`, then `survival`, then one number a rank: the context for which the row of that rank in
``memory.floats`` was made. A row is made anew when its rank shows another, when a request of it has ended and when the
lengths have been renewed, so the cost of a round follows the ranks that have stepped, not the pool.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import PolicyContext, learning
from equipoise.policies.overflow import Outlook
from equipoise.policies.prompts import most_ranks
from equipoise.policies.running import Running, begin, behind, enter, leave, memory_for, running_of, tick
from equipoise.policies.survival import CELLS, SIZE, cell_width, learn, lengths_known, renew, time_left
from equipoise.types import Floats, Floats2D, Ints, Memory, Ranks, Requests

__all__ = [
    "ANEW",
    "finished",
    "history_of",
    "look_ahead",
    "memory_with_rows",
    "note",
    "rows_of",
    "shown_of",
    "start",
]

ANEW = -1
"""No rank shows this context."""


def memory_with_rows(context: PolicyContext, steps: int) -> tuple[int, int]:
    """The table of running requests, the lengths of those that ended, and a row of so many steps for every rank."""
    ranks = most_ranks(context)
    return memory_for(context) + SIZE + ranks, ranks * steps


def start(memory: Memory, context: PolicyContext) -> None:
    """Note the shape of the table."""
    begin(memory.ints, context.ranks, memory_for(context))


@jitable
def history_of(ints: Ints) -> Ints:
    """The lengths of the requests that have ended: behind the table."""
    after = behind(ints)
    return ints[after : after + SIZE]


@jitable
def shown_of(ints: Ints, ranks: int) -> Ints:
    """The context for which each row was made: behind the lengths."""
    after = behind(ints) + SIZE
    return ints[after : after + ranks]


@jitable
def rows_of(floats: Floats, ranks: int, steps: int) -> Floats2D:
    """float64[ranks, steps], the loads."""
    return floats[: ranks * steps].reshape((ranks, steps))


@jitable
def project(table: Running, r: int, ranks: Ranks, left: Floats, width: int, growth: int, row: Floats) -> None:
    """Make the row of a rank."""
    steps = len(row)
    tokens_ending, requests_ending = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    for k in range(table.entries[r]):
        age = max(table.clock[r] - table.start[r, k], 0)
        end = int(np.ceil(left[min(age // width, CELLS - 1)]))
        if end < steps - 1:  # one that is expected to outlive the horizon stays to its end
            tokens_ending[end] += table.context[r, k] + age
            requests_ending[end] += 1
    tokens, growing = ranks.context_tokens[r], ranks.batch[r]
    for h in range(steps):
        tokens -= tokens_ending[h]
        growing -= requests_ending[h]
        row[h] = tokens + growth * h * growing


@jitable
def look_ahead(
    ranks: Ranks, memory: Memory, horizon: int, decay: float, penalty: float, growth: int
) -> Outlook:
    """The loads 0 to `horizon` steps ahead, weighted by powers of `decay`.

    ``growth`` 1 lets running requests grow by a token a step, 0 keeps them as they are.
    """
    n, steps = len(ranks.batch), horizon + 1
    table, history = running_of(memory.ints), history_of(memory.ints)
    shown, load = shown_of(memory.ints, n), rows_of(memory.floats, n, steps)
    tick(table, ranks)
    if renew(history):
        shown[:] = ANEW
    lengths = lengths_known(history)
    left = np.empty(CELLS)
    time_left(lengths, horizon, left)
    width = cell_width(lengths)
    envelope, weight = np.zeros(steps), np.ones(steps)
    for h in range(1, steps):
        weight[h] = weight[h - 1] * decay
    for r in range(n):
        if shown[r] != ranks.context_tokens[r]:
            project(table, r, ranks, left, width, growth, load[r])
            shown[r] = ranks.context_tokens[r]
        for h in range(steps):
            envelope[h] = max(envelope[h], load[r, h])
    return Outlook(load, envelope, weight, penalty)


@jitable
def note(ranks: Ranks, requests: Requests, memory: Memory, out: Ints) -> None:
    """Enter what a round has placed into the table; the rows of those ranks are to be made anew."""
    table, shown = running_of(memory.ints), shown_of(memory.ints, len(ranks.batch))
    for i in range(len(out)):
        r = out[i]
        if r >= 0:
            enter(table, r, requests.request[i], requests.context_tokens[i], ranks.starts_in_s[r])
            shown[r] = ANEW


@learning
def finished(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """A request that has ended leaves the table; its length is remembered."""
    leave(memory, request, rank)
    learn(history_of(memory.ints), output_tokens)
    shown_of(memory.ints, rank + 1)[rank] = ANEW

"""The loads of the ranks some steps ahead, each running request taken to end when the lengths seen so far say.

The binary projection of BalanceRoute's BR-H and of the released BF-IO code: a request adds its context to every step
before its predicted end, and nothing from then on. ``memory.ints`` holds `running`, then `survival`.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import PolicyContext, learning
from equipoise.policies.overflow import Outlook
from equipoise.policies.running import begin, behind, enter, leave, memory_for, running_of, tick
from equipoise.policies.survival import CELLS, SIZE, cell_width, learn, lengths_seen, time_left
from equipoise.types import Ints, Memory, Ranks, Requests

__all__ = ["finished", "history_of", "look_ahead", "memory_size", "note", "start"]


def memory_size(context: PolicyContext) -> tuple[int, int]:
    """The table of running requests, and the lengths of those that ended."""
    return memory_for(context) + SIZE, 0


def start(memory: Memory, context: PolicyContext) -> None:
    """Note the shape of the table."""
    begin(memory.ints, context.ranks, memory_for(context))


@jitable
def history_of(ints: Ints) -> Ints:
    """The lengths of the requests that have ended: behind the table."""
    after = behind(ints)
    return ints[after : after + SIZE]


@jitable
def look_ahead(
    ranks: Ranks, memory: Memory, horizon: int, decay: float, penalty: float, growth: int
) -> Outlook:
    """The loads 0 to `horizon` steps ahead, weighted by powers of `decay`.

    ``growth`` 1 lets running requests grow by a token a step, 0 keeps them as they are.
    """
    n, steps = len(ranks.batch), horizon + 1
    table = running_of(memory.ints)
    tick(table, ranks)
    lengths = lengths_seen(history_of(memory.ints))
    width = cell_width(lengths)
    left = np.empty(CELLS)
    time_left(lengths, horizon, left)
    load, envelope, weight = np.empty((n, steps)), np.zeros(steps), np.ones(steps)
    for h in range(1, steps):
        weight[h] = weight[h - 1] * decay
    tokens_ending, requests_ending = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
    for r in range(n):
        tokens_ending[:] = 0
        requests_ending[:] = 0
        for k in range(table.entries[r]):
            age = max(table.clock[r] - table.start[r, k], 0)
            end = int(np.ceil(left[min(age // width, CELLS - 1)]))
            if end < horizon:  # one that is expected to outlive the horizon stays to its end
                tokens_ending[end] += table.context[r, k] + age
                requests_ending[end] += 1
        tokens, growing = ranks.context_tokens[r], ranks.batch[r]
        for h in range(steps):
            tokens -= tokens_ending[h]
            growing -= requests_ending[h]
            load[r, h] = tokens + growth * h * growing
            envelope[h] = max(envelope[h], load[r, h])
    return Outlook(load, envelope, weight, penalty)


@jitable
def note(ranks: Ranks, requests: Requests, memory: Memory, out: Ints) -> None:
    """Enter what a round has placed into the table."""
    table = running_of(memory.ints)
    for i in range(len(out)):
        r = out[i]
        if r >= 0:
            enter(table, r, requests.request[i], requests.context_tokens[i], ranks.starts_in_s[r])


@learning
def finished(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """A request that has ended leaves the table; its length is remembered."""
    leave(memory, request, rank)
    learn(history_of(memory.ints), output_tokens)

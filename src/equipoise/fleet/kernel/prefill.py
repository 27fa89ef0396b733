"""The prefill pool: ranks with queues of prompts, computed in chunks, an instance's ranks in lock step."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.cost.prefill_evaluate import chunk_work
from equipoise.fleet.kernel.layout import COUNTS
from equipoise.fleet.kernel.lists import append, earliest, set_clock
from equipoise.fleet.kernel.state import IDLE, NOBODY, TALLY
from equipoise.fleet.kernel.world import life_in, prefill_in, state_in

__all__ = ["is_idle", "queue_prompt", "start_prefill"]


@jitable
def queue_prompt(world, request, tokens):  # type: ignore[no-untyped-def]
    """Give a prompt to the prefill rank with the fewest tokens still to compute."""
    state = state_in(world)
    best = earliest(state.backlogs)
    append(state.lists, state.requests, len(state.ranks) + best, request)
    state.requests[request].left = tokens
    state.prompts[best].backlog += tokens
    set_clock(state.backlogs, best, state.prompts[best].backlog)
    state.tally[TALLY.BACKLOG] += tokens
    state.tally[TALLY.PROMPTED] = 1


@jitable
def start_prefill(world, seconds_per_unit, instance, now, counts):  # type: ignore[no-untyped-def]
    """Start a step of a prefill instance: every rank takes prompt tokens in order, up to a chunk."""
    state, life, prefill = state_in(world), life_in(world), prefill_in(world)
    width = life.prefill_ranks
    waiting = 0
    for rank in range(instance * width, (instance + 1) * width):
        waiting += state.prompts[rank].backlog
    if waiting == 0:
        return
    terms = len(prefill.token)
    taken = 0
    for r in range(width):
        rank = instance * width + r
        for t in range(terms):
            state.pieces[t, r] = 0.0
        budget = life.chunk_tokens
        request = np.int64(state.lists[len(state.ranks) + rank].first)
        while budget > 0 and request != NOBODY:
            left = state.requests[request].left
            tokens = min(left, budget)
            offset = state.requests[request].size - left
            for t in range(terms):
                state.pieces[t, r] += chunk_work(prefill, t, offset, tokens)
            budget -= tokens
            request = np.int64(state.requests[request].following)
        state.prompts[rank].taken = life.chunk_tokens - budget
        taken += state.prompts[rank].taken
    price = prefill.constant
    if prefill.barrier_step:
        slowest = 0.0
        for r in range(width):
            own = 0.0
            for t in range(terms):
                own += state.pieces[t, r]
            slowest = max(slowest, own)
        price += slowest
    else:
        for t in range(terms):
            slowest = 0.0
            for r in range(width):
                slowest = max(slowest, state.pieces[t, r])
            price += slowest
    counts[COUNTS.PREFILL_STEPS] += 1
    counts[COUNTS.PREFILL_TOKENS] += taken
    set_clock(state.prefill_end_s, instance, now + price * seconds_per_unit)


@jitable
def is_idle(world, instance):  # type: ignore[no-untyped-def]
    """Whether a prefill instance runs no step."""
    state = state_in(world)
    return state.prefill_end_s[len(state.prefill_end_s) // 2 + instance] == IDLE

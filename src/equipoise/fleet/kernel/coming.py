"""Requests come: from the trace, from a conversation's last turn, from prefill, from a transfer."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.events import next_arrival_s
from equipoise.fleet.kernel.life import arrive, computed, join_routers
from equipoise.fleet.kernel.lists import earliest, pop, set_clock, take_first
from equipoise.fleet.kernel.prefill import is_idle, start_prefill
from equipoise.fleet.kernel.state import IDLE, TALLY
from equipoise.fleet.kernel.world import life_in, more_in, settings_in, state_in, work_in

__all__ = ["end_prefill", "let_come"]


@jitable
def end_prefill(world, now):  # type: ignore[no-untyped-def]
    """The prefill step that ends first has ended: prompts it has completed go on, and the next one starts."""
    life, state = life_in(world), state_in(world)
    i = earliest(state.prefill_end_s)
    set_clock(state.prefill_end_s, i, IDLE)
    for rank in range(i * life.prefill_ranks, (i + 1) * life.prefill_ranks):
        left = state.prompts[rank].taken
        state.prompts[rank].backlog -= left
        set_clock(state.backlogs, rank, state.prompts[rank].backlog)
        state.tally[TALLY.BACKLOG] -= left
        while left > 0:
            q = np.int64(state.lists[len(state.ranks) + rank].first)
            tokens = min(left, state.requests[q].left)
            state.requests[q].left -= tokens
            left -= tokens
            if state.requests[q].left == 0:
                take_first(state.lists, state.requests, len(state.ranks) + rank)
                computed(world, q, now, now, now)
    start_prefill(world, settings_in(world).seconds_per_unit, i, now, more_in(world).counts)


@jitable
def let_come(world, to_arrive, largest, now):  # type: ignore[no-untyped-def]
    """Let all requests that are due arrive, or join the routers' queue, in order of time.

    `to_arrive` rows arrive by themselves; `largest` is the most tokens that any rank can hold.
    """
    work, life, settings, state, more = (
        work_in(world),
        life_in(world),
        settings_in(world),
        state_in(world),
        more_in(world),
    )
    tally = state.tally
    while True:
        own_s, heap_s = next_arrival_s(world, to_arrive), IDLE
        if tally[TALLY.HEAP] > 0:
            heap_s = state.heap[0].time_s
        if min(own_s, heap_s) > now or (own_s == IDLE and heap_s == IDLE):
            break
        if own_s <= heap_s:
            q = np.int64(life.first_rows[tally[TALLY.ARRIVED_ROWS]])
            tally[TALLY.ARRIVED_ROWS] += 1
            state.requests[q].size = work.context_tokens[q]
            arrive(world, largest, q, own_s, now)
        else:
            entry = pop(state.heap, tally[TALLY.HEAP])
            tally[TALLY.HEAP] -= 1
            q = entry // 2
            if entry % 2:
                join_routers(world, q, heap_s, now)
            else:
                if more.tries[q] == 0:
                    state.requests[q].size = work.context_tokens[q]
                arrive(world, largest, q, heap_s, now)
    if settings.saturated:
        while (
            tally[TALLY.ARRIVED_ROWS] < to_arrive
            and tally[TALLY.IN_POOL] + tally[TALLY.WAITING] < settings.concurrency
        ):
            q = tally[TALLY.ARRIVED_ROWS]
            tally[TALLY.ARRIVED_ROWS] += 1
            state.requests[q].size = work.context_tokens[q]
            arrive(world, largest, q, now, now)
    if tally[TALLY.PROMPTED]:
        tally[TALLY.PROMPTED] = 0
        for j in range(life.prefill_instances):
            if is_idle(world, j):
                start_prefill(world, settings.seconds_per_unit, j, now, more.counts)

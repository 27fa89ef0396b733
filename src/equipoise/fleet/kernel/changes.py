"""Ranks that are drained, die and return."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.instances import set_end, set_up
from equipoise.fleet.kernel.layout import COUNTS, DIE, DRAIN, NOTICED, RESUME, RETURN
from equipoise.fleet.kernel.life import lose
from equipoise.fleet.kernel.lists import replica_of
from equipoise.fleet.kernel.pictures import count_own, forget, refresh_instance
from equipoise.fleet.kernel.rows import unqueue
from equipoise.fleet.kernel.state import IDLE, NOBODY, RUNNING, TALLY, USED, WHO
from equipoise.fleet.kernel.world import changes_in, life_in, more_in, settings_in, state_in, work_in

__all__ = ["change_pool", "die"]


@jitable
def die(world, instance, rank, now):  # type: ignore[no-untyped-def]
    """A rank goes down with all that is on it."""
    work, life, settings, state, more = (
        work_in(world),
        life_in(world),
        settings_in(world),
        state_in(world),
        more_in(world),
    )
    if not state.ranks[rank].up:
        return
    shift, count = life.block_shift, state.ranks[rank].rows
    for j in range(count):
        q = np.int64(state.row[WHO, rank, j])
        state.requests[q].size = state.row[USED, rank, j]
        more.counts[COUNTS.LOST_TOKENS] += state.row[USED, rank, j]
        forget(world, shift, replica_of(q, work.session, settings.replicas), rank, q)
        lose(world, q, now)
    state.ranks[rank].rows = state.ranks[rank].lacking = state.ranks[rank].unborn = 0
    state.ranks[rank].fresh = 0
    state.ranks[rank].context = state.ranks[rank].resident = state.ranks[rank].frozen = 0
    state.saturated[RUNNING, rank] = 0
    queued = state.ranks[rank].queued
    while state.lists[rank].first != NOBODY:
        q = unqueue(world, shift, rank)
        forget(world, shift, replica_of(q, work.session, settings.replicas), rank, q)
        lose(world, q, now)
    state.instances[instance].load -= count + queued
    state.tally[TALLY.IN_POOL] -= count + queued
    set_up(world, instance, rank, 0)


@jitable
def change_pool(world, width, reserve, now):  # type: ignore[no-untyped-def]
    """Carry out the next change; returns its instance."""
    work, life, changes, state = work_in(world), life_in(world), changes_in(world), state_in(world)
    c = state.tally[TALLY.NEXT_CHANGE]
    state.tally[TALLY.NEXT_CHANGE] += 1
    kind, instance = changes.kind[c], changes.instance[c]
    first, last = instance * width, (instance + 1) * width
    if changes.rank[c] >= 0:
        first += changes.rank[c]
        last = first + 1
    for rank in range(first, last):
        if kind == DIE:
            die(world, instance, rank, now)
        elif kind == RETURN:
            set_up(world, instance, rank, 1)
        elif kind == DRAIN + NOTICED or kind == DIE + NOTICED:
            state.ranks[rank].closed = 1
        elif kind == RESUME + NOTICED or kind == RETURN + NOTICED:
            state.ranks[rank].closed = 0
    if kind == DIE and state.instances[instance].alive == 0:  # its step, or stall, is void
        state.instances[instance].stalling = 0
        set_end(world, instance, IDLE)
    if changes.stall_s[c] > 0:
        end = state.end_s[len(state.end_s) // 2 + instance]
        if end == IDLE:
            state.instances[instance].stalling = 1
            set_end(world, instance, now + changes.stall_s[c])
        else:
            set_end(world, instance, end + changes.stall_s[c])
    count_own(world, work.session, life.block_shift, width, instance, now)
    refresh_instance(world, reserve, width, instance)
    return instance

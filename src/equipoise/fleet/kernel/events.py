"""What happens next, and what comes of waiting when nothing does."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.layout import FAILED, PREFILL_POOL
from equipoise.fleet.kernel.life import end_request
from equipoise.fleet.kernel.state import HELD, IDLE, NOBODY, TALLY
from equipoise.fleet.kernel.world import changes_in, life_in, out_in, settings_in, state_in, work_in
from equipoise.replay.layout import ENDED, ORDERLESS_ROUNDS, STUCK

__all__ = [
    "BOUNDARY",
    "CHANGE",
    "COMING",
    "NO_EVENT",
    "PREFILL_END",
    "next_arrival_s",
    "next_event",
    "wait_in_vain",
]

NO_EVENT, CHANGE, BOUNDARY, PREFILL_END, COMING = 0, 1, 2, 3, 4


@jitable
def next_arrival_s(world, to_arrive):  # type: ignore[no-untyped-def]
    """When the next of the `to_arrive` rows that arrive by themselves does; infinity: none is left."""
    settings, tally = settings_in(world), state_in(world).tally
    if settings.saturated or tally[TALLY.ARRIVED_ROWS] >= to_arrive:
        return IDLE
    return work_in(world).arrival_s[life_in(world).first_rows[tally[TALLY.ARRIVED_ROWS]]]


@jitable
def next_event(world, to_arrive):  # type: ignore[no-untyped-def]
    """Kind and time of the next event; of several at one time, the first in the order of their numbers.

    A request that comes is one only while somebody stands ready for it.
    """
    state, changes = state_in(world), changes_in(world)
    tally = state.tally
    kind, at = NO_EVENT, IDLE
    if tally[TALLY.NEXT_CHANGE] < len(changes.time_s):
        kind, at = CHANGE, changes.time_s[tally[TALLY.NEXT_CHANGE]]
    if state.end_s[1] < at:
        kind, at = BOUNDARY, state.end_s[1]
    if state.prefill_end_s[1] < at:
        kind, at = PREFILL_END, state.prefill_end_s[1]
    if life_in(world).prefill == PREFILL_POOL or tally[TALLY.READY] > 0 or state.end_s[1] == IDLE:
        coming = next_arrival_s(world, to_arrive)
        if coming < at:
            kind, at = COMING, coming
        if tally[TALLY.HEAP] > 0 and state.heap[0].time_s < at:
            kind, at = COMING, state.heap[0].time_s
    return kind, at


@jitable
def wait_in_vain(world, now):  # type: ignore[no-untyped-def]
    """Nothing is going to happen, and requests wait: where no rank is open they fail, else a policy is asked again.

    Returns whether it has been asked too often.
    """
    state, ended = state_in(world), out_in(world).ended
    tally = state.tally
    is_open = 0
    for r in range(len(state.ranks)):
        is_open += state.ranks[r].up == 1 and state.ranks[r].closed == 0
    if is_open == 0 and tally[TALLY.WAITING] > 0:
        for j in range(tally[TALLY.HELD]):
            end_request(world, state.round[HELD, j], FAILED, now)
        tally[TALLY.HELD] = 0
        q = tally[TALLY.QUEUE_FIRST]
        while q != NOBODY:
            after = np.int64(state.requests[q].following)
            end_request(world, q, FAILED, now)
            q = after
        tally[TALLY.QUEUE_FIRST] = tally[TALLY.QUEUE_LAST] = NOBODY
        tally[TALLY.WAITING] = 0
    else:
        tally[TALLY.IDLE_ROUNDS] += 1
    if tally[TALLY.IDLE_ROUNDS] > ORDERLESS_ROUNDS:
        oldest = state.round[HELD, 0] if tally[TALLY.HELD] > 0 else tally[TALLY.QUEUE_FIRST]
        ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST] = STUCK, oldest
        return True
    return False

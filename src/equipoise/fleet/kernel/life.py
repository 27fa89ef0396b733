"""The way of a request: it arrives, its prompt is computed, it joins the routers' queue, it is lost, it ends."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.layout import (
    ABORTED,
    COUNTS,
    DELAYED,
    DROPPED,
    FAILED,
    FINISHED,
    ON_RANKS,
    PREFILL_POOL,
    REJECTED,
)
from equipoise.fleet.kernel.lists import one_of, push
from equipoise.fleet.kernel.pictures import held_tokens
from equipoise.fleet.kernel.prefill import queue_prompt
from equipoise.fleet.kernel.state import NOBODY, TALLY
from equipoise.fleet.kernel.world import changes_in, life_in, more_in, out_in, settings_in, state_in, work_in
from equipoise.replay.layout import ENDED

__all__ = ["arrive", "come_later", "computed", "end_request", "join_routers", "lose"]


@jitable
def come_later(world, time, request, to_router):  # type: ignore[no-untyped-def]
    """Enter a request into the heap of those on their way."""
    state = state_in(world)
    tally = state.tally
    push(
        state.heap, tally[TALLY.HEAP], time, tally[TALLY.INSERTED],
        2 * request + to_router,
    )  # fmt: skip
    tally[TALLY.HEAP] += 1
    tally[TALLY.INSERTED] += 1


@jitable
def end_request(world, request, status, now):  # type: ignore[no-untyped-def]
    """A request ends: what becomes of it, and of its conversation."""
    work, life, settings, state, out, more = (
        work_in(world),
        life_in(world),
        settings_in(world),
        state_in(world),
        out_in(world),
        more_in(world),
    )
    more.status[request] = status
    if settings.keep_requests:
        more.ended_s[request] = now
        more.tokens[request] = state.requests[request].size - work.context_tokens[request]
    if status == FINISHED:
        out.ended[ENDED.FINISHED] += 1
        out.ended[ENDED.FINISHED_TOKENS] += work.output_tokens[request]
        if settings.keep_requests:
            out.finish_s[request] = now
    elif status == REJECTED:
        out.ended[ENDED.REJECTED] += 1
        more.counts[COUNTS.REJECTED] += 1
    elif status == ABORTED:
        more.counts[COUNTS.ABORTED] += 1
    else:
        more.counts[COUNTS.FAILED] += 1
    if life.sessions:
        following = np.int64(life.next_turn[request])
        if following != NOBODY and (status in (FINISHED, ABORTED)):
            come_later(world, now + life.think_s[following], following, 0)
        elif status in (REJECTED, FAILED):
            while following != NOBODY:
                more.status[following] = DROPPED
                more.counts[COUNTS.DROPPED] += 1
                if settings.keep_requests:
                    more.ended_s[following] = now
                following = np.int64(life.next_turn[following])


@jitable
def join_routers(world, request, time, now):  # type: ignore[no-untyped-def]
    """A request joins the routers' queue, unless nothing will ever serve it."""
    settings, changes, state, more = settings_in(world), changes_in(world), state_in(world), more_in(world)
    tally = state.tally
    if settings.keep_requests:
        more.queued_s[request] = time
    if tally[TALLY.UP] == 0 and tally[TALLY.NEXT_CHANGE] == len(changes.time_s):
        end_request(world, request, FAILED, now)
        return
    state.requests[request].joined_s = time
    state.requests[request].following = NOBODY
    if tally[TALLY.QUEUE_FIRST] == NOBODY:
        tally[TALLY.QUEUE_FIRST] = request
    else:
        state.requests[tally[TALLY.QUEUE_LAST]].following = request
    tally[TALLY.QUEUE_LAST] = request
    tally[TALLY.WAITING] += 1
    more.counts[COUNTS.PEAK_QUEUED] = max(more.counts[COUNTS.PEAK_QUEUED], tally[TALLY.WAITING])


@jitable
def computed(world, request, at, time, now):  # type: ignore[no-untyped-def]
    """A request's prompt is computed (or need not be): its cache travels, and it joins the routers' queue.

    Only what is there at the moment `at` of the event itself joins at once: what gets ready later, if before `now`,
    takes its turn among all that comes.
    """
    life, settings, state = life_in(world), settings_in(world), state_in(world)
    ready = time + (life.transfer_s + state.requests[request].size * life.transfer_s_per_token)
    if ready <= at or settings.saturated:
        join_routers(world, request, ready, now)
    else:
        come_later(world, ready, request, 1)


@jitable
def arrive(world, largest, request, time, now):  # type: ignore[no-untyped-def]
    """A request arrives, for the first time or once more after it was lost."""
    life, settings, state, out, more = (
        life_in(world),
        settings_in(world),
        state_in(world),
        out_in(world),
        more_in(world),
    )
    if settings.keep_requests and np.isnan(more.came_s[request]):
        more.came_s[request] = time
    first_time = more.tries[request] == 0
    out.ended[ENDED.ARRIVED] += first_time
    if held_tokens(state.requests[request].size, life.block_shift) > largest:
        end_request(world, request, REJECTED, now)
        return
    missing = state.requests[request].size - (one_of(life.cached_tokens, request) if first_time else 0)
    missing = max(0, missing)
    if life.prefill == PREFILL_POOL and missing > 0:
        queue_prompt(world, request, missing)
        return
    at = time
    if life.prefill == DELAYED:
        time += life.prefill_s + missing * life.prefill_s_per_token
    elif life.prefill == ON_RANKS:
        state.requests[request].owed = missing
    computed(world, request, at, time, now)


@jitable
def lose(world, request, now):  # type: ignore[no-untyped-def]
    """A request is lost with its rank: it arrives once more, or has been lost too often."""
    life, state, more = life_in(world), state_in(world), more_in(world)
    state.requests[request].owed = 0
    more.tries[request] += 1
    more.counts[COUNTS.LOST] += 1
    if more.tries[request] > life.most_tries:
        end_request(world, request, FAILED, now)
    else:
        come_later(world, now + life.retry_s, request, 0)

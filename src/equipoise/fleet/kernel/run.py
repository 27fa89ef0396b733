"""The fleet kernel: a whole decode pool, from arrival to the last token, driven by a trace, a policy and a step cost.

Where `equipoise.replay` prices what a policy decides, this kernel also lives through what a deployed pool does to it:
prompts to compute, caches to move, engine queues, memory that fills up, clients that leave, ranks that die, reports
that are late. `equipoise.fleet.twin` is the slow, obvious twin: same results, bit for bit.

Rules, in the order of one event (a change of the pool, an instance at its step boundary, the end of a prefill step, or
a request that comes while an instance is idle; ties in this order, then lowest instance first):

1. The event itself: the step that ends gives every request it ran its tokens; ranks go down or come back.
2. Requests that have come are sent to prefill, or join the routers' queue.
3. Reports that are due come in.
4. Rounds of placement: what a policy places joins the engine queue of its rank.
5. Instances at a boundary with work start a step: the engine makes room for what grows, or preempts; it admits from its
   queues; the step is priced; its end is its start plus that price.

With everything switched off and one instance this is `equipoise.replay`, bit for bit.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import types

from equipoise._jit import (
    FINISHED as FINISHED_SIGNATURE,
)
from equipoise._jit import (
    FLOATS,
    PLACE,
    PRICES,
    REQUESTS,
    address,
    borrowed,
    compiled,
    jitable,
    numba_type,
    shortened,
)
from equipoise.cost.prefill import PrefillPrices
from equipoise.fleet.kernel.layout import (
    ABORTED,
    BY_INSTANCE,
    COUNTS,
    DELAYED,
    DIE,
    DRAIN,
    DROPPED,
    FAILED,
    FINISHED,
    NO_PREEMPTION,
    NOTICED,
    ON_RANKS,
    PREFILL_POOL,
    RECOMPUTE,
    REJECTED,
    RESUME,
    RETURN,
    TOO_MANY,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    Life,
    Ranked,
)
from equipoise.fleet.kernel.lists import append, earliest, pop, push, put_first, set_clock, take_first
from equipoise.fleet.kernel.pictures import (
    count_dispatch,
    count_own,
    deliver,
    forget,
    held_tokens,
    learn_pace,
    next_delivery_s,
    publish,
    refresh,
    refresh_instance,
    view_of,
)
from equipoise.fleet.kernel.prefill import is_idle, queue_prompt, start_prefill
from equipoise.fleet.kernel.price import price_step
from equipoise.fleet.kernel.routers import Pictures
from equipoise.fleet.kernel.rows import add_up, compute_prompts, drop_row, growth, needed, take_row
from equipoise.fleet.kernel.state import (
    AT,
    BATCH,
    CHOSEN,
    CONTEXT,
    HELD,
    IDLE,
    LACK,
    NOBODY,
    OFFERED,
    PADDED,
    QUERIES,
    QUEUED,
    READ,
    RUNNING,
    TALLY,
    TURN,
    UNTIL,
    USED,
    WHO,
    FleetState,
)
from equipoise.fleet.kernel.world import (
    World,
    changes_in,
    draws_in,
    extras_in,
    life_in,
    more_in,
    out_in,
    prefill_in,
    prices_in,
    ranked_in,
    settings_in,
    state_in,
    work_in,
)
from equipoise.policies.api import fits
from equipoise.policies.groups import choose_groups, place_in_groups
from equipoise.policies.views import slice_ranks, take_requests
from equipoise.replay.keeping import next_row, take_snapshot
from equipoise.replay.kernel import sort_ascending
from equipoise.replay.knowledge import replica_of
from equipoise.replay.layout import (
    BAD_RANK,
    ENDED,
    EXACT,
    EXTRAPOLATED,
    MAX_ROUND,
    NO_ROOM,
    ORDERLESS_ROUNDS,
    SERIES,
    STUCK,
    TOTALS,
    Outcome,
    PoolLayout,
    Settings,
    Work,
)
from equipoise.types import Floats2D, Ints2D, Memory

__all__ = ["fleet_run"]

NO_EVENT, CHANGE, BOUNDARY, PREFILL_END, COMING = 0, 1, 2, 3, 4
RING_MASK = (1 << 16) - 1


@jitable
def one_of(column, request):  # type: ignore[no-untyped-def]
    """Entry of a request in a column that may hold one entry for all."""
    return column[request if len(column) > 1 else 0]


@jitable
def set_end(world, instance, end_s):  # type: ignore[no-untyped-def]
    """Set the end of an instance's step, and keep count of those that are ready."""
    state = state_in(world)
    leaf = len(state.end_s) // 2 + instance
    up = state.instances[instance].alive > 0
    state.tally[TALLY.READY] += (end_s == IDLE and up) - (state.end_s[leaf] == IDLE and up)
    set_clock(state.end_s, instance, end_s)


@jitable
def set_up(world, instance, rank, up):  # type: ignore[no-untyped-def]
    """Take a rank up or down."""
    state = state_in(world)
    if state.ranks[rank].up == up:
        return
    idle = state.end_s[len(state.end_s) // 2 + instance] == IDLE
    before = state.instances[instance].alive > 0
    state.ranks[rank].up = up
    change = 1 if up else -1
    state.instances[instance].alive += change
    state.tally[TALLY.UP] += change
    state.tally[TALLY.READY] += (idle and state.instances[instance].alive > 0) - (idle and before)


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
def computed(world, request, time, now):  # type: ignore[no-untyped-def]
    """A request's prompt is computed (or need not be): its cache travels, and it joins the routers' queue."""
    life, settings, state = life_in(world), settings_in(world), state_in(world)
    ready = time + (life.transfer_s + state.requests[request].size * life.transfer_s_per_token)
    if ready <= now or settings.saturated:
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
    if life.prefill == DELAYED:
        time += life.prefill_s + missing * life.prefill_s_per_token
    elif life.prefill == ON_RANKS:
        state.requests[request].owed = missing
    computed(world, request, time, now)


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


@jitable
def unqueue(world, shift, rank):  # type: ignore[no-untyped-def]
    """Take the first request from an engine queue."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    q = take_first(state.lists, state.requests, rank)
    size = state.requests[q].size
    state.ranks[rank].queued -= 1
    state.ranks[rank].queued_context -= size
    state.ranks[rank].queued_resident -= held_tokens(size, shift)
    for s in range(len(lengths)):
        state.saturated[QUEUED, rank, s] -= min(size, lengths[s])
    return q


@jitable
def count_queued(world, shift, rank, request):  # type: ignore[no-untyped-def]
    """Count a request into an engine queue that it has joined."""
    state = state_in(world)
    lengths = prices_in(world).saturation_tokens
    size = state.requests[request].size
    state.ranks[rank].queued += 1
    state.ranks[rank].queued_context += size
    state.ranks[rank].queued_resident += held_tokens(size, shift)
    for s in range(len(lengths)):
        state.saturated[QUEUED, rank, s] += min(size, lengths[s])


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


SIGNATURE = types.void(
    numba_type(Work),
    numba_type(PoolLayout),
    numba_type(Settings),
    numba_type(Life),
    numba_type(Ranked),
    numba_type(Extras),
    numba_type(Draws),
    numba_type(Changes),
    PRICES,
    numba_type(PrefillPrices),
    types.FunctionType(PLACE),
    types.FunctionType(FINISHED_SIGNATURE),
    FLOATS,
    numba_type(Ints2D),
    numba_type(Floats2D),
    numba_type(FleetState),
    numba_type(Pictures),
    REQUESTS,
    numba_type(Outcome),
    numba_type(FleetOutcome),
)


@jitable
def end_step(world, width, instance, now, told):  # type: ignore[no-untyped-def]
    """The step of an instance ends: its rows get their tokens, and those that have all leave.

    Returns how many of `told` were filled: the requests that finished, for policies that learn.
    """
    work, life, settings, draws, state, out, more = (
        work_in(world),
        life_in(world),
        settings_in(world),
        draws_in(world),
        state_in(world),
        out_in(world),
        more_in(world),
    )
    speculative, shift = len(draws.drafts) > 0, life.block_shift
    simple = shift == 0 and len(prices_in(world).saturation_tokens) == 0
    count_told, tokens = 0, 0
    for rank in range(instance * width, (instance + 1) * width):
        rows = state.ranks[rank].rows
        if rows == 0:
            continue
        used, until, lack = state.row[USED, rank], state.row[UNTIL, rank], state.row[LACK, rank]
        done = 0
        if state.ranks[rank].lacking == 0 and not speculative:
            for j in range(rows):
                used[j] += 1
            for j in range(rows):
                done += used[j] == until[j]
            state.ranks[rank].context += rows
            tokens += rows
            if settings.keep_requests and state.ranks[rank].unborn > 0:
                for j in range(rows):
                    q = np.int64(state.row[WHO, rank, j])
                    if np.isnan(more.first_s[q]):
                        more.first_s[q] = now
                state.ranks[rank].unborn = 0
        else:
            for j in range(rows):
                if lack[j] == 0:
                    grown = growth(world, rank, j)
                    used[j] += grown
                    if speculative:
                        state.row[AT, rank, j] += 1
                    state.ranks[rank].context += grown
                    tokens += grown
                    done += used[j] == until[j]
                    if settings.keep_requests and np.isnan(more.first_s[state.row[WHO, rank, j]]):
                        more.first_s[state.row[WHO, rank, j]] = now
                        state.ranks[rank].unborn -= 1
                elif lack[j] < 0:
                    lack[j] = 0
                    state.ranks[rank].lacking -= 1
        if done > 0:
            kept = 0
            for j in range(rows):
                q = np.int64(state.row[WHO, rank, j])
                if lack[j] == 0 and used[j] == until[j]:
                    whole = until[j] - work.context_tokens[q] == work.output_tokens[q]
                    k = replica_of(q, work.session, settings.replicas)
                    forget(world, shift, k, rank, q)
                    state.ranks[rank].context -= used[j]
                    if whole and settings.knows == EXTRAPOLATED:
                        learn_pace(world, instance, out.start_s[q], now, work.output_tokens[q])
                    state.requests[q].size = used[j]
                    if whole and settings.tells_finished:
                        told[count_told] = q
                        count_told += 1
                    status = FINISHED if whole else ABORTED
                    end_request(world, q, status, now)
                    continue
                if kept < j:
                    state.row[WHO, rank, kept] = q
                    used[kept], until[kept], lack[kept] = used[j], until[j], lack[j]
                    if speculative:
                        state.row[AT, rank, kept] = state.row[AT, rank, j]
                kept += 1
            state.ranks[rank].rows = kept
            state.instances[instance].load -= rows - kept
            state.tally[TALLY.IN_POOL] -= rows - kept
        if simple:
            state.ranks[rank].resident = state.ranks[rank].context
        else:
            add_up(world, shift, rank)
    out.ended[ENDED.TOKENS] += tokens
    return count_told


@jitable
def make_room(world, instance, rank, now):  # type: ignore[no-untyped-def]
    """Make room for what the rows of a rank grow by, preempting the last.

    Returns the KV needed.
    """
    life, settings, ranked, state, more = (
        life_in(world),
        settings_in(world),
        ranked_in(world),
        state_in(world),
        more_in(world),
    )
    shift = life.block_shift
    capacity = ranked.kv_capacity_tokens[rank]
    total = needed(world, shift, rank)
    preempted = False
    while total > capacity:
        row = state.ranks[rank].rows - 1
        lack = state.row[LACK, rank, row]
        grown = 0 if lack > 0 else growth(world, rank, row)
        total -= held_tokens(state.row[USED, rank, row] + grown, shift)
        q = drop_row(world, shift, rank)
        if settings.keep_requests and np.isnan(more.first_s[q]):
            state.ranks[rank].unborn -= 1
        if row == 0:
            outgrown(world, instance, rank, q, now)
            break
        more.counts[COUNTS.PREEMPTIONS] += 1
        if settings.keep_requests:
            more.preemptions[q] += 1
        if life.preemption == RECOMPUTE:
            state.requests[q].owed = state.requests[q].size
            more.counts[COUNTS.RECOMPUTED_TOKENS] += state.requests[q].size
        else:
            state.requests[q].owed = -1 - max(0, lack)
            more.counts[COUNTS.SWAPPED_TOKENS] += state.requests[q].size
            state.tally[TALLY.SWAPPED] += state.requests[q].size
        put_first(state.lists, state.requests, rank, q)
        count_queued(world, shift, rank, q)
        preempted = True
    if preempted:
        state.ranks[rank].frozen = life.freeze_steps
    return total


@jitable
def outgrown(world, instance, rank, request, now):  # type: ignore[no-untyped-def]
    """A request that a whole rank cannot hold fails."""
    work, life, settings, state, more = (
        work_in(world),
        life_in(world),
        settings_in(world),
        state_in(world),
        more_in(world),
    )
    more.counts[COUNTS.OUTGROWN] += 1
    state.instances[instance].load -= 1
    state.tally[TALLY.IN_POOL] -= 1
    replica = replica_of(request, work.session, settings.replicas)
    forget(world, life.block_shift, replica, rank, request)
    end_request(world, request, FAILED, now)


@jitable
def admit(world, instance, rank, total, bound, most_growth, now):  # type: ignore[no-untyped-def]
    """Admit from the engine queue of a rank what has room; returns an error code.

    `total` is the KV needed by its rows; if that is an upper `bound`, it is made exact before anything is refused.
    """
    work, life, settings, ranked, draws, state, out, more = (
        work_in(world),
        life_in(world),
        settings_in(world),
        ranked_in(world),
        draws_in(world),
        state_in(world),
        out_in(world),
        more_in(world),
    )
    shift, capacity = life.block_shift, ranked.kv_capacity_tokens[rank]
    if state.ranks[rank].frozen > 0:
        state.ranks[rank].frozen -= 1
        more.counts[COUNTS.FROZEN_RANK_STEPS] += state.lists[rank].first != NOBODY
        return 0
    speculative = len(draws.drafts) > 0
    while state.lists[rank].first != NOBODY and state.ranks[rank].rows < ranked.max_batch[rank]:
        q = np.int64(state.lists[rank].first)
        size = np.int64(state.requests[q].size)
        until = work.context_tokens[q] + min(work.output_tokens[q], one_of(life.leaves_after, q))
        grown = 0
        owed = np.int64(state.requests[q].owed)
        lack = owed if owed >= 0 else -1 - owed
        if life.preemption != NO_PREEMPTION and lack == 0:
            grown = 1
            if speculative:
                place = draws.phase[q] + size - work.context_tokens[q]
                accepted = min(one_of(draws.drafts, q), draws.accepted[place & RING_MASK])
                grown = min(1 + accepted, until - size)
        wanted = held_tokens(size + grown, shift)
        if total + wanted > capacity and bound:
            total, bound = needed(world, shift, rank), False
        if total + wanted > capacity:
            if state.ranks[rank].rows == 0:  # it never will
                unqueue(world, shift, rank)
                outgrown(world, instance, rank, q, now)
                continue
            break
        if state.ranks[rank].rows == ranked.rows:
            out.ended[ENDED.ERROR_REQUEST], out.ended[ENDED.ERROR_RANK] = q, rank
            return TOO_MANY
        unqueue(world, shift, rank)
        if owed < 0:
            more.counts[COUNTS.SWAPPED_TOKENS] += size
            state.tally[TALLY.SWAPPED] += size
        state.requests[q].owed = 0
        if speculative:
            state.row[AT, rank, state.ranks[rank].rows] = draws.phase[q] + size - work.context_tokens[q]
        take_row(world, shift, rank, q, until, lack)
        total += held_tokens(size + most_growth, shift) if bound else wanted
        if settings.keep_requests:
            state.ranks[rank].unborn += np.isnan(more.first_s[q])
            if np.isnan(out.start_s[q]):
                out.start_s[q] = now
    return 0


@jitable
def load_step(world, instance, width, counts):  # type: ignore[no-untyped-def]
    """Fill B, Q, C and K of the step that an instance starts.

    Returns the tokens it will yield, and whether any rank computes prompts in it.
    """
    life, draws, extras, prefill, state = (
        life_in(world),
        draws_in(world),
        extras_in(world),
        prefill_in(world),
        state_in(world),
    )
    lengths = prices_in(world).saturation_tokens
    speculative = len(draws.drafts) > 0
    tokens, mixed = 0, False
    for r in range(width):
        rank = instance * width + r
        rows = state.ranks[rank].rows
        for t in range(len(prefill.token)):
            state.pieces[t, r] = 0.0
        if state.ranks[rank].lacking == 0 and not speculative:
            state.step[BATCH, r] = state.step[QUERIES, r] = rows
            state.step[CONTEXT, r] = state.step[READ, r] = state.ranks[rank].context
            tokens += rows
            for s in range(len(lengths)):
                state.step_k[0, r, s] = state.step_k[1, r, s] = state.saturated[RUNNING, rank, s]
            continue
        batch, queries, context, again = 0, 0, 0, 0
        used, lack = state.row[USED, rank], state.row[LACK, rank]
        for j in range(rows):
            if lack[j] != 0:
                continue
            drafts = one_of(draws.drafts, state.row[WHO, rank, j]) if speculative else 0
            batch += 1
            queries += 1 + drafts
            context += used[j]
            again += drafts * used[j]
            tokens += growth(world, rank, j)
        state.step[BATCH, r], state.step[QUERIES, r], state.step[CONTEXT, r] = batch, queries, context
        state.step[READ, r] = context + int(math.floor(extras.query_reads * again))
        for s in range(len(lengths)):
            total, more = 0, 0
            for j in range(rows):
                if lack[j] == 0:
                    drafts = one_of(draws.drafts, state.row[WHO, rank, j]) if speculative else 0
                    kept = min(used[j], lengths[s])
                    total += kept
                    more += drafts * kept
            state.step_k[0, r, s] = total
            state.step_k[1, r, s] = total + int(math.floor(extras.query_reads * more))
        if state.ranks[rank].lacking > 0:
            computed_tokens = compute_prompts(world, life.chunk_tokens, rank, r)
            counts[COUNTS.MIXED_TOKENS] += computed_tokens
            mixed |= computed_tokens > 0
    counts[COUNTS.MIXED_STEPS] += mixed
    return tokens, mixed


@jitable
def place_by_owner(
    view, exact, requests, prices, bounds, by_tokens, place, params, ints, floats, replicas, out
):  # type: ignore[no-untyped-def]
    """Choose an instance for each request on a replica's own picture; its owner, on the exact one, chooses the rank."""
    group_of = np.empty(len(out), np.int64)
    choose_groups(view, requests, bounds, by_tokens, group_of)
    instances = len(bounds) - 1
    for g in range(instances):
        members = np.flatnonzero(group_of == g)
        if len(members) == 0:
            continue
        first, last = bounds[g], bounds[g + 1]
        part = np.full(len(members), -1, np.int64)
        own = (g % replicas) * instances + g
        asked = take_requests(requests, members)
        place(slice_ranks(exact, first, last), asked, prices, params, Memory(ints[own], floats[own]), part)
        for j in range(len(members)):
            inside = 0 <= part[j] < last - first
            outside = len(view.batch) if part[j] >= 0 else part[j]
            out[members[j]] = part[j] + first if inside else outside


def _kernel() -> Any:
    def run(  # type: ignore[no-untyped-def]
        work, pool, settings, life, ranked, extras, draws, changes, prices, prefill, place, finished, params,
        memory_ints, memory_floats, state, seen, asked, out, more,
    ):  # fmt: skip
        """Run a trace through a fleet and fill ``out`` and ``more``.

        Parameters
        ----------
        work, pool, settings, life, ranked, extras, draws, changes
            The run, see `equipoise.fleet.kernel.layout` and `equipoise.replay.layout`.
        prices : Prices
        prefill : PrefillPrices
            In the unit of ``prices``.
        place, finished : function
            The policy, and what it learns.
        params : float64[...]
        memory_ints, memory_floats : [replicas * groups, ...]
        state : FleetState
        seen : Pictures
        asked : Requests
            Room for a round.
        out : Outcome
        more : FleetOutcome
        """
        work, pool, life, ranked, extras = (
            borrowed(work), borrowed(pool), borrowed(life), borrowed(ranked), borrowed(extras)
        )  # fmt: skip
        draws, changes, prices, prefill = (
            borrowed(draws), borrowed(changes), borrowed(prices), borrowed(prefill)
        )  # fmt: skip
        params, memory_ints, memory_floats = borrowed(params), borrowed(memory_ints), borrowed(memory_floats)
        state, seen, asked = borrowed(state), borrowed(seen), borrowed(asked)
        out, more = borrowed(out), borrowed(more)
        world = address(
            World(
                work,
                pool,
                settings,
                life,
                ranked,
                extras,
                draws,
                changes,
                prices,
                prefill,
                state,
                seen,
                out,
                more,
            )
        )
        instances, width = pool.instances, pool.ranks_per_instance
        ranks, n = instances * width, len(work.context_tokens)
        shift, reserve = life.block_shift, pool.growth_reserve_tokens
        lengths = prices.saturation_tokens
        totals, ended, series, tally = out.totals, out.ended, out.series, state.tally
        ended[ENDED.SERIES_STEPS] = 1
        most_growth = 1
        for j in range(len(draws.drafts)):
            most_growth = max(most_growth, 1 + draws.drafts[j])
        most_held = held_tokens(most_growth, shift)
        largest = 0
        for r in range(ranks):
            largest = max(largest, ranked.kv_capacity_tokens[r] - reserve)
        told_reports = settings.knows != EXACT
        exact = len(seen.own)  # number of the exact view, where there is one
        shares = life.split == BY_INSTANCE
        groups = len(state.bounds) - 1
        to_arrive = n if settings.saturated else len(life.first_rows)
        for p in range(instances):
            refresh_instance(world, reserve, width, p)
        leaf = len(state.end_s) // 2
        first_view = view_of(world, 0)
        last_view = view_of(world, seen.shown.shape[1] - 1)
        memory = Memory(memory_ints[0], memory_floats[0])
        told = np.empty(ranked.rows * width if settings.tells_finished else 0, np.int64)
        started, boundaries, idle_rounds = 0, 0, 0
        counting = False
        now = 0.0
        while True:
            # Which event is next.
            kind, at = NO_EVENT, IDLE
            if tally[TALLY.NEXT_CHANGE] < len(changes.time_s):
                at = changes.time_s[tally[TALLY.NEXT_CHANGE]]
                kind = CHANGE
            if state.end_s[1] < at:
                at, kind = state.end_s[1], BOUNDARY
            if state.prefill_end_s[1] < at:
                at, kind = state.prefill_end_s[1], PREFILL_END
            if life.prefill == PREFILL_POOL or tally[TALLY.READY] > 0 or state.end_s[1] == IDLE:
                if not settings.saturated and tally[TALLY.ARRIVED_ROWS] < to_arrive:
                    coming = work.arrival_s[life.first_rows[tally[TALLY.ARRIVED_ROWS]]]
                    if coming < at:
                        at, kind = coming, COMING
                if tally[TALLY.HEAP] > 0 and state.heap[0].time_s < at:
                    at, kind = state.heap[0].time_s, COMING
            i = 0
            if kind == NO_EVENT:
                waiting = tally[TALLY.WAITING]
                if waiting == 0 and tally[TALLY.ARRIVED_ROWS] == to_arrive:
                    break
                if told_reports:
                    delivery_s = next_delivery_s(world)
                    if delivery_s < IDLE:
                        now = max(now, delivery_s)
                is_open = 0
                for r in range(ranks):
                    is_open += state.ranks[r].up == 1 and state.ranks[r].closed == 0
                if is_open == 0 and waiting > 0:  # no rank takes requests, and none ever will
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
                    idle_rounds += 1
                if idle_rounds > ORDERLESS_ROUNDS:
                    oldest = state.round[HELD, 0] if tally[TALLY.HELD] > 0 else tally[TALLY.QUEUE_FIRST]
                    ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST] = STUCK, oldest
                    break
            else:
                now = max(now, at)

            # Rule 1: the event.
            if kind == CHANGE:
                i = change_pool(world, width, reserve, now)
            elif kind == BOUNDARY:
                i = earliest(state.end_s)
                set_end(world, i, IDLE)
                if state.instances[i].stalling:
                    state.instances[i].stalling = 0
                else:
                    state.instances[i].steps += 1
                    boundaries += 1
                    count = end_step(world, width, i, now, told)
                    if count > 0:
                        g = state.group_of[i]
                        sort_ascending(told, count)
                        for j in range(count):
                            q = told[j]
                            k = (
                                i % settings.replicas
                                if shares
                                else replica_of(q, work.session, settings.replicas)
                            )
                            own = Memory(memory_ints[k * groups + g], memory_floats[k * groups + g])
                            finished(
                                own, params, q, out.rank[q] - state.bounds[g], work.context_tokens[q],
                                work.output_tokens[q],
                            )  # fmt: skip
                    if told_reports:
                        count_own(world, work.session, shift, width, i, now)
                        if life.report_period_s > 0:
                            due = now >= seen.reported[i].next_s
                            if due:
                                period = life.report_period_s
                                seen.reported[i].next_s = (math.floor(now / period) + 1) * period
                        else:
                            due = state.instances[i].steps % settings.report_period_steps == 0
                        if due or state.instances[i].load == 0:
                            publish(world, i, state.instances[i].steps, now)
                    refresh_instance(world, reserve, width, i)
            elif kind == PREFILL_END:
                i = earliest(state.prefill_end_s)
                set_clock(state.prefill_end_s, i, IDLE)
                for rank in range(i * life.prefill_ranks, (i + 1) * life.prefill_ranks):
                    left = state.prompts[rank].taken
                    state.prompts[rank].backlog -= left
                    tally[TALLY.BACKLOG] -= left
                    while left > 0:
                        q = np.int64(state.lists[len(state.ranks) + rank].first)
                        tokens = min(left, state.requests[q].left)
                        state.requests[q].left -= tokens
                        left -= tokens
                        if state.requests[q].left == 0:
                            take_first(state.lists, state.requests, len(state.ranks) + rank)
                            computed(world, q, now, now)
                start_prefill(world, settings.seconds_per_unit, i, now, more.counts)

            # Rule 2: requests that have come.
            while True:
                static_s, heap_s = IDLE, IDLE
                if not settings.saturated and tally[TALLY.ARRIVED_ROWS] < to_arrive:
                    static_s = work.arrival_s[life.first_rows[tally[TALLY.ARRIVED_ROWS]]]
                if tally[TALLY.HEAP] > 0:
                    heap_s = state.heap[0].time_s
                if min(static_s, heap_s) > now or (static_s == IDLE and heap_s == IDLE):
                    break
                if static_s <= heap_s:
                    q = np.int64(life.first_rows[tally[TALLY.ARRIVED_ROWS]])
                    tally[TALLY.ARRIVED_ROWS] += 1
                    state.requests[q].size = work.context_tokens[q]
                    arrive(world, largest, q, static_s, now)
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
                    tally[TALLY.ARRIVED_ROWS] < n
                    and tally[TALLY.IN_POOL] + tally[TALLY.WAITING] < settings.concurrency
                ):
                    q = tally[TALLY.ARRIVED_ROWS]
                    tally[TALLY.ARRIVED_ROWS] += 1
                    state.requests[q].size = work.context_tokens[q]
                    arrive(world, largest, q, now, now)
            if life.prefill == PREFILL_POOL and tally[TALLY.BACKLOG] > 0:
                for j in range(life.prefill_instances):
                    if is_idle(world, j):
                        start_prefill(world, settings.seconds_per_unit, j, now, more.counts)

            # Rule 3: reports.
            if told_reports:
                for p in range(instances):
                    idle = state.end_s[leaf + p] == IDLE and state.instances[p].load == 0
                    if deliver(world, p, state.instances[p].steps, idle, now):
                        refresh_instance(world, reserve, width, p)

            # Rule 4: rounds of placement, until the queue is empty or the policy keeps a request.
            asks = kind == BOUNDARY or kind == CHANGE or kind == NO_EVENT or tally[TALLY.READY] > 0
            if asks and life.patience_s < IDLE:
                gone = 0
                while (
                    gone < tally[TALLY.HELD]
                    and now - state.requests[state.round[HELD, gone]].joined_s > life.patience_s
                ):
                    end_request(world, state.round[HELD, gone], ABORTED, now)
                    gone += 1
                if gone > 0:
                    for j in range(gone, tally[TALLY.HELD]):
                        state.round[HELD, j - gone] = state.round[HELD, j]
                        state.round[OFFERED, j - gone] = state.round[OFFERED, j]
                    tally[TALLY.HELD] -= gone
                    tally[TALLY.WAITING] -= gone
                while (
                    tally[TALLY.HELD] == 0
                    and tally[TALLY.QUEUE_FIRST] != NOBODY
                    and now - state.requests[tally[TALLY.QUEUE_FIRST]].joined_s > life.patience_s
                ):
                    q = tally[TALLY.QUEUE_FIRST]
                    tally[TALLY.QUEUE_FIRST] = state.requests[q].following
                    if tally[TALLY.QUEUE_FIRST] == NOBODY:
                        tally[TALLY.QUEUE_LAST] = NOBODY
                    tally[TALLY.WAITING] -= 1
                    end_request(world, q, ABORTED, now)
            asks = asks and tally[TALLY.WAITING] > 0
            if asks and instances > 1 and (shares or not told_reports):
                for p in range(instances):
                    end = state.end_s[leaf + p]
                    starts_in_s = end - now if end != IDLE else 0.0
                    for r in range(p * width, (p + 1) * width):
                        seen.starts_in_s[1, r] = starts_in_s
            while asks and tally[TALLY.WAITING] > 0:
                size = tally[TALLY.HELD]
                while size < MAX_ROUND and tally[TALLY.QUEUE_FIRST] != NOBODY:
                    q = tally[TALLY.QUEUE_FIRST]
                    tally[TALLY.QUEUE_FIRST] = state.requests[q].following
                    state.round[HELD, size], state.round[OFFERED, size] = q, boundaries
                    size += 1
                if tally[TALLY.QUEUE_FIRST] == NOBODY:
                    tally[TALLY.QUEUE_LAST] = NOBODY
                for j in range(size):
                    q = state.round[HELD, j]
                    asked.context_tokens[j] = state.requests[q].size
                    asked.reserve_tokens[j] = held_tokens(state.requests[q].size, shift)
                    asked.session[j] = one_of(work.session, q)
                    asked.request[j] = q
                    since = boundaries - state.round[OFFERED, j]
                    asked.waited_steps[j] = since // instances if since > 0 else 0
                    asked.waited_s[j] = now - state.requests[q].joined_s
                    state.round[CHOSEN, j] = -1
                ended[ENDED.ROUNDS] += 1
                more.counts[COUNTS.DECISIONS] += size
                turns = settings.replicas if told_reports or shares or settings.replicas > 1 else 1
                for k in range(turns):
                    if turns == 1:
                        count = size
                        requests, answers = shortened(asked, size), shortened(state.round[CHOSEN], size)
                        for j in range(size):
                            state.round[TURN, j] = j
                    else:
                        count = 0
                        for j in range(size):
                            if replica_of(state.round[HELD, j], work.session, settings.replicas) == k:
                                state.round[TURN, count] = j
                                count += 1
                        if count == 0:
                            continue
                        requests = take_requests(asked, state.round[TURN][:count])
                        answers = np.full(count, -1, np.int64)
                    number = k if told_reports else 0
                    view = first_view if number == 0 else view_of(world, number)
                    if shares:
                        place_by_owner(
                            view, last_view, requests, prices, state.bounds, settings.group_by_tokens, place, params,
                            memory_ints, memory_floats, settings.replicas, answers,
                        )  # fmt: skip
                    elif groups == 1:
                        if k == 0:
                            place(view, requests, prices, params, memory, answers)
                        else:
                            place(
                                view,
                                requests,
                                prices,
                                params,
                                Memory(memory_ints[k], memory_floats[k]),
                                answers,
                            )
                    else:
                        place_in_groups(
                            view, requests, prices, state.bounds, settings.group_by_tokens, place, params,
                            memory_ints[k * groups :], memory_floats[k * groups :], answers,
                        )  # fmt: skip
                    judge = exact if shares else number
                    for j in range(count):
                        q, r = state.round[HELD, state.round[TURN, j]], answers[j]
                        state.round[CHOSEN, state.round[TURN, j]] = r
                        if r == -1:
                            continue
                        if not 0 <= r < ranks:
                            ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST], ended[ENDED.ERROR_RANK] = (
                                BAD_RANK,
                                q,
                                r,
                            )
                            break
                        p = r // width
                        refresh(world, reserve, judge, r, p)
                        judged = last_view if shares else view
                        if not fits(judged, r, requests.reserve_tokens[j]):
                            ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST], ended[ENDED.ERROR_RANK] = (
                                NO_ROOM,
                                q,
                                r,
                            )
                            break
                        out.rank[q] = r
                        lives = state.ranks[r].up == 1
                        if settings.keep_requests:
                            more.placed_s[q] = now
                        more.counts[COUNTS.DISPATCHED] += 1
                        tally[TALLY.WAITING] -= 1
                        idle_rounds = 0
                        if lives:
                            append(state.lists, state.requests, r, q)
                            count_queued(world, shift, r, q)
                            state.instances[p].load += 1
                            tally[TALLY.IN_POOL] += 1
                        else:
                            lose(world, q, now)
                        if told_reports:
                            count_dispatch(world, shift, k, r, q, requests.context_tokens[j], now, lives)
                            refresh(world, reserve, k, r, p)
                        if not told_reports or shares:
                            refresh(world, reserve, exact, r, p)
                    if ended[ENDED.ERROR]:
                        break
                if ended[ENDED.ERROR]:
                    break
                offered_before, holding = tally[TALLY.HELD], 0
                for j in range(size):
                    if state.round[CHOSEN, j] == -1:
                        ended[ENDED.BLOCKED_REQUESTS] += j >= offered_before
                        ended[ENDED.BLOCKED_ROUNDS] += 1
                        state.round[HELD, holding] = state.round[HELD, j]
                        state.round[OFFERED, holding] = state.round[OFFERED, j]
                        holding += 1
                tally[TALLY.HELD] = holding
                if holding > 0:
                    break
            if ended[ENDED.ERROR]:
                break
            draining = tally[TALLY.ARRIVED_ROWS] == to_arrive
            if draining and not life.sessions:
                draining = tally[TALLY.WAITING] == 0 and (
                    settings.saturated or (tally[TALLY.HEAP] == 0 and tally[TALLY.BACKLOG] == 0)
                )
            if draining and not settings.drain:
                break

            # Rule 5: instances at a boundary with work start a step.
            for p in range(instances):
                if (
                    state.end_s[leaf + p] != IDLE
                    or state.instances[p].load == 0
                    or state.instances[p].alive == 0
                ):
                    continue
                tally[TALLY.SWAPPED] = 0
                for rank in range(p * width, (p + 1) * width):
                    on = state.ranks[rank]
                    queued = state.lists[rank].first != NOBODY
                    if not on.up or (on.rows == 0 and not queued):
                        continue
                    total, bound = on.resident, False
                    if life.preemption != NO_PREEMPTION:
                        bound = True
                        total += on.rows * most_held
                        if total > ranked.kv_capacity_tokens[rank]:
                            total, bound = make_room(world, p, rank, now), False
                            queued = state.lists[rank].first != NOBODY
                    if queued or on.frozen > 0:
                        code = admit(world, p, rank, total, bound, most_growth, now)
                        if code:
                            ended[ENDED.ERROR] = code
                            break
                if ended[ENDED.ERROR]:
                    break
                tokens, mixed = load_step(world, p, width, more.counts)
                swap = tally[TALLY.SWAPPED] * life.swap_s_per_token / settings.seconds_per_unit
                cost, ideal, own_work = price_step(
                    prices, prefill, extras, ranked.slowness[p * width : (p + 1) * width], state.step[QUERIES], state.step[PADDED],
                    state.step[READ], state.step_k[1], state.totals_k, state.pieces, mixed, swap,
                    state.instances[p].steps + p * 9973, state.part,
                )  # fmt: skip
                end = now + cost * settings.seconds_per_unit
                set_end(world, p, end)
                total_b, total_c, max_b, max_c, over, queries = 0, 0, 0, 0, 0, 0
                for r in range(width):
                    total_b += state.step[BATCH, r]
                    total_c += state.step[CONTEXT, r]
                    max_b = max(max_b, state.step[BATCH, r])
                    max_c = max(max_c, state.step[CONTEXT, r])
                    queries += state.step[QUERIES, r]
                    rank = p * width + r
                    over += state.ranks[rank].resident > ranked.kv_capacity_tokens[rank]
                more.counts[COUNTS.QUERY_TOKENS] += queries

                ended[ENDED.PEAK_RUNNING] = max(ended[ENDED.PEAK_RUNNING], tally[TALLY.IN_POOL])
                turned_over = ended[ENDED.FINISHED] >= settings.warmup_turnovers * ended[ENDED.PEAK_RUNNING]
                if (
                    counting and not turned_over
                ):  # the pool outgrew what had turned over: the warm-up begins anew
                    totals[:] = 0.0
                    series[:, SERIES.COUNTED] = 0.0
                    more.parts[:] = 0.0
                    more.counts[COUNTS.COUNTED_TOKENS] = 0
                counting = turned_over
                counted = counting and not draining
                if counted:
                    if totals[TOTALS.STEPS] == 0:
                        totals[TOTALS.FIRST_S], totals[TOTALS.FIRST_STEP] = now, started
                    totals[TOTALS.LAST_S] = max(totals[TOTALS.LAST_S], end)
                    totals[TOTALS.LAST_STEP] = started
                    totals[TOTALS.STEPS] += 1
                    totals[TOTALS.COST] += cost
                    totals[TOTALS.IDEAL] += ideal
                    totals[TOTALS.WORK] += own_work
                    totals[TOTALS.MAX_BATCH] += max_b
                    totals[TOTALS.MEAN_BATCH] += total_b / width
                    totals[TOTALS.MAX_CONTEXT] += max_c
                    totals[TOTALS.MEAN_CONTEXT] += total_c / width
                    totals[TOTALS.TOKENS] += tokens
                    totals[TOTALS.OVER_CAPACITY] += over
                    for j in range(len(state.part)):
                        more.parts[j] += state.part[j]
                    more.counts[COUNTS.COUNTED_TOKENS] += tokens
                row = next_row(series, ended, now, p)
                series[row, SERIES.STEPS] += 1
                series[row, SERIES.COUNTED] += counted
                series[row, SERIES.COST] += cost
                series[row, SERIES.IDEAL] += ideal
                series[row, SERIES.WORK] += own_work
                series[row, SERIES.MAX_BATCH] += max_b
                series[row, SERIES.MEAN_BATCH] += total_b / width
                series[row, SERIES.MAX_CONTEXT] += max_c
                series[row, SERIES.MEAN_CONTEXT] += total_c / width
                series[row, SERIES.QUEUED] += tally[TALLY.WAITING]
                series[row, SERIES.OVER_CAPACITY] += over
                since = started - settings.snapshot_first
                if (
                    ended[ENDED.SNAPSHOTS] < len(out.snapshot_step)
                    and since >= 0
                    and since % settings.snapshot_every == 0
                ):
                    take_snapshot(
                        out, started, p, now, end, state.step[BATCH], state.step[CONTEXT], state.step_k[0]
                    )
                started += 1
            if ended[ENDED.ERROR]:
                break

        ended[ENDED.QUEUED] = tally[TALLY.WAITING]
        ended[ENDED.RUNNING] = tally[TALLY.IN_POOL]
        ended[ENDED.STEPS] = started
        residue = 0
        for r in range(ranks):
            rank_state = state.ranks[r]
            residue += (
                rank_state.rows + abs(rank_state.context) + abs(rank_state.resident) + rank_state.queued
            )
            for s in range(len(lengths)):
                residue += abs(state.saturated[RUNNING, r, s])
        ended[ENDED.RESIDUE] = residue

    run.__qualname__ = "run_fleet"
    return run


@cache
def fleet_run() -> Any:
    """Compile the kernel when it is first asked for."""
    return compiled(SIGNATURE, first_class=False)(_kernel())

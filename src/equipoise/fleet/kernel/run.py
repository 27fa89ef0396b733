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
    numba_type,
    shortened,
)
from equipoise.cost.prefill import PrefillPrices
from equipoise.fleet.kernel.changes import change_pool
from equipoise.fleet.kernel.instances import set_end
from equipoise.fleet.kernel.layout import (
    ABORTED,
    BY_INSTANCE,
    COUNTS,
    DELAYED,
    EXACT,
    FAILED,
    NO_PREEMPTION,
    PREFILL_POOL,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    FleetSettings,
    Life,
    Ranked,
)
from equipoise.fleet.kernel.life import arrive, computed, end_request, join_routers, lose
from equipoise.fleet.kernel.lists import append, earliest, one_of, pop, replica_of, set_clock, take_first
from equipoise.fleet.kernel.pictures import (
    count_dispatch,
    count_own,
    deliver,
    held_tokens,
    next_delivery_s,
    publish,
    refresh,
    refresh_instance,
    view_of,
)
from equipoise.fleet.kernel.prefill import is_idle, start_prefill
from equipoise.fleet.kernel.price import price_step
from equipoise.fleet.kernel.rounds import place_in_groups, show_starts
from equipoise.fleet.kernel.routers import Pictures
from equipoise.fleet.kernel.rows import count_queued
from equipoise.fleet.kernel.state import (
    BATCH,
    CHOSEN,
    CONTEXT,
    HELD,
    IDLE,
    NOBODY,
    OFFERED,
    PADDED,
    QUERIES,
    READ,
    RUNNING,
    TALLY,
    TURN,
    FleetState,
)
from equipoise.fleet.kernel.steps import admit, end_step, load_step, make_room
from equipoise.fleet.kernel.world import World
from equipoise.policies.api import fits
from equipoise.policies.views import take_requests
from equipoise.replay.keeping import next_row, take_snapshot
from equipoise.replay.kernel import sort_ascending
from equipoise.replay.layout import (
    BAD_RANK,
    ENDED,
    MAX_ROUND,
    NO_ROOM,
    ORDERLESS_ROUNDS,
    SERIES,
    STUCK,
    TOTALS,
    Outcome,
    PoolLayout,
    Work,
)
from equipoise.types import Floats2D, Ints2D, Memory

__all__ = ["fleet_run"]

NO_EVENT, CHANGE, BOUNDARY, PREFILL_END, COMING = 0, 1, 2, 3, 4


SIGNATURE = types.void(
    numba_type(Work),
    numba_type(PoolLayout),
    numba_type(FleetSettings),
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
        # Where requests come on from an earlier stage, the load begins to fall with the last arrival.
        staged = life.sessions or (
            not settings.saturated
            and (life.prefill in (DELAYED, PREFILL_POOL) or life.transfer_s + life.transfer_s_per_token > 0)
        )
        owners = settings.replicas if shares else 0
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
                    set_clock(state.backlogs, rank, state.prompts[rank].backlog)
                    tally[TALLY.BACKLOG] -= left
                    while left > 0:
                        q = np.int64(state.lists[len(state.ranks) + rank].first)
                        tokens = min(left, state.requests[q].left)
                        state.requests[q].left -= tokens
                        left -= tokens
                        if state.requests[q].left == 0:
                            take_first(state.lists, state.requests, len(state.ranks) + rank)
                            computed(world, q, now, now, now)
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
            if tally[TALLY.PROMPTED]:
                tally[TALLY.PROMPTED] = 0
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
            asks = kind in (BOUNDARY, CHANGE, NO_EVENT) or tally[TALLY.READY] > 0
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
            if asks and instances > 1 and groups == 1 and not told_reports and not shares:
                show_starts(world, 0, instances, now)
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
                    if groups > 1 or shares:
                        place_in_groups(
                            world, number, k, owners, requests, place, params, memory_ints, memory_floats, now, answers,
                        )  # fmt: skip
                    elif k == 0:
                        place(view, requests, prices, params, memory, answers)
                    else:
                        place(
                            view, requests, prices, params, Memory(memory_ints[k], memory_floats[k]), answers
                        )
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
                        refresh(world, reserve, judge, r, r + 1, p)
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
                            refresh(world, reserve, k, r, r + 1, p)
                        if not told_reports or shares:
                            refresh(world, reserve, exact, r, r + 1, p)
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
            if draining and not staged:
                draining = tally[TALLY.WAITING] == 0 and (settings.saturated or tally[TALLY.HEAP] == 0)
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
                    prices, prefill, extras, ranked.slowness[p * width : (p + 1) * width], state.step[QUERIES],
                    state.step[PADDED], state.step[READ], state.step_k[1], state.totals_k, state.pieces, mixed, swap,
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

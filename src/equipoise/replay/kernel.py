"""The replay kernel: a pool of lock-step instances driven by a trace, a policy and a step cost.

State of a rank is (B, C, K) sums and a calendar of finishes, so a step costs O(ranks) and a request O(ranks) when it
is placed; requests are never scanned. `equipoise.replay.reference` is the slow, obvious twin: same results, bit for
bit.

Rules, in the order of one event (an instance reaches its step boundary, or a request arrives while one is idle):

1. The step that ends gives every request it ran one token; the finished ones leave.
2. Requests that have arrived join the queue (``saturated``: as many as have left). One larger than a rank is rejected.
3. The policy sees the queue, oldest first, and the ranks; what it places joins its instance at that instance's next
   boundary. An idle instance is always at a boundary. A request is offered once an event: where the policy keeps one,
   the event's rounds end.
4. Instances at a boundary with work start a step, priced from B, C, K; its end is its start plus that price.

Ties in time go to the lowest instance. The policy works on a view of its own. Here the view is exact, so a choice that
the true state forbids is a breach of the policy's contract.

The rules stand in one function on purpose: handed from function to function, the two dozen arrays of the state cost
two atomic reference counts each and a third of the time. Helpers take few arrays or run rarely.
"""

from __future__ import annotations

import numpy as np
from numba import types

from equipoise._jit import (
    FINISHED,
    FLOATS,
    PLACE,
    PRICES,
    RANKS,
    REQUESTS,
    borrowed,
    compiled,
    jitable,
    numba_type,
    shortened,
)
from equipoise.cost.evaluate import step_price
from equipoise.policies.groups import place_in_groups
from equipoise.policies.rules import breach, room
from equipoise.replay.keeping import next_row, take_snapshot
from equipoise.replay.layout import (
    ENDED,
    MAX_ROUND,
    ORDERLESS_ROUNDS,
    SERIES,
    STUCK,
    TOTALS,
    Outcome,
    PoolLayout,
    Settings,
    Work,
)
from equipoise.replay.state import IDLE, NOBODY, State
from equipoise.types import Floats2D, Ints2D, Memory

__all__ = ["run", "sort_ascending"]


@jitable
def sort_ascending(values, count):  # type: ignore[no-untyped-def]
    """Sort the first so many in place (Shell 1959): ten lines here spare compiling numpy's sort for four seconds."""
    gap = count // 2
    while gap > 0:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 2


@jitable
def schedule(first, following, due_step, instance, calendar, request, step):  # type: ignore[no-untyped-def]
    """Enter a request into a calendar of its instance: singly linked lists, one a slot.

    Calendar 0 holds the finishes, calendar 1 + s the steps at which a context reaches saturation length s. The due
    step keeps its low 32 bits: no wait is that long, so they tell the laps of a calendar apart in a run of any length.
    """
    slot = step & (first.shape[2] - 1)
    due_step[calendar, request] = step
    following[calendar, request] = first[instance, calendar, slot]
    first[instance, calendar, slot] = request


SIGNATURE = types.void(
    numba_type(Work),
    numba_type(PoolLayout),
    numba_type(Settings),
    PRICES,
    types.FunctionType(PLACE),
    types.FunctionType(FINISHED),
    FLOATS,
    numba_type(Ints2D),
    numba_type(Floats2D),
    numba_type(State),
    RANKS,
    REQUESTS,
    numba_type(Outcome),
)


@compiled(SIGNATURE, first_class=False)
def run(  # type: ignore[no-untyped-def]
    work,
    pool,
    settings,
    prices,
    place,
    finished,
    params,
    memory_ints,
    memory_floats,
    state,
    view,
    asked,
    out,
):
    """Replay a trace and fill ``out``.

    Parameters
    ----------
    work : Work
    pool : PoolLayout
    settings : Settings
    prices : Prices
    place : function
        The policy.
    finished : function
        What it learns from a request that ended; called only if ``settings.tells_finished``.
    params : float64[...]
    memory_ints, memory_floats : [groups, ...]
        One policy memory a group.
    state : State
        From `state.new_state`.
    view : Ranks
        What the policy is shown of the pool: idle ranks, and later their true state.
    asked : Requests
        Room for a round.
    out : Outcome
        From `layout.new_outcome`.
    """
    work, pool, prices, params = borrowed(work), borrowed(pool), borrowed(prices), borrowed(params)
    memory_ints, memory_floats = borrowed(memory_ints), borrowed(memory_floats)
    state, view, asked, out = borrowed(state), borrowed(view), borrowed(asked), borrowed(out)
    arrival_s, context_tokens, output_tokens, session = work
    instances, width = pool.instances, pool.ranks_per_instance
    ranks, n = instances * width, len(context_tokens)
    largest = pool.kv_capacity_tokens - pool.growth_reserve_tokens
    lengths = prices.saturation_tokens
    saturations = len(lengths)
    totals, ended, series, rank_of = out.totals, out.ended, out.series, out.rank
    ended[ENDED.SERIES_STEPS] = 1

    batch, context, saturated, unsaturated = (
        state.batch,
        state.context,
        state.saturated,
        state.unsaturated,
    )
    running, growing = state.running, state.growing
    load, steps, end_s = state.load, state.steps, state.end_s
    joining_first, joining_next = state.joining_first, state.joining_next
    first, following, due_step = state.first, state.following, state.due_step
    slots = first.shape[2]
    held, offered_boundary, offered_s = state.held, state.offered_boundary, state.offered_s
    chosen, bounds, group_of, totals_k = state.chosen, state.bounds, state.group_of, state.total_saturated
    memory = Memory(memory_ints[0], memory_floats[0])
    shown_batch = view.batch.reshape((instances, width))
    shown_context = view.context_tokens.reshape((instances, width))
    shown_free = view.free_tokens.reshape((instances, width))
    shown_slots = view.free_slots.reshape((instances, width))
    shown_saturated = view.saturated_tokens.reshape((instances, width, saturations))
    shown_starts_in_s = view.starts_in_s.reshape((instances, width))
    released, seen, holding = (
        0,
        0,
        0,
    )  # requests that have arrived, that have been in a round, that wait since
    waiting, placed_now = 0, 0  # in the queue, in the pool
    started, boundaries, idle_rounds = 0, 0, 0
    counting = False
    now = 0.0
    ended_now = np.empty(0, np.int64)
    while True:
        # The next event: the earliest boundary, or an arrival if an instance is idle.
        i, idle = 0, False
        for j in range(instances):
            if end_s[j] < end_s[i]:
                i = j
            idle |= end_s[j] == IDLE
        arrival = arrival_s[released] if not settings.saturated and released < n else IDLE
        if idle and arrival < end_s[i]:
            now = max(now, arrival)
        elif end_s[i] == IDLE:
            if waiting == 0 and released == n:
                break
            idle_rounds += 1
            if idle_rounds > ORDERLESS_ROUNDS:
                ended[ENDED.ERROR], ended[ENDED.ERROR_REQUEST] = STUCK, held[0]
                break
        else:
            # Rule 1: the step ends.
            now = end_s[i]
            end_s[i] = IDLE
            steps[i] += 1
            boundaries += 1
            tokens = 0
            for r in range(width):
                tokens += running[i, r]
                context[i, r] += running[i, r]
                for s in range(saturations):
                    saturated[i, r, s] += growing[i, r, s]
            ended[ENDED.TOKENS] += tokens
            slot = steps[i] & (slots - 1)
            for s in range(saturations):
                q = first[i, 1 + s, slot]
                first[i, 1 + s, slot] = NOBODY
                while q != NOBODY:
                    after = following[1 + s, q]
                    if due_step[1 + s, q] == np.int32(steps[i]):
                        unsaturated[i, rank_of[q] - i * width, s] -= 1
                    else:  # due when the calendar comes round again
                        following[1 + s, q] = first[i, 1 + s, slot]
                        first[i, 1 + s, slot] = q
                    q = after
            told = 0
            if settings.tells_finished:
                ended_now = np.empty(load[i], np.int64)
            q = first[i, 0, slot]
            first[i, 0, slot] = NOBODY
            while q != NOBODY:
                after = following[0, q]
                if due_step[0, q] == np.int32(steps[i]):
                    r = rank_of[q] - i * width
                    length = context_tokens[q] + output_tokens[q]
                    batch[i, r] -= 1
                    context[i, r] -= length
                    for s in range(saturations):
                        saturated[i, r, s] -= min(length, lengths[s])
                        unsaturated[i, r, s] -= length < lengths[s]
                    load[i] -= 1
                    placed_now -= 1
                    ended[ENDED.FINISHED] += 1
                    ended[ENDED.FINISHED_TOKENS] += output_tokens[q]
                    if settings.keep_requests:
                        out.finish_s[q] = now
                    if settings.tells_finished:
                        ended_now[told] = q
                        told += 1
                else:
                    following[0, q] = first[i, 0, slot]
                    first[i, 0, slot] = q
                q = after
            if told > 0:  # in the order of their numbers: a list of the calendar has none of its own
                g = group_of[i]
                sort_ascending(ended_now, told)
                for j in range(told):
                    q = ended_now[j]
                    own = Memory(memory_ints[g], memory_floats[g])
                    finished(own, params, q, rank_of[q] - bounds[g], context_tokens[q], output_tokens[q])
            # One loop an array, indices from 0: compilers turn such loops into vector code.
            for r in range(width):
                shown_batch[i, r] = batch[i, r]
            for r in range(width):
                shown_context[i, r] = context[i, r]
            for r in range(width):
                shown_slots[i, r] = pool.max_batch - batch[i, r]
            for r in range(width):
                shown_free[i, r] = room(largest - context[i, r], pool.max_batch - batch[i, r])
            for s in range(saturations):
                for r in range(width):
                    shown_saturated[i, r, s] = saturated[i, r, s]

        # Rule 2: requests that have arrived join the queue.
        while released < n:
            if settings.saturated:
                if placed_now + waiting >= settings.concurrency:
                    break
            elif arrival_s[released] > now:
                break
            if context_tokens[released] > largest:
                ended[ENDED.REJECTED] += 1
            else:
                waiting += 1
            released += 1

        # Rule 3: rounds of placement, until the queue is empty or the policy keeps a request.
        if waiting > 0 and instances > 1:  # one instance alone is asked at its own boundary only
            for p in range(instances):
                starts_in_s = end_s[p] - now if end_s[p] != IDLE else 0.0
                for r in range(width):
                    shown_starts_in_s[p, r] = starts_in_s
        while waiting > 0:
            size = holding
            while size < MAX_ROUND and seen < released:
                if context_tokens[seen] <= largest:
                    held[size], offered_boundary[size] = seen, boundaries
                    offered_s[size] = now if settings.saturated else arrival_s[seen]
                    size += 1
                seen += 1
            for j in range(size):
                q = held[j]
                asked.context_tokens[j] = context_tokens[q]
                asked.reserve_tokens[j] = context_tokens[q]
                asked.session[j] = session[q if len(session) > 1 else 0]
                asked.request[j] = q
                since = boundaries - offered_boundary[j]
                asked.waited_steps[j] = since // instances if since > 0 else 0
                asked.waited_s[j] = now - offered_s[j]
                chosen[j] = -1
            requests, answers = shortened(asked, size), shortened(chosen, size)
            ended[ENDED.ROUNDS] += 1
            if len(bounds) == 2:
                place(view, requests, prices, params, memory, answers)
            else:
                place_in_groups(
                    view, requests, prices, bounds, settings.group_by_tokens, place, params,
                    memory_ints, memory_floats, answers,
                )  # fmt: skip
            offered_before = holding
            holding = 0
            for j in range(size):
                q, r = held[j], chosen[j]
                if r == -1:
                    ended[ENDED.BLOCKED_REQUESTS] += j >= offered_before
                    ended[ENDED.BLOCKED_ROUNDS] += 1
                    held[holding] = q
                    offered_boundary[holding], offered_s[holding] = offered_boundary[j], offered_s[j]
                    holding += 1
                    continue
                length = context_tokens[q]
                known = 0 <= r < ranks
                p = r // width if known else 0
                r -= p * width
                free = room(largest - context[p, r], pool.max_batch - batch[p, r]) if known else -1
                wrong = breach(chosen[j], ranks, free, length)
                if wrong:
                    ended[ENDED.ERROR] = wrong
                    ended[ENDED.ERROR_REQUEST], ended[ENDED.ERROR_RANK] = q, chosen[j]
                    break
                begin = steps[p] if end_s[p] == IDLE else steps[p] + 1
                batch[p, r] += 1
                context[p, r] += length
                load[p] += 1
                placed_now += 1
                waiting -= 1
                rank_of[q] = chosen[j]
                schedule(first, following, due_step, p, 0, q, begin + output_tokens[q])
                for s in range(saturations):
                    saturated[p, r, s] += min(length, lengths[s])
                    if length < lengths[s]:
                        unsaturated[p, r, s] += 1
                        if length + output_tokens[q] >= lengths[s]:
                            schedule(first, following, due_step, p, 1 + s, q, begin + lengths[s] - length)
                    shown_saturated[p, r, s] = saturated[p, r, s]
                slots_left = pool.max_batch - batch[p, r]
                shown_batch[p, r] = batch[p, r]
                shown_context[p, r] = context[p, r]
                shown_slots[p, r] = slots_left
                shown_free[p, r] = room(largest - context[p, r], slots_left)
                if settings.keep_requests:
                    joining_next[q] = joining_first[p]
                    joining_first[p] = q
            if holding < size:
                idle_rounds = 0
            if holding > 0 or ended[ENDED.ERROR]:
                break
        if ended[ENDED.ERROR]:
            break
        draining = released == n and waiting == 0
        if draining and not settings.drain:
            break

        # Rule 4: instances at a boundary with work start a step.
        for p in range(instances):
            if end_s[p] != IDLE or load[p] == 0:
                continue
            total_b, total_c, max_b, max_c, over = 0, 0, 0, 0, 0
            for r in range(width):
                running[p, r] = batch[p, r]
                total_b += batch[p, r]
                total_c += context[p, r]
                max_b = max(max_b, batch[p, r])
                max_c = max(max_c, context[p, r])
                over += context[p, r] > pool.kv_capacity_tokens
            totals_k[:] = 0
            for s in range(saturations):
                for r in range(width):
                    growing[p, r, s] = unsaturated[p, r, s]
                    totals_k[s] += saturated[p, r, s]
            cost, ideal, own_work = step_price(
                prices, batch[p], context[p], saturated[p], total_b, total_c, totals_k
            )
            end = now + cost * settings.seconds_per_unit
            end_s[p] = end

            ended[ENDED.PEAK_RUNNING] = max(ended[ENDED.PEAK_RUNNING], placed_now)
            turned_over = ended[ENDED.FINISHED] >= settings.warmup_turnovers * ended[ENDED.PEAK_RUNNING]
            if counting and not turned_over:  # the pool outgrew what had turned over: the warm-up begins anew
                totals[:] = 0.0
                series[:, SERIES.COUNTED] = 0.0
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
                totals[TOTALS.TOKENS] += total_b
                totals[TOTALS.OVER_CAPACITY] += over
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
            series[row, SERIES.QUEUED] += waiting
            series[row, SERIES.OVER_CAPACITY] += over
            since = started - settings.snapshot_first
            if (
                ended[ENDED.SNAPSHOTS] < len(out.snapshot_step)
                and since >= 0
                and since % settings.snapshot_every == 0
            ):
                take_snapshot(out, started, p, now, end, batch[p], context[p], saturated[p])
            if settings.keep_requests:
                q = joining_first[p]
                joining_first[p] = NOBODY
                while q != NOBODY:
                    out.start_s[q] = now
                    q = joining_next[q]
            started += 1

    ended[ENDED.ARRIVED] = released
    ended[ENDED.QUEUED] = waiting
    ended[ENDED.RUNNING] = placed_now
    ended[ENDED.STEPS] = started
    ended[ENDED.RESIDUE] = (
        np.abs(batch).sum() + np.abs(context).sum() + np.abs(saturated).sum() + np.abs(unsaturated).sum()
    )

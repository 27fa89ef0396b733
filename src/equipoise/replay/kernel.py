"""The replay kernel: a pool of lock-step instances driven by a trace, a policy and a step cost.

State of a rank is (B, C, K) sums and a calendar of finishes, so a step costs O(ranks) and a request O(ranks) when it
is placed; requests are never scanned. `equipoise.replay.reference` is the slow, obvious twin: same results, bit for
bit.

Rules, in the order of one event (an instance reaches its step boundary, or a request arrives while one is idle):

1. The step that ends gives every request it ran one token; the finished ones leave.
2. Requests that have arrived join the queue (``saturated``: as many as have left). One larger than a rank is rejected.
3. The policy sees the queue, oldest first, and the ranks; what it places joins its instance at that instance's next
   boundary. An idle instance is always at a boundary.
4. Instances at a boundary with work start a step, priced from B, C, K; its end is its start plus that price.

Ties in time go to the lowest instance. The policy works on a view of its own; what it chose is checked against the
true state before it counts.

The rules stand in one function on purpose: handed from function to function, the two dozen arrays of the state cost
two atomic reference counts each and a third of the time. Helpers take few arrays or run rarely.
"""

from __future__ import annotations

import numpy as np
from numba import types

from equipoise._jit import (
    FLOATS,
    FLOATS_2D,
    INTS,
    INTS_2D,
    PLACE,
    PRICES,
    SMALL_INTS,
    compiled,
    jitable,
    named,
)
from equipoise.cost.evaluate import step_price
from equipoise.replay.layout import (
    ENDED,
    MAX_ROUND,
    ORDERLESS_ROUNDS,
    SERIES,
    TOTALS,
    Outcome,
    PoolLayout,
    Settings,
    Work,
)
from equipoise.types import Memory, Ranks, Requests

__all__ = ["BAD_RANK", "NO_ROOM", "STUCK", "run"]

BAD_RANK, NO_ROOM, STUCK = 1, 2, 3
"""Values of ``ended[ENDED.ERROR]``: a policy named no rank of the pool, a full rank, or placed nothing for ever."""

IDLE = np.inf
LONGEST_CALENDAR = 1 << 17
"""Slots of a calendar, in steps; longer outputs go round it more than once."""
NOBODY = -1


@jitable
def calendar_slots(longest: int) -> int:
    """Slots of a calendar: a power of two above the longest wait, up to a limit."""
    slots = 2
    while slots <= longest and slots < LONGEST_CALENDAR:
        slots *= 2
    return slots


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


@jitable
def slice_of_ranks(view, first, last):  # type: ignore[no-untyped-def]
    """The view of one group: arrays that share memory with the whole."""
    return Ranks(
        view.batch[first:last],
        view.context_tokens[first:last],
        view.free_tokens[first:last],
        view.free_slots[first:last],
        view.saturated_tokens[first:last],
        view.instance[first:last],
        view.report_age_steps[first:last],
    )


@jitable
def choose_group(view, pool, tokens, by_tokens, extra_batch, extra_tokens):  # type: ignore[no-untyped-def]
    """Group with the fewest requests (or tokens) a rank, choices of this round included; ties: the first.

    Groups where the request fits on no rank come last.
    """
    best, least, best_fits = 0, np.inf, False
    for g in range(len(pool.group_starts) - 1):
        first = pool.group_starts[g] * pool.ranks_per_instance
        last = pool.group_starts[g + 1] * pool.ranks_per_instance
        load = extra_tokens[g] if by_tokens else extra_batch[g]
        fits = False
        for r in range(first, last):
            load += view.context_tokens[r] if by_tokens else view.batch[r]
            fits |= view.free_tokens[r] >= tokens
        mean = load / (last - first)
        if (fits and not best_fits) or (fits == best_fits and mean < least):
            best, least, best_fits = g, mean, fits
    return best


@jitable
def place_in_groups(view, asked, prices, pool, by_tokens, place, params, ints, floats, chosen):  # type: ignore[no-untyped-def]
    """Choose a group for each request, then let the policy place each group's requests inside it."""
    groups = len(pool.group_starts) - 1
    extra_batch = np.zeros(groups, np.int64)
    extra_tokens = np.zeros(groups, np.int64)
    group_of = np.empty(len(chosen), np.int64)
    for j in range(len(chosen)):
        g = choose_group(view, pool, asked.context_tokens[j], by_tokens, extra_batch, extra_tokens)
        group_of[j] = g
        extra_batch[g] += 1
        extra_tokens[g] += asked.context_tokens[j]
    for g in range(groups):
        members = np.flatnonzero(group_of == g)
        if len(members) == 0:
            continue
        first = pool.group_starts[g] * pool.ranks_per_instance
        last = pool.group_starts[g + 1] * pool.ranks_per_instance
        requests = Requests(
            asked.context_tokens[members],
            asked.budget_tokens[members],
            asked.session[members],
            asked.waited_rounds[members],
        )
        part = np.full(len(members), -1, np.int64)
        place(slice_of_ranks(view, first, last), requests, prices, params, Memory(ints[g], floats[g]), part)
        for k in range(len(members)):
            inside = 0 <= part[k] < last - first
            outside = len(view.batch) if part[k] >= 0 else part[k]  # reported as no rank of the pool
            chosen[members[k]] = part[k] + first if inside else outside


@jitable
def next_row(series, ended, now, instance):  # type: ignore[no-untyped-def]
    """Row of the series a step goes to; when all rows are full, neighbours are added up and the rows halve.

    A merged row keeps the earlier start and instance.
    """
    rows = ended[ENDED.SERIES_ROWS]
    if rows > 0 and series[rows - 1, SERIES.STEPS] < ended[ENDED.SERIES_STEPS]:
        return rows - 1
    if rows == len(series):
        for i in range(rows // 2):
            for c in range(series.shape[1]):
                keep = c in (SERIES.START_S, SERIES.INSTANCE)
                series[i, c] = series[2 * i, c] if keep else series[2 * i, c] + series[2 * i + 1, c]
        series[rows // 2 :] = 0.0
        rows //= 2
        ended[ENDED.SERIES_STEPS] *= 2
    series[rows, SERIES.START_S] = now
    series[rows, SERIES.INSTANCE] = instance
    ended[ENDED.SERIES_ROWS] = rows + 1
    return rows


@jitable
def take_snapshot(out, number, instance, now, end, batch, context, saturated):  # type: ignore[no-untyped-def]
    """Keep B, C and K of every rank of one step."""
    k = out.ended[ENDED.SNAPSHOTS]
    out.snapshot_step[k, 0], out.snapshot_step[k, 1] = number, instance
    out.snapshot_s[k, 0], out.snapshot_s[k, 1] = now, end - now
    out.snapshot_batch[k] = batch
    out.snapshot_context[k] = context
    out.snapshot_saturated[k] = saturated
    out.ended[ENDED.SNAPSHOTS] += 1


OUTCOME = named(
    Outcome,
    *(FLOATS, INTS, FLOATS_2D, FLOATS, FLOATS, SMALL_INTS),
    *(INTS_2D, FLOATS_2D, INTS_2D, INTS_2D, types.Array(types.int64, 3, "C")),
)
SIGNATURE = types.void(
    named(Work, FLOATS, INTS, INTS, INTS),
    named(PoolLayout, *([types.int64] * 5), INTS),
    named(Settings, *([types.int64] * 2), types.float64, types.int64, types.float64, *([types.int64] * 4)),
    PRICES,
    types.FunctionType(PLACE),
    FLOATS,
    INTS_2D,
    FLOATS_2D,
    OUTCOME,
)


@compiled(SIGNATURE)
def run(work, pool, settings, prices, place, params, memory_ints, memory_floats, out):  # type: ignore[no-untyped-def]
    """Replay a trace and fill ``out``.

    Parameters
    ----------
    work : Work
    pool : PoolLayout
    settings : Settings
    prices : Prices
    place : function
        The policy.
    params : float64[...]
    memory_ints, memory_floats : [groups, ...]
        One policy memory a group.
    out : Outcome
        From `layout.new_outcome`.
    """
    arrival_s, context_tokens, output_tokens, session = work
    instances, width = pool.instances, pool.ranks_per_instance
    ranks, n = instances * width, len(context_tokens)
    largest = pool.kv_capacity_tokens - pool.growth_reserve_tokens
    lengths = prices.saturation_tokens
    saturations = len(lengths)
    totals, ended, series, rank_of = out.totals, out.ended, out.series, out.rank
    ended[ENDED.SERIES_STEPS] = 1

    # True state of the ranks: requests placed, their context, K, requests below a saturation length; then the same
    # for those in the step under way.
    batch = np.zeros((instances, width), np.int64)
    context = np.zeros((instances, width), np.int64)
    saturated = np.zeros((instances, width, saturations), np.int64)
    unsaturated = np.zeros((instances, width, saturations), np.int64)
    running = np.zeros((instances, width), np.int64)
    growing = np.zeros((instances, width, saturations), np.int64)
    # Instances: requests placed, steps completed, end of the step under way, requests that start with the next one.
    load = np.zeros(instances, np.int64)
    steps = np.zeros(instances, np.int64)
    end_s = np.full(instances, IDLE)
    joining_first = np.full(instances, NOBODY, np.int32)
    joining_next = np.full(n if settings.keep_requests else 0, NOBODY, np.int32)
    # Calendars: see `schedule`.
    slots = calendar_slots(output_tokens.max())
    first = np.full((instances, 1 + saturations, slots), NOBODY, np.int32)
    following = np.full((1 + saturations, n), NOBODY, np.int32)
    due_step = np.zeros((1 + saturations, n), np.int32)
    # The policy's view, and the buffers of a round.
    view = Ranks(
        np.zeros(ranks, np.int64),
        np.zeros(ranks, np.int64),
        np.full(ranks, largest),
        np.full(ranks, pool.max_batch),
        np.zeros((ranks, saturations), np.int64),
        np.arange(ranks) // width,
        np.zeros(ranks, np.int64),
    )
    shown_batch = view.batch.reshape((instances, width))
    shown_context = view.context_tokens.reshape((instances, width))
    shown_free = view.free_tokens.reshape((instances, width))
    shown_slots = view.free_slots.reshape((instances, width))
    shown_saturated = view.saturated_tokens.reshape((instances, width, saturations))
    held = np.zeros(MAX_ROUND, np.int64)
    held_rounds = np.zeros(MAX_ROUND, np.int64)
    asked = Requests(
        np.zeros(MAX_ROUND, np.int64),
        np.full(MAX_ROUND, -1, np.int64),
        np.zeros(MAX_ROUND, np.int64),
        np.zeros(MAX_ROUND, np.int64),
    )
    chosen = np.zeros(MAX_ROUND, np.int64)
    memory = Memory(memory_ints[0], memory_floats[0])
    totals_k = np.zeros(saturations, np.int64)

    released, seen, holding = (
        0,
        0,
        0,
    )  # requests that have arrived, that have been in a round, that wait since
    waiting, placed_now = 0, 0  # in the queue, in the pool
    started, idle_rounds = 0, 0
    counting = False
    now = 0.0
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
                else:
                    following[0, q] = first[i, 0, slot]
                    first[i, 0, slot] = q
                q = after
            # One loop an array, indices from 0: compilers turn such loops into vector code.
            for r in range(width):
                shown_batch[i, r] = batch[i, r]
            for r in range(width):
                shown_context[i, r] = context[i, r]
            for r in range(width):
                shown_slots[i, r] = pool.max_batch - batch[i, r]
            for r in range(width):
                shown_free[i, r] = largest - context[i, r] if batch[i, r] < pool.max_batch else -1
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

        # Rule 3: rounds of placement until the queue is empty or nothing more can be placed.
        while waiting > 0:
            size = holding
            while size < MAX_ROUND and seen < released:
                if context_tokens[seen] <= largest:
                    held[size], held_rounds[size] = seen, 0
                    size += 1
                seen += 1
            for j in range(size):
                asked.context_tokens[j] = context_tokens[held[j]]
                asked.session[j] = session[min(held[j], len(session) - 1)]
                asked.waited_rounds[j] = held_rounds[j]
                chosen[j] = -1
            requests = Requests(
                asked.context_tokens[:size],
                asked.budget_tokens[:size],
                asked.session[:size],
                asked.waited_rounds[:size],
            )
            ended[ENDED.ROUNDS] += 1
            if len(pool.group_starts) == 2:
                place(view, requests, prices, params, memory, chosen[:size])
            else:
                place_in_groups(
                    view, requests, prices, pool, settings.group_by_tokens, place, params,
                    memory_ints, memory_floats, chosen[:size],
                )  # fmt: skip
            holding = 0
            for j in range(size):
                q, r = held[j], chosen[j]
                if r == -1:
                    ended[ENDED.BLOCKED_REQUESTS] += held_rounds[j] == 0
                    ended[ENDED.BLOCKED_ROUNDS] += 1
                    held[holding], held_rounds[holding] = q, held_rounds[j] + 1
                    holding += 1
                    continue
                length = context_tokens[q]
                known = 0 <= r < ranks
                p = r // width if known else 0
                r -= p * width
                if not known or context[p, r] + length > largest or batch[p, r] >= pool.max_batch:
                    ended[ENDED.ERROR] = NO_ROOM if known else BAD_RANK
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
                shown_free[p, r] = largest - context[p, r] if slots_left > 0 else -1
                if settings.keep_requests:
                    joining_next[q] = joining_first[p]
                    joining_first[p] = q
            if holding == size or ended[ENDED.ERROR]:
                break
            idle_rounds = 0
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

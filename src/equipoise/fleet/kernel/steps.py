"""A step of an instance: its ranks make room and admit, what it will cost is added up, and it ends."""

from __future__ import annotations

import math

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.layout import (
    ABORTED,
    COUNTS,
    EXTRAPOLATED,
    FAILED,
    FINISHED,
    NO_PREEMPTION,
    RECOMPUTE,
    TOO_MANY,
)
from equipoise.fleet.kernel.life import end_request
from equipoise.fleet.kernel.lists import one_of, put_first, replica_of
from equipoise.fleet.kernel.pictures import forget, held_tokens, learn_pace
from equipoise.fleet.kernel.rows import (
    add_up,
    compute_prompts,
    count_queued,
    drop_row,
    grow_all,
    growth,
    needed,
    next_turn,
    set_place,
    take_row,
    take_tokens,
    unqueue,
)
from equipoise.fleet.kernel.state import (
    AT,
    BATCH,
    CONTEXT,
    GROW,
    LACK,
    NOBODY,
    QUERIES,
    READ,
    RING_MASK,
    RUNNING,
    TALLY,
    UNTIL,
    USED,
    WHO,
    WINDOW,
)
from equipoise.fleet.kernel.world import (
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
from equipoise.replay.layout import ENDED

__all__ = ["admit", "end_step", "load_step", "make_room", "outgrown"]


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
    alike = len(draws.drafts) <= 1
    lengths = prices_in(world).saturation_tokens
    count_told, tokens = 0, 0
    for rank in range(instance * width, (instance + 1) * width):
        rows = state.ranks[rank].rows
        if rows == 0:
            continue
        used, until, lack = state.row[USED, rank], state.row[UNTIL, rank], state.row[LACK, rank]
        tokens += state.ranks[rank].yields
        if state.ranks[rank].lacking == 0 and alike:
            done = take_tokens(world, shift, rank)
        else:
            done, grown = 0, state.row[GROW, rank]
            for j in range(rows):
                used[j] += grown[j]
                done += used[j] == until[j]
            state.ranks[rank].context += state.ranks[rank].yields
            state.ranks[rank].fresh = 0
            if speculative:
                next_turn(world, rank)
                for j in range(rows):
                    if grown[j] == 0:
                        set_place(world, rank, j, state.row[AT, rank, j] + state.ranks[rank].turn - 1)
            add_up(world, shift, rank)
        if settings.keep_requests and state.ranks[rank].unborn > 0:
            for j in range(rows):
                q = np.int64(state.row[WHO, rank, j])
                if lack[j] == 0 and np.isnan(more.first_s[q]):
                    more.first_s[q] = now
                    state.ranks[rank].unborn -= 1
        if state.ranks[rank].lacking > 0:
            for j in range(rows):
                if lack[j] < 0:
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
                    state.ranks[rank].resident -= held_tokens(used[j], shift)
                    for s in range(len(lengths)):
                        state.saturated[RUNNING, rank, s] -= min(used[j], lengths[s])
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
                        for column in (GROW, AT, WINDOW):
                            state.row[column, rank, kept] = state.row[column, rank, j]
                kept += 1
            state.ranks[rank].rows = kept
            state.instances[instance].load -= rows - kept
            state.tally[TALLY.IN_POOL] -= rows - kept
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
            place = draws.phase[q] + size - work.context_tokens[q]
            set_place(world, rank, state.ranks[rank].rows, place)
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
    alike = len(draws.drafts) == 1
    tokens, mixed = 0, False
    for r in range(width):
        rank = instance * width + r
        rows = state.ranks[rank].rows
        for t in range(len(prefill.token)):
            state.pieces[t, r] = 0.0
        lacking = state.ranks[rank].lacking > 0
        if not lacking:
            batch, queries, context, yields, again = rows, rows, state.ranks[rank].context, rows, 0
            if alike:
                yields = state.ranks[rank].yields if state.ranks[rank].fresh else grow_all(world, rank)
                queries += rows * draws.drafts[0]
                again = draws.drafts[0] * context
            for s in range(len(lengths)):
                state.step_k[0, r, s] = state.saturated[RUNNING, rank, s]
        if lacking or (speculative and not alike):
            batch, queries, context, yields, again = 0, 0, 0, 0, 0
            used, lack = state.row[USED, rank], state.row[LACK, rank]
            for j in range(rows):
                state.row[GROW, rank, j] = 0
                if lack[j] != 0:
                    continue
                drafts = one_of(draws.drafts, state.row[WHO, rank, j]) if speculative else 0
                batch += 1
                queries += 1 + drafts
                context += used[j]
                again += drafts * used[j]
                state.row[GROW, rank, j] = growth(world, rank, j)
                yields += state.row[GROW, rank, j]
        state.step[BATCH, r], state.step[QUERIES, r], state.step[CONTEXT, r] = batch, queries, context
        state.step[READ, r] = context + np.int64(math.floor(extras.query_reads * again))
        state.ranks[rank].yields = yields
        tokens += yields
        for s in range(len(lengths)):
            if lacking or (speculative and not alike):
                total, more = 0, 0
                for j in range(rows):
                    if state.row[LACK, rank, j] == 0:
                        drafts = one_of(draws.drafts, state.row[WHO, rank, j]) if speculative else 0
                        kept = min(state.row[USED, rank, j], lengths[s])
                        total += kept
                        more += drafts * kept
                state.step_k[0, r, s] = total
            else:
                total = state.step_k[0, r, s]
                more = draws.drafts[0] * total if speculative else 0
            state.step_k[1, r, s] = total + np.int64(math.floor(extras.query_reads * more))
        if lacking:
            computed_tokens = compute_prompts(world, life.chunk_tokens, rank, r)
            counts[COUNTS.MIXED_TOKENS] += computed_tokens
            mixed |= computed_tokens > 0
    counts[COUNTS.MIXED_STEPS] += mixed
    return tokens, mixed

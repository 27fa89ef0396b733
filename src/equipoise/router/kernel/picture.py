"""The picture of a rank: own leases exactly, and what a report shows beyond those of them it has seen.

A report is of the past. What the router itself had on the rank then follows from counts that only rise (sent, released,
generated), kept with their times: requests it must have seen are those sent some time before it was made, or as many
as it says itself; what was released before it was made is not in it. The rest is of others. Reports never touch what
the router counts itself, so none can erase a dispatch, whenever it comes.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.rules import room
from equipoise.router.kernel.state import (
    COUNT,
    SET,
    counts_in,
    instances_in,
    past_in,
    prices_in,
    ranks_in,
    saturated_in,
    settings_in,
    view_in,
)

__all__ = ["forget_others", "keep", "refresh", "refresh_instance", "show_times", "take_report"]

TOKENS_APART_S = 0.01
"""Counts of tokens alone are kept so far apart: they change all the time."""


@jitable
def growth(world, r, now):  # type: ignore[no-untyped-def]
    """Tokens that the leases of a rank are taken to have grown by, where tokens are not told."""
    rank = ranks_in(world)[r]
    pace_s = instances_in(world)[view_in(world).instance[r]].pace_s
    if settings_in(world)[SET.EXTRAPOLATED] == 0.0 or pace_s <= 0.0 or rank.batch == 0:
        return 0
    return max(0, int((rank.batch * now - rank.sent_us * 1e-6) / pace_s))


@jitable
def refresh(world, r, now):  # type: ignore[no-untyped-def]
    """Show a rank as it is."""
    view, rank, lengths = view_in(world), ranks_in(world)[r], prices_in(world).saturation_tokens
    instance = instances_in(world)[view.instance[r]]
    batch = rank.batch + rank.others_batch
    context = rank.context + rank.others_context + growth(world, r, now)
    slots = min(rank.max_batch, rank.cap) - batch
    if rank.drained or instance.closed or instance.probes_left <= 0:
        slots = 0
    reserve = int(settings_in(world)[SET.GROWTH_RESERVE])
    view.batch[r] = batch
    view.context_tokens[r] = context
    view.free_slots[r] = slots
    view.free_tokens[r] = room(rank.kv_capacity_tokens - reserve - context, slots)
    for s in range(len(lengths)):
        others = min(rank.others_context, rank.others_batch * lengths[s])
        view.saturated_tokens[r, s] = saturated_in(world)[r, s] + others


@jitable
def refresh_instance(world, i, now):  # type: ignore[no-untyped-def]
    """Show the ranks of an instance as they are."""
    instance = instances_in(world)[i]
    for r in range(instance.first, instance.first + instance.ranks):
        refresh(world, r, now)


@jitable
def show_times(world, now):  # type: ignore[no-untyped-def]
    """Show when what is placed now starts and how old reports are; bring up to date what time alone changes."""
    instances, ranks, view = instances_in(world), ranks_in(world), view_in(world)
    extrapolated = settings_in(world)[SET.EXTRAPOLATED] > 0.0
    for i in range(len(instances)):
        first, last = instances[i].first, instances[i].first + instances[i].ranks
        starts_in_s = 0.0
        if instances[i].told:
            if instances[i].ends_s < np.inf:
                starts_in_s = max(instances[i].ends_s - now, 1e-9)
        elif instances[i].running > 0 and instances[i].asked == instances[i].steps:
            starts_in_s = max(instances[i].stepped_s + instances[i].step_s - now, 1e-9)
        instances[i].asked = instances[i].steps
        for r in range(first, last):
            view.starts_in_s[r] = starts_in_s
        slow = cap_slow_start(world, i, now)
        steps = instances[i].steps
        for r in range(first, last):
            view.report_age_steps[r] = steps - ranks[r].reported_step if ranks[r].others_batch > 0 else 0
        if slow or extrapolated:
            refresh_instance(world, i, now)


UNCAPPED = 1 << 40


@jitable
def cap_slow_start(world, i, now):  # type: ignore[no-untyped-def]
    """Cap the ranks of an instance that has come back: a share of the others' mean batch that rises with time.

    Returns whether anything may have changed.
    """
    instances, ranks, view = instances_in(world), ranks_in(world), view_in(world)
    first, last = instances[i].first, instances[i].first + instances[i].ranks
    if now >= instances[i].slow_until_s:
        if first == last or ranks[first].cap == UNCAPPED:
            return False
        for r in range(first, last):
            ranks[r].cap = UNCAPPED
        return True
    total, count = 0, 0
    for j in range(len(instances)):
        if instances[j].closed == 0 and now >= instances[j].slow_until_s:
            for r in range(instances[j].first, instances[j].first + instances[j].ranks):
                total += view.batch[r]
            count += instances[j].ranks
    cap = UNCAPPED
    if count > 0:
        share = (now - instances[i].slow_from_s) / (instances[i].slow_until_s - instances[i].slow_from_s)
        cap = max(1, int(share * total / count))
    for r in range(first, last):
        ranks[r].cap = cap
    return True


@jitable
def keep(world, r, now, apart_s):  # type: ignore[no-untyped-def]
    """Keep the counts of a rank as of now, in the place of the last ones if those are more recent than `apart_s`."""
    ranks, past = ranks_in(world), past_in(world)
    places = len(past) // len(ranks)
    count = ranks[r].ring_count
    at = r * places + (count - 1) % places
    if count == 0 or now - past[at].from_s >= apart_s:
        at = r * places + count % places
        ranks[r].ring_count = count + 1
        past[at].from_s = now
    past[at].dispatched = ranks[r].dispatched
    past[at].dispatched_tokens = ranks[r].dispatched_tokens
    past[at].released = ranks[r].released
    past[at].released_tokens = ranks[r].released_tokens
    past[at].generated = ranks[r].generated


@jitable
def kept_at(world, r, then, dispatched):  # type: ignore[no-untyped-def]
    """Where the counts stand as they were at a time, or when so many had been sent; -1: nothing had; -2: forgotten."""
    ranks, past = ranks_in(world), past_in(world)
    places = len(past) // len(ranks)
    count = ranks[r].ring_count
    for k in range(count - 1, max(count - places, 0) - 1, -1):
        at = r * places + k % places
        if past[at].from_s <= then and past[at].dispatched <= dispatched:
            return at
    return -2 if count > places else -1


ANY = 1 << 62


@jitable
def take_report(world, r, batch, context, taken_s, sequence, seen, now):  # type: ignore[no-untyped-def]
    """Take in what an engine says of a rank; `context`, `sequence` and `seen` may be -1: it does not say.

    Returns 1, or 0 where the report is no news.
    """
    ranks, past, counts = ranks_in(world), past_in(world), counts_in(world)
    i = view_in(world).instance[r]
    instances = instances_in(world)
    taken_s = min(taken_s, now)
    if taken_s <= ranks[r].reported_s or (sequence >= 0 and sequence == ranks[r].sequence):
        counts[COUNT.OLD_REPORTS] += 1
        return 0
    then = kept_at(world, r, taken_s, ANY)
    if seen >= 0:
        sent = kept_at(world, r, np.inf, seen)
    else:
        sent = kept_at(world, r, taken_s - settings_in(world)[SET.SETTLE_S], ANY)
    if then == -2 or sent == -2:
        counts[COUNT.OLD_REPORTS] += 1
        return 0
    own, own_context = 0, 0
    if sent >= 0:
        own, own_context = past[sent].dispatched, past[sent].dispatched_tokens
    if then >= 0:
        own -= past[then].released
        own_context += past[then].generated - past[then].released_tokens
    own, own_context = max(own, 0), max(own_context, 0)
    pace_s = instances[i].pace_s
    grown = growth(world, r, now)
    if grown > 0:
        own_context += max(0, grown - int(ranks[r].batch * (now - taken_s) / pace_s))
    others = max(batch - own, 0)
    others_context = 0
    if others > 0:
        if context >= 0:
            others_context = max(context - own_context, 0)
        elif own > 0:
            others_context = others * (own_context // own)
    ranks[r].others_batch, ranks[r].others_context = others, others_context
    ranks[r].missing = max(own - batch, 0)
    ranks[r].reported_s, ranks[r].reported_batch = taken_s, batch
    since = (now - taken_s) / instances[i].step_s if instances[i].step_s > 0.0 else 0.0
    ranks[r].reported_step = instances[i].steps - min(int(since), instances[i].steps)
    if sequence >= 0:
        ranks[r].sequence = sequence
    instances[i].reported_s = max(instances[i].reported_s, taken_s)
    counts[COUNT.REPORTS] += 1
    counts[COUNT.DIRTY] = 1
    refresh(world, r, now)
    return 1


@jitable
def forget_others(world, now):  # type: ignore[no-untyped-def]
    """Forget what others had on ranks that have not reported for long; on how many ranks."""
    ranks, forget_s, count = ranks_in(world), settings_in(world)[SET.FORGET_S], 0
    for r in range(len(ranks)):
        if ranks[r].others_batch > 0 and now - ranks[r].reported_s > forget_s:
            ranks[r].others_batch = ranks[r].others_context = 0
            refresh(world, r, now)
            count += 1
    return count

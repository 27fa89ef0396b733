"""What routers see of the ranks: the truth, or reports on their way and what each replica adds to them by itself.

A replica's picture of a rank is, for every load (requests, context, resident tokens, K by saturation length),

    what the last delivered report says  +  what the replica counts itself now  -  what it counted then

- ``ledger``: it counts its own requests exactly, tokens and ends included; "then" is when the report was made. With one
  replica the picture is exact, whatever the report's age.
- ``extrapolated``: the same, but it does not see tokens: it takes each of its requests to have grown at the pace at
  which the last ones finished on that instance.
- ``acknowledged``: it counts its own dispatches, at their size then; the report says which it has seen.
- ``erased``: the same, but "then" is when the report came in: dispatches on their way are forgotten, as by routers that
  overwrite their picture.

Loads are kept in channels: 0 requests, 1 context tokens, 2 resident tokens, 3 ... K, and last the dispatches ever made.
A picture is brought up to date when its instance ends a step, when a report of it comes in and when the replica sends
a request there; in between it keeps its numbers. A guess of one's own share may be above what is reported of all:
nothing is shown below 0.
"""

from __future__ import annotations

import math

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.layout import ERASED, EXTRAPOLATED, LEDGER
from equipoise.fleet.kernel.lists import replica_of
from equipoise.fleet.kernel.routers import AGE, BATCH, CONTEXT, FREE_SLOTS, FREE_TOKENS, STALE, UNSEEN
from equipoise.fleet.kernel.state import NOBODY, QUEUED, RUNNING, USED, WHO
from equipoise.fleet.kernel.world import life_in, prices_in, ranked_in, seen_in, settings_in, state_in
from equipoise.types import Ranks

__all__ = [
    "count_dispatch",
    "count_own",
    "deliver",
    "forget",
    "held_tokens",
    "is_due",
    "learn_pace",
    "next_delivery_s",
    "publish",
    "refresh",
    "refresh_instance",
    "view_of",
]


@jitable
def view_of(world, k):  # type: ignore[no-untyped-def]
    """View number k, sharing memory with the whole."""
    seen = seen_in(world)
    shown = seen.shown
    return Ranks(
        shown[BATCH, k], shown[CONTEXT, k], shown[FREE_TOKENS, k], shown[FREE_SLOTS, k], seen.saturated[k],
        shown[UNSEEN, k], seen.instance, seen.rank, seen.starts_in_s[1 if k == len(seen.own) else 0], shown[AGE, k],
    )  # fmt: skip


@jitable
def refresh(world, reserve, k, first, last, instance):  # type: ignore[no-untyped-def]
    """Bring ranks `first` to before `last`, all of one instance, up to date in view number k."""
    seen, settings, state, ranked = seen_in(world), settings_in(world), state_in(world), ranked_in(world)
    shown = seen.shown
    seen.totals[STALE, k, instance] = 1
    if k == len(seen.own):  # the exact one, behind those of replicas
        for r in range(first, last):
            now = state.ranks[r]
            batch = now.rows + now.queued
            slots = 0 if now.closed else ranked.max_batch[r] - batch
            room = ranked.kv_capacity_tokens[r] - reserve - (now.resident + now.queued_resident)
            shown[BATCH, k, r] = batch
            shown[CONTEXT, k, r] = now.context + now.queued_context
            shown[FREE_SLOTS, k, r] = slots
            shown[FREE_TOKENS, k, r] = room if slots > 0 else -1
        for s in range(seen.saturated.shape[2]):
            for r in range(first, last):
                seen.saturated[k, r, s] = state.saturated[RUNNING, r, s] + state.saturated[QUEUED, r, s]
        return
    told, own, base = seen.told, seen.own[k], seen.base[k]
    age = state.instances[instance].steps - seen.reported[instance].told_step
    for r in range(first, last):
        shown[BATCH, k, r] = max(0, told[0, r] + own[0, r] - base[0, r])
    for r in range(first, last):
        shown[CONTEXT, k, r] = max(0, told[1, r] + own[1, r] - base[1, r])
    for s in range(seen.saturated.shape[2]):
        for r in range(first, last):
            seen.saturated[k, r, s] = max(0, told[3 + s, r] + own[3 + s, r] - base[3 + s, r])
    if settings.knows != LEDGER and settings.knows != EXTRAPOLATED:
        for r in range(first, last):
            shown[UNSEEN, k, r] = own[-1, r] - base[-1, r]
    for r in range(first, last):
        shown[AGE, k, r] = age
        slots = 0 if state.ranks[r].closed else ranked.max_batch[r] - shown[BATCH, k, r]
        room = ranked.kv_capacity_tokens[r] - reserve - max(0, told[2, r] + own[2, r] - base[2, r])
        shown[FREE_SLOTS, k, r] = slots
        shown[FREE_TOKENS, k, r] = room if slots > 0 else -1


@jitable
def refresh_instance(world, reserve, width, instance):  # type: ignore[no-untyped-def]
    """Bring all ranks of an instance up to date, in every view."""
    for k in range(seen_in(world).shown.shape[1]):
        refresh(world, reserve, k, instance * width, (instance + 1) * width, instance)


@jitable
def count_own(world, session, shift, width, instance, now):  # type: ignore[no-untyped-def]
    """Bring what replicas count of an instance up to date, where they count their own requests themselves."""
    seen, settings, state = seen_in(world), settings_in(world), state_in(world)
    lengths = prices_in(world).saturation_tokens
    replicas = len(seen.own)
    if settings.knows == EXTRAPOLATED:
        now_us = int(now * 1e6)
        for k in range(replicas):
            for r in range(instance * width, (instance + 1) * width):
                count, grown = seen.live[k, 0, r], 0
                if seen.reported[instance].pace_s > 0.0:
                    waited_us = count * now_us - seen.live[k, -1, r]
                    grown = max(0, int(waited_us / (1e6 * seen.reported[instance].pace_s)))
                seen.own[k, 0, r] = count
                seen.own[k, 1, r] = seen.live[k, 1, r] + grown
                seen.own[k, 2, r] = seen.live[k, 1, r] + grown
                for s in range(len(lengths)):
                    seen.own[k, 3 + s, r] = seen.live[k, 3 + s, r]
    elif settings.knows == LEDGER:
        for r in range(instance * width, (instance + 1) * width):
            if replicas == 1:
                own = seen.own[0]
                own[0, r] = state.ranks[r].rows + state.ranks[r].queued
                own[1, r] = state.ranks[r].context + state.ranks[r].queued_context
                own[2, r] = state.ranks[r].resident + state.ranks[r].queued_resident
                for s in range(len(lengths)):
                    own[3 + s, r] = state.saturated[RUNNING, r, s] + state.saturated[QUEUED, r, s]
                continue
            for k in range(replicas):
                for c in range(3 + len(lengths)):
                    seen.own[k, c, r] = 0
            for j in range(state.ranks[r].rows):
                k = replica_of(np.int64(state.row[WHO, r, j]), session, replicas)
                add_loads(seen.own[k], lengths, shift, r, np.int64(state.row[USED, r, j]))
            q = np.int64(state.lists[r].first)
            while q != NOBODY:
                add_loads(
                    seen.own[replica_of(q, session, replicas)],
                    lengths,
                    shift,
                    r,
                    np.int64(state.requests[q].size),
                )
                q = np.int64(state.requests[q].following)


@jitable
def held_tokens(tokens, shift):  # type: ignore[no-untyped-def]
    """KV that a context takes, in tokens: whole blocks of 2**shift."""
    return ((tokens + (1 << shift) - 1) >> shift) << shift


@jitable
def add_loads(counts, lengths, shift, rank, tokens):  # type: ignore[no-untyped-def]
    """Count one request into channels, the number of dispatches left out."""
    counts[0, rank] += 1
    counts[1, rank] += tokens
    counts[2, rank] += held_tokens(tokens, shift)
    for s in range(len(lengths)):
        counts[3 + s, rank] += min(tokens, lengths[s])


@jitable
def count_dispatch(world, shift, replica, rank, request, tokens, now, lives):  # type: ignore[no-untyped-def]
    """Count a dispatch for the replica that made it; `lives`: the rank is up and has taken it."""
    seen, settings = seen_in(world), settings_in(world)
    lengths = prices_in(world).saturation_tokens
    own = seen.own[replica]
    own[-1, rank] += 1
    counts_itself = settings.knows == LEDGER or settings.knows == EXTRAPOLATED
    if lives or not counts_itself:
        add_loads(own, lengths, shift, rank, tokens)
    if settings.knows == EXTRAPOLATED and lives:
        own[2, rank] += tokens - held_tokens(tokens, shift)  # it does not see blocks
        now_us = int(now * 1e6)
        live = seen.live[replica]
        add_loads(live, lengths, shift, rank, tokens)
        live[-1, rank] += now_us
        seen.sent[request].tokens = tokens
        seen.sent[request].us = now_us


@jitable
def forget(world, shift, replica, rank, request):  # type: ignore[no-untyped-def]
    """A live request of a replica has ended or is lost: it knows (``extrapolated``; others need no telling)."""
    seen, settings = seen_in(world), settings_in(world)
    lengths = prices_in(world).saturation_tokens
    if settings.knows == EXTRAPOLATED:
        live = seen.live[replica]
        tokens = seen.sent[request].tokens
        live[0, rank] -= 1
        live[1, rank] -= tokens
        live[2, rank] -= held_tokens(tokens, shift)
        for s in range(len(lengths)):
            live[3 + s, rank] -= min(tokens, lengths[s])
        live[-1, rank] -= seen.sent[request].us


@jitable
def learn_pace(world, instance, start_s, now, tokens):  # type: ignore[no-untyped-def]
    """Seconds a token, an average over about the last sixteen requests that finished on an instance."""
    seen = seen_in(world)
    pace_s = (now - start_s) / tokens
    if seen.reported[instance].pace_s == 0.0:
        seen.reported[instance].pace_s = pace_s
    else:
        seen.reported[instance].pace_s += (pace_s - seen.reported[instance].pace_s) / 16


@jitable
def is_due(world, instance, now):  # type: ignore[no-untyped-def]
    """Whether an instance reports at this step end."""
    seen, settings, state = seen_in(world), settings_in(world), state_in(world)
    period_s = life_in(world).report_period_s
    if period_s == 0:
        return state.instances[instance].steps % settings.report_period_steps == 0
    if now < seen.reported[instance].next_s:
        return False
    seen.reported[instance].next_s = (math.floor(now / period_s) + 1) * period_s
    return True


@jitable
def publish(world, instance, step, now):  # type: ignore[no-untyped-def]
    """Send a report of an instance: its ranks, engine queues included, and what every replica counts itself."""
    seen, state = seen_in(world), state_in(world)
    width, places = seen.ring.shape[2], len(seen.ring) // len(seen.reported)
    channels, first_rank = len(seen.told), instance * width
    if seen.reported[instance].ring_count == places:
        seen.reported[instance].ring_count -= 1
    place = (seen.reported[instance].ring_first + seen.reported[instance].ring_count) % places
    seen.reported[instance].ring_count += 1
    arriving = instance * places + place
    seen.on_its_way[arriving].step = step
    seen.on_its_way[arriving].sent_s = now
    report = seen.ring[instance * places + place]
    for j in range(width):
        r = first_rank + j
        report[0, j] = state.ranks[r].rows + state.ranks[r].queued
        report[1, j] = state.ranks[r].context + state.ranks[r].queued_context
        report[2, j] = state.ranks[r].resident + state.ranks[r].queued_resident
        for s in range(channels - 4):
            report[3 + s, j] = state.saturated[RUNNING, r, s] + state.saturated[QUEUED, r, s]
        report[channels - 1, j] = 0
    for k in range(len(seen.own)):
        for c in range(channels):
            for j in range(width):
                report[channels * (1 + k) + c, j] = seen.own[k, c, first_rank + j]


@jitable
def deliver(world, instance, step, idle, now):  # type: ignore[no-untyped-def]
    """Take in the reports of an instance that are due; those of an idle one do not wait for steps that never come.

    Returns whether there was one.
    """
    seen, settings = seen_in(world), settings_in(world)
    width, places = seen.ring.shape[2], len(seen.ring) // len(seen.reported)
    channels, first_rank = len(seen.told), instance * width
    news = False
    while seen.reported[instance].ring_count > 0:
        place = seen.reported[instance].ring_first
        if step - seen.on_its_way[instance * places + place].step < settings.report_delay_steps and not idle:
            break
        if now < seen.on_its_way[instance * places + place].sent_s + settings.report_delay_s:
            break
        report = seen.ring[instance * places + place]
        for c in range(channels):
            for j in range(width):
                seen.told[c, first_rank + j] = report[c, j]
        for k in range(len(seen.own)):
            for c in range(channels):
                for j in range(width):
                    then = report[channels * (1 + k) + c, j]
                    now_ = seen.own[k, c, first_rank + j]
                    seen.base[k, c, first_rank + j] = now_ if settings.knows == ERASED else then
        seen.reported[instance].told_step = seen.on_its_way[instance * places + place].step
        seen.reported[instance].ring_first = (place + 1) % places
        seen.reported[instance].ring_count -= 1
        news = True
    return news


@jitable
def next_delivery_s(world):  # type: ignore[no-untyped-def]
    """When the first report on its way comes in, if nothing else happens; infinity: none is on its way."""
    seen, settings = seen_in(world), settings_in(world)
    soonest = np.inf
    for i in range(len(seen.reported)):
        if seen.reported[i].ring_count > 0:
            place = i * (len(seen.ring) // len(seen.reported)) + seen.reported[i].ring_first
            soonest = min(soonest, seen.on_its_way[place].sent_s + settings.report_delay_s)
    return soonest

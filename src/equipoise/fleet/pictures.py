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
a request there; in between it keeps its numbers.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise._jit import jitable
from equipoise.fleet.state import NOBODY, QUEUED, RUNNING, USED, WHO
from equipoise.replay.knowledge import replica_of
from equipoise.replay.layout import ERASED, EXACT, EXTRAPOLATED, LEDGER, PoolLayout, Settings
from equipoise.types import Floats, Ints, Ints2D, Ints3D, Ranks

__all__ = [
    "Pictures",
    "count_dispatch",
    "count_own",
    "deliver",
    "forget",
    "held_tokens",
    "learn_pace",
    "new_pictures",
    "next_delivery_s",
    "publish",
    "refresh",
    "refresh_instance",
    "view_of",
]

MOST_ON_THEIR_WAY = 64
"""Reports of an instance on their way, where the delay is in seconds; one more takes the place of the latest."""


BATCH, CONTEXT, FREE_TOKENS, FREE_SLOTS, UNSEEN, AGE = 0, 1, 2, 3, 4, 5
"""Of what policies are shown."""

REPORTED = np.dtype(
    [
        ("told_step", np.int64),  # the step after which the last delivered report was made
        ("ring_first", np.int64),
        ("ring_count", np.int64),
        ("next_s", np.float64),  # when the next report is due, where they come by the clock
        ("pace_s", np.float64),  # seconds a token, from requests that finished; 0: none has
    ]
)
"""What is known about the reports of an instance."""
ON_ITS_WAY = np.dtype([("step", np.int64), ("sent_s", np.float64)])
SENT = np.dtype([("tokens", np.int64), ("us", np.int64)])
"""A request's size when it was sent, and when, in microseconds (``extrapolated``)."""


class Pictures(NamedTuple):
    """Views (one a replica, and last the exact one where it is needed), counts, and reports on their way."""

    shown: Ints3D
    """int64[6, views, ranks], see `BATCH`."""
    saturated: Ints3D
    """int64[views, ranks, saturations]"""
    instance: Ints
    rank: Ints
    starts_in_s: Floats
    own: Ints3D
    """int64[replicas, channels, ranks]: what a replica counts itself."""
    base: Ints3D
    """The same, as it was "then"."""
    told: Ints2D
    """int64[channels, ranks]: the last delivered report."""
    reported: Annotated[NDArray[np.void], REPORTED]
    """[instances]"""
    live: Ints3D
    """int64[replicas, channels, ranks]: live requests of a replica, as they were when sent; last, when they were sent,
    in microseconds, added up (``extrapolated``)."""
    sent: Annotated[NDArray[np.void], SENT]
    """[requests]"""
    ring: Ints3D
    """int64[instances * places, channels * (1 + replicas), width]: reports on their way."""
    on_its_way: Annotated[NDArray[np.void], ON_ITS_WAY]
    """[instances * places]"""


def new_pictures(
    pool: PoolLayout, settings: Settings, saturations: int, requests: int, *, by_instance: bool
) -> Pictures:
    """Views of an empty pool; nothing known of it, which is all there is to know."""
    instances, width = pool.instances, pool.ranks_per_instance
    ranks, channels = instances * width, 4 + saturations
    told = settings.knows != EXACT
    replicas = settings.replicas if told else 0
    views = replicas + 1 if by_instance or not told else replicas
    guesses = settings.knows == EXTRAPOLATED
    places = settings.report_delay_steps // settings.report_period_steps + 3
    if settings.report_delay_s > 0:
        places = max(places, MOST_ON_THEIR_WAY)
    if not told:
        places = 0
    return Pictures(
        shown=np.zeros((6, views, ranks), np.int64),
        saturated=np.zeros((views, ranks, saturations), np.int64),
        instance=np.arange(ranks) // width,
        rank=np.arange(ranks),
        starts_in_s=np.zeros(ranks),
        own=np.zeros((replicas, channels, ranks), np.int64),
        base=np.zeros((replicas, channels, ranks), np.int64),
        told=np.zeros((channels, ranks), np.int64),
        reported=np.zeros(instances, REPORTED),
        live=np.zeros((replicas if guesses else 0, channels, ranks), np.int64),
        sent=np.zeros(requests if guesses else 0, SENT),
        ring=np.zeros((instances * places, channels * (1 + replicas), width), np.int64),
        on_its_way=np.zeros(instances * places, ON_ITS_WAY),
    )


@jitable
def view_of(seen, k):  # type: ignore[no-untyped-def]
    """View number k, sharing memory with the whole."""
    shown = seen.shown
    return Ranks(
        shown[BATCH, k], shown[CONTEXT, k], shown[FREE_TOKENS, k], shown[FREE_SLOTS, k], seen.saturated[k],
        shown[UNSEEN, k], seen.instance, seen.rank, seen.starts_in_s, shown[AGE, k],
    )  # fmt: skip


@jitable
def refresh(seen, settings, state, ranked, reserve, k, rank, instance):  # type: ignore[no-untyped-def]
    """Bring one rank of view number k up to date."""
    if k == len(seen.own):  # the exact one, behind those of replicas
        batch = state.ranks[rank].rows + state.ranks[rank].queued
        context = state.ranks[rank].context + state.ranks[rank].queued_context
        resident = state.ranks[rank].resident + state.ranks[rank].queued_resident
        for s in range(seen.saturated.shape[2]):
            seen.saturated[k, rank, s] = state.saturated[RUNNING, rank, s] + state.saturated[QUEUED, rank, s]
    else:
        told, own, base = seen.told, seen.own[k], seen.base[k]
        batch = told[0, rank] + own[0, rank] - base[0, rank]
        context = told[1, rank] + own[1, rank] - base[1, rank]
        resident = told[2, rank] + own[2, rank] - base[2, rank]
        for s in range(seen.saturated.shape[2]):
            seen.saturated[k, rank, s] = told[3 + s, rank] + own[3 + s, rank] - base[3 + s, rank]
        if settings.knows != LEDGER and settings.knows != EXTRAPOLATED:
            seen.shown[UNSEEN, k, rank] = own[-1, rank] - base[-1, rank]
        seen.shown[AGE, k, rank] = state.instances[instance].steps - seen.reported[instance].told_step
    seen.shown[BATCH, k, rank] = batch
    seen.shown[CONTEXT, k, rank] = context
    slots = 0 if state.ranks[rank].closed else ranked.max_batch[rank] - batch
    seen.shown[FREE_SLOTS, k, rank] = slots
    seen.shown[FREE_TOKENS, k, rank] = ranked.kv_capacity_tokens[rank] - reserve - resident if slots > 0 else -1


@jitable
def refresh_instance(seen, settings, state, ranked, reserve, width, instance):  # type: ignore[no-untyped-def]
    """Bring all ranks of an instance up to date, in every view."""
    for k in range(seen.shown.shape[1]):
        for rank in range(instance * width, (instance + 1) * width):
            refresh(seen, settings, state, ranked, reserve, k, rank, instance)


@jitable
def count_own(seen, settings, state, lengths, session, shift, width, instance, now):  # type: ignore[no-untyped-def]
    """Bring what replicas count of an instance up to date, where they count their own requests themselves."""
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
                add_loads(seen.own[replica_of(q, session, replicas)], lengths, shift, r, np.int64(state.requests[q].size))
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
def count_dispatch(seen, settings, lengths, shift, replica, rank, request, tokens, now, lives):  # type: ignore[no-untyped-def]
    """Count a dispatch for the replica that made it; `lives`: the rank is up and has taken it."""
    own = seen.own[replica]
    own[-1, rank] += 1
    counts_itself = settings.knows == LEDGER or settings.knows == EXTRAPOLATED
    if lives or not counts_itself:
        add_loads(own, lengths, shift, rank, tokens)
    if settings.knows == EXTRAPOLATED and lives:
        now_us = int(now * 1e6)
        live = seen.live[replica]
        add_loads(live, lengths, shift, rank, tokens)
        live[-1, rank] += now_us
        seen.sent[request].tokens = tokens
        seen.sent[request].us = now_us


@jitable
def forget(seen, settings, lengths, shift, replica, rank, request):  # type: ignore[no-untyped-def]
    """A live request of a replica has ended or is lost: it knows (``extrapolated``; others need no telling)."""
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
def learn_pace(seen, instance, start_s, now, tokens):  # type: ignore[no-untyped-def]
    """Seconds a token, an average over about the last sixteen requests that finished on an instance."""
    pace_s = (now - start_s) / tokens
    if seen.reported[instance].pace_s == 0.0:
        seen.reported[instance].pace_s = pace_s
    else:
        seen.reported[instance].pace_s += (pace_s - seen.reported[instance].pace_s) / 16


@jitable
def publish(seen, state, instance, step, now):  # type: ignore[no-untyped-def]
    """Send a report of an instance: its ranks, engine queues included, and what every replica counts itself."""
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
def deliver(seen, settings, instance, step, idle, now):  # type: ignore[no-untyped-def]
    """Take in the reports of an instance that are due; those of an idle one do not wait for steps that never come.

    Returns whether there was one.
    """
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
def next_delivery_s(seen, settings):  # type: ignore[no-untyped-def]
    """When the first report on its way comes in, if nothing else happens; infinity: none is on its way."""
    soonest = np.inf
    for i in range(len(seen.reported)):
        if seen.reported[i].ring_count > 0:
            place = i * (len(seen.ring) // len(seen.reported)) + seen.reported[i].ring_first
            soonest = min(soonest, seen.on_its_way[place].sent_s + settings.report_delay_s)
    return soonest

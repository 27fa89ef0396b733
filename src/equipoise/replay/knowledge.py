"""What router replicas know of the ranks: reports on their way, and what each replica adds to them by itself.

A replica's picture of a rank is, for every load (requests, context, K by saturation length),

    what the last delivered report says  +  what the replica counts itself now  -  what it counted then

- ``ledger``: it counts its own requests exactly, tokens and finishes included; "then" is when the report was made. With
  one replica the picture is exact, whatever the report's age.
- ``acknowledged``: it counts its own dispatches, at their size then; the report says which it has seen.
- ``erased``: the same, but "then" is when the report came in: dispatches on their way are forgotten, as by routers that
  overwrite their picture.

Loads are kept in channels: 0 requests, 1 context tokens, 2 ... K, and last the number of dispatches ever made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import book, fits
from equipoise.policies.groups import place_in_groups
from equipoise.policies.views import take_requests
from equipoise.replay.layout import BAD_RANK, ERASED, EXACT, LEDGER, MAX_ROUND, NO_ROOM, PoolLayout, Settings
from equipoise.types import Floats2D, Ints, Ints2D, Ints3D, SmallInts

__all__ = [
    "Knowledge",
    "deliver",
    "grow",
    "join",
    "leave",
    "new_knowledge",
    "next_delivery_s",
    "publish",
    "replica_of",
    "replicas_in_turn",
]

MOST_ON_THEIR_WAY = 64
"""Reports of an instance on their way, where the delay is in seconds; one more takes the place of the latest."""


class Knowledge(NamedTuple):
    """Counts, reports delivered, reports on their way (a ring for each instance), and the engines' own queues."""

    own: Ints3D
    """int64[replicas, channels, ranks]: what a replica counts itself."""
    base: Ints3D
    """The same, as it was "then"."""
    told: Ints2D
    """int64[channels, ranks]: the last delivered report."""
    told_step: Ints
    """int64[instances]: the step after which it was made."""
    ring: Ints3D
    """int64[instances * places, channels * (1 + replicas), width]: reports on their way, with replicas' own counts."""
    ring_step: Ints2D
    ring_s: Floats2D
    ring_first: Ints
    ring_count: Ints
    queue_first: SmallInts
    """int32[ranks]: what waits in the engine of a rank; everything placed does until the next step starts."""
    queue_last: SmallInts
    queue_next: SmallInts
    queued: Ints2D
    """int64[channels, ranks]: its loads."""
    running: Ints2D
    """int64[replicas, ranks]: requests of each replica that run."""
    unsaturated: Ints3D
    """int64[replicas, ranks, saturations]: of these, those below each saturation length."""
    turn: Ints
    """int64[MAX_ROUND]: places in the round of the requests whose replica has its turn."""


def new_knowledge(pool: PoolLayout, settings: Settings, saturations: int, requests: int) -> Knowledge:
    """Nothing known of an empty pool, which is all there is to know; small arrays where views are exact."""
    instances, width, replicas = pool.instances, pool.ranks_per_instance, settings.replicas
    ranks, channels = instances * width, 3 + saturations
    places = settings.report_delay_steps // settings.report_period_steps + 3
    if settings.report_delay_s > 0:
        places = max(places, MOST_ON_THEIR_WAY)
    if not settings.informed:
        ranks = requests = replicas = places = 0
    return Knowledge(
        own=np.zeros((replicas, channels, ranks), np.int64),
        base=np.zeros((replicas, channels, ranks), np.int64),
        told=np.zeros((channels, ranks), np.int64),
        told_step=np.zeros(instances, np.int64),
        ring=np.zeros((instances * places, channels * (1 + replicas), width), np.int64),
        ring_step=np.zeros((instances, places), np.int64),
        ring_s=np.zeros((instances, places)),
        ring_first=np.zeros(instances, np.int64),
        ring_count=np.zeros(instances, np.int64),
        queue_first=np.full(ranks, -1, np.int32),
        queue_last=np.full(ranks, -1, np.int32),
        queue_next=np.full(requests, -1, np.int32),
        queued=np.zeros((channels, ranks), np.int64),
        running=np.zeros((replicas, ranks), np.int64),
        unsaturated=np.zeros((replicas, ranks, saturations), np.int64),
        turn=np.zeros(MAX_ROUND, np.int64),
    )


@jitable
def dispatch(know, replica, rank, request, tokens, lengths):  # type: ignore[no-untyped-def]
    """Count a placement for the replica that made it, and put the request into the engine's queue of its rank."""
    for counts in (know.own[replica], know.queued):
        counts[0, rank] += 1
        counts[1, rank] += tokens
        for s in range(len(lengths)):
            counts[2 + s, rank] += min(tokens, lengths[s])
        counts[-1, rank] += 1
    know.queue_next[request] = -1
    if know.queue_first[rank] == -1:
        know.queue_first[rank] = request
    else:
        know.queue_next[know.queue_last[rank]] = request
    know.queue_last[rank] = request


@jitable
def replica_of(request, session, replicas):  # type: ignore[no-untyped-def]
    """Replica that a request comes to: the same for a whole conversation, in turn where there is none."""
    conversation = session[request if len(session) > 1 else 0]
    return (conversation if conversation >= 0 else request) % replicas


@jitable
def join(know, replica, rank, request, tokens, lengths):  # type: ignore[no-untyped-def]
    """Take the first request from the engine's queue of its rank: it runs from now on."""
    know.queue_first[rank] = know.queue_next[request]
    know.queued[0, rank] -= 1
    know.queued[1, rank] -= tokens
    know.running[replica, rank] += 1
    for s in range(len(lengths)):
        know.queued[2 + s, rank] -= min(tokens, lengths[s])
        know.unsaturated[replica, rank, s] += tokens < lengths[s]


@jitable
def grow(know, instance):  # type: ignore[no-untyped-def]
    """A step of an instance has ended: what runs has one token more, and each replica knows it of its own."""
    width = know.ring.shape[2]
    for k in range(len(know.own)):
        for r in range(instance * width, (instance + 1) * width):
            know.own[k, 1, r] += know.running[k, r]
            for s in range(know.unsaturated.shape[2]):
                know.own[k, 2 + s, r] += know.unsaturated[k, r, s]


@jitable
def leave(know, settings, replica, rank, tokens, lengths):  # type: ignore[no-untyped-def]
    """A request of so many tokens, its output included, has ended."""
    know.running[replica, rank] -= 1
    for s in range(len(lengths)):
        know.unsaturated[replica, rank, s] -= tokens < lengths[s]
    if settings.knows == LEDGER:
        know.own[replica, 0, rank] -= 1
        know.own[replica, 1, rank] -= tokens
        for s in range(len(lengths)):
            know.own[replica, 2 + s, rank] -= min(tokens, lengths[s])


@jitable
def publish(know, instance, step, now, batch, context, saturated):  # type: ignore[no-untyped-def]
    """Send a report of an instance: its ranks, engine queues included, and what every replica counts itself."""
    width, places = know.ring.shape[2], know.ring_step.shape[1]
    channels, first_rank = len(know.told), instance * width
    if know.ring_count[instance] == places:
        know.ring_count[instance] -= 1
    place = (know.ring_first[instance] + know.ring_count[instance]) % places
    know.ring_count[instance] += 1
    know.ring_step[instance, place], know.ring_s[instance, place] = step, now
    report = know.ring[instance * places + place]
    for r in range(width):
        report[0, r] = batch[instance, r] + know.queued[0, first_rank + r]
        report[1, r] = context[instance, r] + know.queued[1, first_rank + r]
        for s in range(channels - 3):
            report[2 + s, r] = saturated[instance, r, s] + know.queued[2 + s, first_rank + r]
    for k in range(len(know.own)):
        for c in range(channels):
            for r in range(width):
                report[channels * (1 + k) + c, r] = know.own[k, c, first_rank + r]


@jitable
def deliver(know, settings, instance, step, idle, now):  # type: ignore[no-untyped-def]
    """Take in the reports of an instance that are due; those of an idle one do not wait for steps that never come."""
    width, places = know.ring.shape[2], know.ring_step.shape[1]
    channels, first_rank = len(know.told), instance * width
    while know.ring_count[instance] > 0:
        place = know.ring_first[instance]
        if step - know.ring_step[instance, place] < settings.report_delay_steps and not idle:
            break
        if now < know.ring_s[instance, place] + settings.report_delay_s:
            break
        report = know.ring[instance * places + place]
        for c in range(channels):
            for r in range(width):
                know.told[c, first_rank + r] = report[c, r]
        for k in range(len(know.own)):
            for c in range(channels):
                for r in range(width):
                    then = report[channels * (1 + k) + c, r]
                    now_ = know.own[k, c, first_rank + r]
                    know.base[k, c, first_rank + r] = now_ if settings.knows == ERASED else then
        know.told_step[instance] = know.ring_step[instance, place]
        know.ring_first[instance] = (place + 1) % places
        know.ring_count[instance] -= 1


@jitable
def next_delivery_s(know, settings):  # type: ignore[no-untyped-def]
    """When the first report on its way comes in, if nothing else happens; infinity: none is on its way."""
    soonest = np.inf
    for i in range(len(know.ring_first)):
        if know.ring_count[i] > 0:
            soonest = min(soonest, know.ring_s[i, know.ring_first[i]] + settings.report_delay_s)
    return soonest


@jitable
def show(know, settings, pool, replica, batch, context, saturated, steps, view):  # type: ignore[no-untyped-def]
    """Fill the view of a replica: its picture of every rank, whatever stood there before."""
    width, channels = pool.ranks_per_instance, len(know.told)
    largest = pool.kv_capacity_tokens - pool.growth_reserve_tokens
    own, base, exact = know.own[replica], know.base[replica], settings.knows == EXACT
    for r in range(len(view.batch)):
        i, j = r // width, r % width
        if exact:
            view.batch[r] = batch[i, j] + know.queued[0, r]
            view.context_tokens[r] = context[i, j] + know.queued[1, r]
            for s in range(channels - 3):
                view.saturated_tokens[r, s] = saturated[i, j, s] + know.queued[2 + s, r]
        else:
            view.batch[r] = know.told[0, r] + own[0, r] - base[0, r]
            view.context_tokens[r] = know.told[1, r] + own[1, r] - base[1, r]
            for s in range(channels - 3):
                view.saturated_tokens[r, s] = know.told[2 + s, r] + own[2 + s, r] - base[2 + s, r]
            view.unseen_requests[r] = 0 if settings.knows == LEDGER else own[-1, r] - base[-1, r]
            view.report_age_steps[r] = steps[i] - know.told_step[i]
        view.free_slots[r] = pool.max_batch - view.batch[r]
        view.free_tokens[r] = largest - view.context_tokens[r] if view.free_slots[r] > 0 else -1


@jitable
def breach(view, requests, prices, chosen):  # type: ignore[no-untyped-def]
    """First choice that the view itself forbids: its error code and place, else (0, 0). Books the choices."""
    for j in range(len(chosen)):
        rank = chosen[j]
        if rank == -1:
            continue
        if not 0 <= rank < len(view.batch):
            return BAD_RANK, j
        if not fits(view, rank, requests.reserve_tokens[j]):
            return NO_ROOM, j
        book(view, rank, requests, j, prices)
    return 0, 0


@jitable
def replicas_in_turn(  # type: ignore[no-untyped-def]
    know, settings, pool, held, session, requests, view, prices, bounds, place, params, memory_ints, memory_floats,
    batch, context, saturated, steps, out,
):  # fmt: skip
    """Let each replica place its own requests of a round on its own picture.

    Returns (error code, place in the round) of the first choice that a picture forbids, (0, 0) where there is none.
    """
    groups = len(bounds) - 1
    for k in range(settings.replicas):
        count = 0
        for j in range(len(out)):
            if replica_of(held[j], session, settings.replicas) == k:
                know.turn[count] = j
                count += 1
        if count == 0:
            continue
        turn = know.turn[:count]
        own_requests = take_requests(requests, turn)
        picked = np.full(count, -1)
        show(know, settings, pool, k, batch, context, saturated, steps, view)
        place_in_groups(
            view, own_requests, prices, bounds, settings.group_by_tokens, place, params,
            memory_ints[k * groups :], memory_floats[k * groups :], picked,
        )  # fmt: skip
        show(know, settings, pool, k, batch, context, saturated, steps, view)
        code, j = breach(view, own_requests, prices, picked)
        if code:
            out[turn[j]] = picked[j]
            return code, turn[j]
        for j in range(count):
            out[turn[j]] = picked[j]
            if picked[j] >= 0:
                tokens = own_requests.context_tokens[j]
                dispatch(know, k, picked[j], held[turn[j]], tokens, prices.saturation_tokens)
    return 0, 0

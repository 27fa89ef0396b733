"""A request's way in the slow twin: arrival, prefill, the routers' queue, loss, end."""

from __future__ import annotations

import heapq
import math

from equipoise.fleet.kernel.layout import (
    ABORTED,
    COUNTS,
    DELAYED,
    DIE,
    DRAIN,
    DROPPED,
    FAILED,
    FINISHED,
    NOTICED,
    ON_RANKS,
    PREFILL_POOL,
    REJECTED,
    RETURN,
)
from equipoise.fleet.twin.prefill import PrefillPool
from equipoise.fleet.twin.state import ARRIVES, READY, Fleet, Request
from equipoise.fleet.twin.views import Views
from equipoise.replay.layout import ENDED

__all__ = ["arrivals", "change", "end", "lose", "next_coming_s", "patience", "prefill_ended"]

COUNT_OF = {
    ABORTED: COUNTS.ABORTED,
    REJECTED: COUNTS.REJECTED,
    FAILED: COUNTS.FAILED,
    DROPPED: COUNTS.DROPPED,
}


def end(fleet: Fleet, q: Request, status: int) -> None:
    """End a request; the next turn of its conversation is sent later, or all further ones are dropped."""
    assert q.status == 0, f"request {q.row} ends twice"
    q.status, q.ended_s = status, fleet.now
    if status == FINISHED:
        fleet.ended[ENDED.FINISHED] += 1
        fleet.ended[ENDED.FINISHED_TOKENS] += q.output
        if fleet.settings.keep_requests:
            fleet.out.finish_s[q.row] = fleet.now
    else:
        fleet.counts[COUNT_OF[status]] += 1
        fleet.ended[ENDED.REJECTED] += status == REJECTED
    following = int(fleet.life.next_turn[q.row]) if fleet.life.sessions else -1
    if following < 0:
        return
    if status in (FINISHED, ABORTED):
        thought_s = fleet.now + float(fleet.life.think_s[following])
        fleet.insert(thought_s, ARRIVES, fleet.requests[following])
    else:
        end(fleet, fleet.requests[following], DROPPED)


def lose(fleet: Fleet, q: Request) -> None:
    """A request's rank is down: it comes again, unless it was lost too often."""
    q.owed, q.lack, q.growth, q.swapped = 0, 0, 0, False
    q.tries += 1
    fleet.counts[COUNTS.LOST] += 1
    if q.tries > fleet.life.most_tries:
        end(fleet, q, FAILED)
    else:
        fleet.insert(fleet.now + fleet.life.retry_s, ARRIVES, q)


def next_coming_s(fleet: Fleet) -> float:
    """When the next request comes, by itself or from the heap."""
    time_s = fleet.later[0][0] if fleet.later else math.inf
    if not fleet.settings.saturated and fleet.rows_to_come:
        row = int(fleet.life.first_rows[fleet.released])
        time_s = min(time_s, float(fleet.work.arrival_s[row]))
    return time_s


def arrivals(fleet: Fleet, prefill: PrefillPool) -> None:
    """Let in all that is due."""
    while next_coming_s(fleet) <= fleet.now:
        time_s = next_coming_s(fleet)
        itself = not fleet.settings.saturated and fleet.rows_to_come > 0
        row = int(fleet.life.first_rows[fleet.released]) if itself else -1
        if itself and float(fleet.work.arrival_s[row]) == time_s:
            fleet.released += 1
            _arrive(fleet, prefill, fleet.requests[row], time_s)
            continue
        _, _, kind, q = heapq.heappop(fleet.later)
        if kind == ARRIVES:
            _arrive(fleet, prefill, q, time_s)
        else:
            _join(fleet, q, time_s)
    if fleet.settings.saturated:
        while fleet.rows_to_come and fleet.in_pool + len(fleet.queue) < fleet.settings.concurrency:
            q = fleet.requests[fleet.released]
            fleet.released += 1
            _arrive(fleet, prefill, q, fleet.now)
    prefill.start()


def _arrive(fleet: Fleet, prefill: PrefillPool, q: Request, time_s: float) -> None:
    life, missing = fleet.life, fleet.missing(q)
    if math.isnan(q.came_s):
        q.came_s = time_s
    fleet.ended[ENDED.ARRIVED] += q.tries == 0
    if fleet.hold(q.size) > fleet.largest:
        end(fleet, q, REJECTED)
    elif life.prefill == PREFILL_POOL and missing > 0:
        prefill.join(q, missing)
    elif life.prefill == DELAYED:
        _ready(fleet, q, time_s, life.prefill_s + missing * life.prefill_s_per_token)
    else:
        q.owed = missing if life.prefill == ON_RANKS else 0
        _ready(fleet, q, time_s, 0.0)


def _ready(fleet: Fleet, q: Request, time_s: float, prefill_s: float) -> None:
    """So much after the event its prompt is computed; then its context is on its way."""
    there_s = time_s + prefill_s + (fleet.life.transfer_s + q.size * fleet.life.transfer_s_per_token)
    if there_s <= time_s or fleet.settings.saturated:
        _join(fleet, q, there_s)
    else:
        fleet.insert(there_s, READY, q)


def _join(fleet: Fleet, q: Request, time_s: float) -> None:
    """Queue a request at its router."""
    q.queued_s, q.offered_boundary = time_s, -1
    if fleet.hopeless:
        end(fleet, q, FAILED)
        return
    fleet.queue.append(q)
    fleet.counts[COUNTS.PEAK_QUEUED] = max(fleet.counts[COUNTS.PEAK_QUEUED], len(fleet.queue))


def prefill_ended(fleet: Fleet, prefill: PrefillPool, number: int) -> None:
    """End a step of the prefill pool, and start its next one."""
    for q in prefill.end(number):
        _ready(fleet, q, fleet.now, 0.0)
    prefill.start()


def patience(fleet: Fleet) -> None:
    """Clients that have waited too long leave, oldest first, until one may stay."""
    while fleet.queue and fleet.now - fleet.queue[0].queued_s > fleet.life.patience_s:
        end(fleet, fleet.queue.pop(0), ABORTED)


def change(fleet: Fleet, views: Views) -> None:
    """Let the next change happen."""
    changes, i = fleet.changes, fleet.next_change
    fleet.next_change += 1
    instance, kind = fleet.instances[int(changes.instance[i])], int(changes.kind[i])
    named = int(changes.rank[i])
    ranks = instance.ranks if named == -1 else [instance.ranks[named]]
    if kind >= NOTICED:
        for rank in ranks:
            rank.closed = kind - NOTICED in (DRAIN, DIE)
    elif kind == DIE:
        for rank in ranks:
            rank.up, rank.frozen = False, 0
            lost_rows, lost_queue = rank.rows, rank.queue
            rank.rows, rank.queue = [], []
            for q in lost_rows:
                fleet.counts[COUNTS.LOST_TOKENS] += q.size
                lose(fleet, q)
            for q in lost_queue:
                lose(fleet, q)
        if not instance.up:
            instance.end_s, instance.stalled = math.inf, False
    elif kind == RETURN:
        for rank in ranks:
            rank.up = True
    stall_s = float(changes.stall_s[i])
    if stall_s > 0:
        if not instance.busy:
            instance.end_s, instance.stalled = fleet.now, True
        instance.end_s += stall_s
    views.bring_up_to_date(instance)

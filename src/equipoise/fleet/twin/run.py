"""The slow, obvious twin of the fleet's kernel: objects and lists, everything counted afresh.

It takes the same inputs and fills the same outcomes; a test holds the two equal, bit for bit. It shares no code with
the kernel but prices, and it is the engine for a policy that does not compile. One turn of its loop is one event: the
earliest change, step end, end of a prefill step, or request that comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from equipoise.cost.prefill import PrefillPrices
from equipoise.fleet.kernel.layout import (
    DELAYED,
    EXACT,
    FAILED,
    PREFILL_POOL,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    FleetSettings,
    Life,
    Ranked,
)
from equipoise.fleet.twin.life import arrivals, change, end, next_coming_s, patience, prefill_ended
from equipoise.fleet.twin.prefill import PrefillPool
from equipoise.fleet.twin.rounds import rounds
from equipoise.fleet.twin.state import Fleet
from equipoise.fleet.twin.steps import end_step, start_step
from equipoise.fleet.twin.views import Views
from equipoise.replay.layout import (
    ENDED,
    ORDERLESS_ROUNDS,
    STUCK,
    Outcome,
    PoolLayout,
    Work,
)
from equipoise.types import Floats, Ints, Prices

__all__ = ["run_reference"]

_CHANGE, _BOUNDARY, _PREFILL, _COMING = range(4)
"""Kinds of event, first come first at equal times."""


def run_reference(
    work: Work,
    layout: PoolLayout,
    settings: FleetSettings,
    life: Life,
    ranked: Ranked,
    extras: Extras,
    draws: Draws,
    changes: Changes,
    prices: Prices,
    prefill_prices: PrefillPrices,
    place: Callable[..., Any],
    finished: Callable[..., Any],
    params: Floats,
    memory_ints: Ints,
    memory_floats: Floats,
    outcome: Outcome,
    fleet_outcome: FleetOutcome,
) -> None:
    """Run a fleet and fill the outcomes.

    Parameters
    ----------
    work, layout, settings
        As for `equipoise.replay.reference.run_reference`.
    life, ranked, extras, draws, changes
        See `equipoise.fleet.kernel.layout`.
    prices, prefill_prices
        What a decode step and a prefill step cost, both in the decode cost's unit.
    place, finished : function
        The policy, and what it learns from a request that finished.
    params : float64[...]
    memory_ints, memory_floats : [replicas * groups, ...]
        One policy memory a group, replica by replica.
    outcome, fleet_outcome
        From `new_outcome` and `new_fleet_outcome`.
    """
    place, finished = getattr(place, "py_func", place), getattr(finished, "py_func", finished)
    fleet = Fleet(
        work, layout, settings, life, ranked, extras, draws, changes, prices, prefill_prices,
        params, memory_ints, memory_floats, outcome, fleet_outcome,
    )  # fmt: skip
    views, prefill = Views(fleet), PrefillPool(fleet)
    fleet.ended[ENDED.SERIES_STEPS] = 1
    while _turn(fleet, views, prefill, place, finished):
        pass
    fleet.ended[ENDED.QUEUED] = len(fleet.queue)
    fleet.ended[ENDED.RUNNING] = fleet.in_pool
    fleet.ended[ENDED.STEPS] = fleet.started
    fleet.ended[ENDED.RESIDUE] = fleet.residue()
    fleet.write_requests()


def _turn(
    fleet: Fleet, views: Views, prefill: PrefillPool, place: Callable[..., Any], finished: Callable[..., Any]
) -> bool:
    """Let one event happen; False: the run is over."""
    event = _next_event(fleet, prefill)
    kind = -1
    if event is None:
        if not fleet.queue and not fleet.rows_to_come:
            return False
        if not _wait(fleet, views):
            return False
    else:
        time_s, kind, number = event
        fleet.now = max(fleet.now, time_s)
        if kind == _CHANGE:
            change(fleet, views)
        elif kind == _PREFILL:
            prefill_ended(fleet, prefill, number)
        elif kind == _BOUNDARY:
            instance = fleet.instances[number]
            if instance.stalled:
                instance.end_s, instance.stalled = math.inf, False
            else:
                end_step(fleet, views, instance, finished)

    arrivals(fleet, prefill)
    if fleet.settings.knows != EXACT:
        views.deliver()
    ready = any(instance.ready for instance in fleet.instances)
    if fleet.queue and (ready or event is None or kind in (_CHANGE, _BOUNDARY)):
        patience(fleet)
        if not rounds(fleet, views, place):
            return False
    draining = _draining(fleet)
    if draining and not fleet.settings.drain:
        return False
    for instance in fleet.instances:
        something = any(rank.up and (rank.rows or rank.queue) for rank in instance.ranks)
        if not instance.busy and something and not start_step(fleet, instance, draining=draining):
            return False
    return True


def _next_event(fleet: Fleet, prefill: PrefillPool) -> tuple[float, int, int] | None:
    """The earliest event: its time, its kind, and the number of the instance."""
    events = [(instance.end_s, _BOUNDARY, instance.number) for instance in fleet.instances]
    events += [(end_s, _PREFILL, number) for number, end_s in enumerate(prefill.end_s)]
    if fleet.next_change < len(fleet.changes.time_s):
        events.append((float(fleet.changes.time_s[fleet.next_change]), _CHANGE, 0))
    busy = any(instance.busy for instance in fleet.instances)
    ready = any(instance.ready for instance in fleet.instances)
    if ready or not busy or fleet.life.prefill == PREFILL_POOL:
        events.append((next_coming_s(fleet), _COMING, 0))
    first = min(events)
    return first if first[0] != math.inf else None


def _wait(fleet: Fleet, views: Views) -> bool:
    """Nothing is going to happen by itself; False: the policy has left requests waiting for too long."""
    if fleet.settings.knows != EXACT:
        delivery_s = views.next_delivery_s()
        if delivery_s != math.inf:
            fleet.now = max(fleet.now, delivery_s)
    reachable = any(rank.up and not rank.closed for rank in fleet.ranks)
    if not reachable and fleet.next_change == len(fleet.changes.time_s):
        while fleet.queue:
            end(fleet, fleet.queue.pop(0), FAILED)
        return True
    fleet.idle_rounds += 1
    if fleet.idle_rounds > ORDERLESS_ROUNDS:
        fleet.ended[ENDED.ERROR] = STUCK
        fleet.ended[ENDED.ERROR_REQUEST] = fleet.queue[0].row if fleet.queue else -1
        return False
    return True


def _draining(fleet: Fleet) -> bool:
    """Whether the load only falls from now on: steps of the drain are not counted."""
    if fleet.rows_to_come:
        return False
    if fleet.settings.saturated:
        return not fleet.queue
    life = fleet.life
    if (
        life.sessions
        or life.prefill in (DELAYED, PREFILL_POOL)
        or life.transfer_s
        or life.transfer_s_per_token
    ):
        return True
    return not (fleet.later or fleet.queue)

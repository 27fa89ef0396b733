"""Rounds of placement in the slow twin: what the policy is asked, on which view, and what becomes of its choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from equipoise.fleet.kernel.layout import BY_INSTANCE, COUNTS, EXACT
from equipoise.fleet.twin.life import lose
from equipoise.fleet.twin.state import Fleet, Request
from equipoise.fleet.twin.views import Views
from equipoise.policies.api import book, fits
from equipoise.policies.groups import choose_groups
from equipoise.policies.views import copy_ranks, slice_ranks
from equipoise.replay.layout import BAD_RANK, ENDED, MAX_ROUND, NO_ROOM
from equipoise.types import Ints, Memory, Ranks, Requests

__all__ = ["rounds"]

Place = Callable[..., Any]


def rounds(fleet: Fleet, views: Views, place: Place) -> bool:
    """Offer what waits until nothing does, or the policy keeps a request; False: it broke its contract."""
    views.show_starts()
    while fleet.queue:
        asked = fleet.queue[:MAX_ROUND]
        new = [q.offered_boundary < 0 for q in asked]
        for q in asked:
            if q.offered_boundary < 0:
                q.offered_boundary = fleet.boundaries
        fleet.ended[ENDED.ROUNDS] += 1
        fleet.counts[COUNTS.DECISIONS] += len(asked)
        by_instance = fleet.life.split == BY_INSTANCE
        if by_instance or fleet.settings.knows != EXACT or fleet.settings.replicas > 1:
            chosen = _replicas_in_turn(fleet, views, place, asked, by_instance)
            if chosen is None:
                return False
            for rank, fresh in zip(chosen, new, strict=True):
                _count_kept(fleet, rank, fresh)
        else:
            chosen = _in_groups(fleet, views.exact, asked, place, 0)
            for q, rank, fresh in zip(asked, chosen, new, strict=True):
                if _count_kept(fleet, rank, fresh):
                    continue
                if not _allowed(fleet, views.exact, q, rank):
                    return False
                _dispatch(fleet, views, q, rank)
        placed = sum(rank != -1 for rank in chosen)
        if placed:
            fleet.idle_rounds = 0
        if placed < len(asked):
            break
    return True


def _count_kept(fleet: Fleet, rank: int, new: bool) -> bool:
    """Whether the policy kept a request waiting; counted."""
    if rank == -1:
        fleet.ended[ENDED.BLOCKED_REQUESTS] += new
        fleet.ended[ENDED.BLOCKED_ROUNDS] += 1
    return rank == -1


def _allowed(fleet: Fleet, view: Ranks, q: Request, rank: int) -> bool:
    """Whether a view allows a choice; what is wrong with it is noted."""
    known = 0 <= rank < len(fleet.ranks)
    if known and fits(view, rank, fleet.hold(q.size)):
        return True
    fleet.ended[ENDED.ERROR] = NO_ROOM if known else BAD_RANK
    fleet.ended[ENDED.ERROR_REQUEST], fleet.ended[ENDED.ERROR_RANK] = q.row, rank
    return False


def _dispatch(fleet: Fleet, views: Views, q: Request, rank: int) -> None:
    """Send a request to a rank: into its engine's queue, if it is up."""
    fleet.queue.remove(q)
    fleet.counts[COUNTS.DISPATCHED] += 1
    q.rank, q.placed_s, q.dispatched_size = rank, fleet.now, q.size
    up = fleet.ranks[rank].up
    if up:
        fleet.ranks[rank].queue.append(q)
    else:
        lose(fleet, q)
    views.dispatched(q, lost=not up)


def _replicas_in_turn(
    fleet: Fleet, views: Views, place: Place, asked: Sequence[Request], by_instance: bool
) -> list[int] | None:
    """Each replica places its own requests; None where the view a choice was made on forbids it."""
    chosen = [-1] * len(asked)
    groups = len(fleet.layout.group_starts) - 1
    for k in range(fleet.settings.replicas):
        turn = [j for j, q in enumerate(asked) if q.replica == k]
        if not turn:
            continue
        own = [asked[j] for j in turn]
        if by_instance:
            view, part = views.exact, _by_instance(fleet, views, k, own, place)
        else:
            view, part = views.pictures[k], _in_groups(fleet, views.pictures[k], own, place, k * groups)
        booked, requests = copy_ranks(view), ask(fleet, own)
        for j, (q, rank) in enumerate(zip(own, part, strict=True)):
            if rank == -1:
                continue
            if not _allowed(fleet, booked, q, rank):
                return None
            book(booked, rank, requests, j, fleet.prices)
        for j, q, rank in zip(turn, own, part, strict=True):
            chosen[j] = rank
            if rank != -1:
                _dispatch(fleet, views, q, rank)
    return chosen


def ask(fleet: Fleet, asked: Sequence[Request]) -> Requests:
    """What the policy is asked."""
    instances = len(fleet.instances)

    def column(values: list[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return Requests(
        context_tokens=column([q.size for q in asked]),
        reserve_tokens=column([fleet.hold(q.size) for q in asked]),
        budget_tokens=column([-1] * len(asked)),
        session=column([q.session for q in asked]),
        request=column([q.row for q in asked]),
        waited_steps=column([(fleet.boundaries - q.offered_boundary) // instances for q in asked]),
        waited_s=np.array([fleet.now - q.queued_s for q in asked]),
    )


def _in_groups(fleet: Fleet, view: Ranks, asked: Sequence[Request], place: Place, memory: int) -> list[int]:
    """A group for each request, then the policy inside it; one router alone with one group needs no choice."""
    bounds = fleet.layout.group_starts * fleet.width
    groups, plain = len(bounds) - 1, fleet.settings.knows == EXACT and fleet.settings.replicas == 1
    if groups == 1 and plain:
        part = np.full(len(asked), -1, dtype=np.int64)
        memories = Memory(fleet.memory_ints[0], fleet.memory_floats[0])
        place(copy_ranks(view), ask(fleet, asked), fleet.prices, fleet.params, memories, part)
        return [int(rank) for rank in part]
    group_of = _groups_of(fleet, view, asked, bounds)
    return _inside(fleet, view, asked, place, group_of, bounds, [memory + g for g in range(groups)])


def _by_instance(fleet: Fleet, views: Views, k: int, asked: Sequence[Request], place: Place) -> list[int]:
    """The replica chooses the instance on its own picture, the instance's owner the rank on the exact view."""
    instances, replicas = len(fleet.instances), fleet.settings.replicas
    bounds = np.arange(instances + 1) * fleet.width
    group_of = _groups_of(fleet, views.pictures[k], asked, bounds)
    memories = [(p % replicas) * instances + p for p in range(instances)]
    return _inside(fleet, views.exact, asked, place, group_of, bounds, memories)


def _groups_of(fleet: Fleet, view: Ranks, asked: Sequence[Request], bounds: Ints) -> Ints:
    group_of = np.zeros(len(asked), dtype=np.int64)
    choose_groups(view, ask(fleet, asked), bounds, fleet.settings.group_by_tokens, group_of)
    return group_of


def _inside(
    fleet: Fleet,
    view: Ranks,
    asked: Sequence[Request],
    place: Place,
    group_of: Ints,
    bounds: Ints,
    memories: list[int],
) -> list[int]:
    """Let the policy place each group's requests among its ranks."""
    shown, chosen = copy_ranks(view), [-1] * len(asked)
    for g, row in enumerate(memories):
        members = [j for j in range(len(asked)) if group_of[j] == g]
        if not members:
            continue
        first, last = int(bounds[g]), int(bounds[g + 1])
        part = np.full(len(members), -1, dtype=np.int64)
        memory = Memory(fleet.memory_ints[row], fleet.memory_floats[row])
        requests = ask(fleet, [asked[j] for j in members])
        place(slice_ranks(shown, first, last), requests, fleet.prices, fleet.params, memory, part)
        for j, rank in zip(members, part.tolist(), strict=True):
            inside = 0 <= rank < last - first
            chosen[j] = rank + first if inside else (len(fleet.ranks) if rank >= 0 else rank)
    return chosen

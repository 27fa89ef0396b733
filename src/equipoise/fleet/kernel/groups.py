"""Placement in groups: a group for each request first, then the policy inside it.

`equipoise.policies.groups` does the same from the view alone. Here loads and room are added up once for an instance
that has changed, so a request costs O(instances), not O(ranks); and the rank may be chosen on another view.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.fleet.kernel.pictures import view_of
from equipoise.fleet.kernel.routers import BATCH, CONTEXT, FREE_TOKENS, REQUESTS, ROOM, STALE, TOKENS
from equipoise.fleet.kernel.state import IDLE
from equipoise.fleet.kernel.world import pool_in, prices_in, seen_in, settings_in, state_in
from equipoise.policies.views import slice_ranks, take_requests
from equipoise.types import Memory

__all__ = ["place_in_groups", "show_starts"]


@jitable
def choose_groups(world, k, requests, group_of):  # type: ignore[no-untyped-def]
    """What `equipoise.policies.groups.choose_groups` does, on view number k."""
    seen, starts, settings = seen_in(world), pool_in(world).group_starts, settings_in(world)
    width, groups = pool_in(world).ranks_per_instance, len(pool_in(world).group_starts) - 1
    shown, totals = seen.shown, seen.totals
    load = np.zeros(groups, np.int64)
    room = np.full(groups, -1)
    for g in range(groups):
        for p in range(starts[g], starts[g + 1]):
            if totals[STALE, k, p]:
                batch, context, most = 0, 0, -1
                for r in range(p * width, (p + 1) * width):
                    batch += shown[BATCH, k, r]
                for r in range(p * width, (p + 1) * width):
                    context += shown[CONTEXT, k, r]
                for r in range(p * width, (p + 1) * width):
                    most = max(most, shown[FREE_TOKENS, k, r])
                totals[REQUESTS, k, p], totals[TOKENS, k, p], totals[ROOM, k, p] = batch, context, most
                totals[STALE, k, p] = 0
            load[g] += totals[TOKENS, k, p] if settings.group_by_tokens else totals[REQUESTS, k, p]
            room[g] = max(room[g], totals[ROOM, k, p])
    for j in range(len(group_of)):
        best, least, best_fits = 0, np.inf, False
        for g in range(groups):
            fits = room[g] >= requests.reserve_tokens[j]
            mean = load[g] / ((starts[g + 1] - starts[g]) * width)
            if (fits and not best_fits) or (fits == best_fits and mean < least):
                best, least, best_fits = g, mean, fits
        group_of[j] = best
        load[best] += requests.context_tokens[j] if settings.group_by_tokens else 1


@jitable
def show_starts(world, first, last, now):  # type: ignore[no-untyped-def]
    """Show when what is placed now on instances `first` to before `last` would start."""
    seen, state, width = seen_in(world), state_in(world), pool_in(world).ranks_per_instance
    for p in range(first, last):
        end = state.end_s[len(state.end_s) // 2 + p]
        starts_in_s = end - now if end != IDLE else 0.0
        for r in range(p * width, (p + 1) * width):
            seen.starts_in_s[1, r] = starts_in_s


@jitable
def place_in_groups(world, number, replica, owners, requests, place, params, ints, floats, now, out):  # type: ignore[no-untyped-def]
    """Place a replica's requests of a round, group by group.

    Parameters
    ----------
    world : int
    number, replica : int
        The view it chooses groups on, and whose requests they are.
    owners : int
        0: the replica places into every group itself, on its own view, and has a memory for each. Above 0: every group
        is an instance and has an owner, one of so many replicas, who places on the exact view.
    requests : Requests
    place : function
    params : float64[...]
    ints, floats : [replicas * groups, ...]
    now : float
    out : int64[requests]
        Rank over the whole pool, or -1; the number of ranks where the policy named none of its group.
    """
    seen, bounds, starts = seen_in(world), state_in(world).bounds, pool_in(world).group_starts
    prices, groups = prices_in(world), len(bounds) - 1
    exact = len(seen.own)
    view = view_of(world, exact if owners else number)
    timed = (owners > 0 or number == exact) and pool_in(world).instances > 1
    group_of = np.empty(len(out), np.int64)
    choose_groups(world, number, requests, group_of)
    for g in range(groups):
        count = 0
        for j in range(len(out)):
            count += group_of[j] == g
        if count == 0:
            continue
        members = np.empty(count, np.int64)
        count = 0
        for j in range(len(out)):
            if group_of[j] == g:
                members[count] = j
                count += 1
        if timed:
            show_starts(world, starts[g], starts[g + 1], now)
        first, last = bounds[g], bounds[g + 1]
        part = np.full(count, -1, np.int64)
        own = (g % owners if owners else replica) * groups + g
        asked = take_requests(requests, members)
        place(slice_ranks(view, first, last), asked, prices, params, Memory(ints[own], floats[own]), part)
        for j in range(count):
            inside = 0 <= part[j] < last - first
            outside = len(view.batch) if part[j] >= 0 else part[j]
            out[members[j]] = part[j] + first if inside else outside

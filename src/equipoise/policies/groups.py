"""Placement in groups: a group for each request first, then the policy inside it."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.views import slice_ranks, take_requests
from equipoise.types import Memory

__all__ = ["choose_groups", "place_in_groups"]


@jitable
def choose_groups(view, requests, bounds, by_tokens, group_of):  # type: ignore[no-untyped-def]
    """Write into `group_of` the group with the fewest requests (or tokens) a rank for each request, oldest first.

    This round's earlier choices count; ties go to the first group; groups in which no rank has room for the request
    come last. Loads and room are added up once a round, so a request costs O(groups).
    """
    groups = len(bounds) - 1
    load = np.zeros(groups, np.int64)
    room = np.full(groups, -1)
    for g in range(groups):
        for r in range(bounds[g], bounds[g + 1]):
            load[g] += view.context_tokens[r] if by_tokens else view.batch[r]
            room[g] = max(room[g], view.free_tokens[r])
    for j in range(len(group_of)):
        best, least, best_fits = 0, np.inf, False
        for g in range(groups):
            fits = room[g] >= requests.reserve_tokens[j]
            mean = load[g] / (bounds[g + 1] - bounds[g])
            if (fits and not best_fits) or (fits == best_fits and mean < least):
                best, least, best_fits = g, mean, fits
        group_of[j] = best
        load[best] += requests.context_tokens[j] if by_tokens else 1


@jitable
def place_in_groups(view, requests, prices, bounds, by_tokens, place, params, ints, floats, out):  # type: ignore[no-untyped-def]
    """Choose a group for each request, then let the policy place each group's requests among its ranks.

    Parameters
    ----------
    view : Ranks
        Of the whole pool.
    requests : Requests
    prices : Prices
    bounds : int64[groups + 1]
        First rank of each group, then the number of ranks.
    by_tokens : int
        Group choice: 1 fewest tokens a rank, 0 fewest requests a rank.
    place : function
        The policy.
    params : float64[...]
    ints, floats : [groups, ...]
        One policy memory a group.
    out : int64[requests]
        Rank over the whole pool, or -1; the number of ranks where the policy named none of its group.
    """
    group_of = np.empty(len(out), np.int64)
    choose_groups(view, requests, bounds, by_tokens, group_of)
    for g in range(len(bounds) - 1):
        members = np.flatnonzero(group_of == g)
        if len(members) == 0:
            continue
        first, last = bounds[g], bounds[g + 1]
        part = np.full(len(members), -1, np.int64)
        asked = take_requests(requests, members)
        place(slice_ranks(view, first, last), asked, prices, params, Memory(ints[g], floats[g]), part)
        for k in range(len(members)):
            inside = 0 <= part[k] < last - first
            outside = len(view.batch) if part[k] >= 0 else part[k]
            out[members[k]] = part[k] + first if inside else outside

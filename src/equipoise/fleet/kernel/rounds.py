"""Placement where instances have owners: any router chooses the instance, its owner the rank."""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.groups import choose_groups
from equipoise.policies.views import slice_ranks, take_requests
from equipoise.types import Memory

__all__ = ["place_by_owner"]


@jitable
def place_by_owner(  # type: ignore[no-untyped-def]
    view, exact, requests, prices, bounds, by_tokens, place, params, ints, floats, replicas, out
):
    """Choose an instance for each request on a replica's own picture; its owner, on the exact one, chooses the rank."""
    group_of = np.empty(len(out), np.int64)
    choose_groups(view, requests, bounds, by_tokens, group_of)
    instances = len(bounds) - 1
    for g in range(instances):
        members = np.flatnonzero(group_of == g)
        if len(members) == 0:
            continue
        first, last = bounds[g], bounds[g + 1]
        part = np.full(len(members), -1, np.int64)
        own = (g % replicas) * instances + g
        asked = take_requests(requests, members)
        place(slice_ranks(exact, first, last), asked, prices, params, Memory(ints[own], floats[own]), part)
        for j in range(len(members)):
            inside = 0 <= part[j] < last - first
            outside = len(view.batch) if part[j] >= 0 else part[j]
            out[members[j]] = part[j] + first if inside else outside

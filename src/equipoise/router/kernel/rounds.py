"""A round: the oldest requests of the queue are shown to the policy with the ranks; what it places is dispatched.

The order is first come, first served within a class. Between classes it is strict (a class is looked at when those
before it are empty), or weighted: the class that has had the smallest share, by its weight, goes first.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable, shortened
from equipoise.cost.evaluate import step_price
from equipoise.policies.groups import place_in_groups
from equipoise.policies.rules import MAX_ROUND, breach
from equipoise.router.kernel.ledger import dispatch, key_of
from equipoise.router.kernel.picture import refresh, show_times
from equipoise.router.kernel.state import (
    COUNT,
    NOBODY,
    REASON,
    SET,
    asked_in,
    bounds_in,
    chosen_in,
    counts_in,
    entries_in,
    instances_in,
    keys_in,
    kinds_in,
    memory_floats_in,
    memory_ints_in,
    params_in,
    placed_in,
    prices_in,
    scratch_in,
    scratch_saturated_in,
    settings_in,
    totals_in,
    view_in,
)
from equipoise.types import Memory

__all__ = ["choose", "choose_in_turn", "commit", "gather", "price_with"]

STAY = -1


@jitable
def gather(world, now):  # type: ignore[no-untyped-def]
    """Make up a round; how many requests are in it."""
    entries, counts, kinds, asked = entries_in(world), counts_in(world), kinds_in(world), asked_in(world)
    keys, chosen, instances = keys_in(world), chosen_in(world), max(len(instances_in(world)), 1)
    strict = settings_in(world)[SET.STRICT] > 0.0
    counts[COUNT.DIRTY] = 0
    for k in range(len(kinds)):
        kinds[k].cursor, kinds[k].reckoned = kinds[k].first, kinds[k].served
    size = 0
    while size < MAX_ROUND:
        kind, least = NOBODY, np.inf
        for k in range(len(kinds)):
            if kinds[k].cursor != NOBODY and kinds[k].reckoned < least:
                kind, least = k, kinds[k].reckoned
                if strict:
                    break
        if kind == NOBODY:
            break
        e = kinds[kind].cursor
        kinds[kind].cursor = entries[e].next
        kinds[kind].reckoned += 1.0 / kinds[kind].weight
        entry = entries[e]
        if entry.offered == NOBODY:
            entry.offered = counts[COUNT.STEPS]
        keys[size] = e
        asked.context_tokens[size] = entry.context
        asked.reserve_tokens[size] = entry.context
        asked.budget_tokens[size] = entry.budget
        asked.session[size] = entry.session
        asked.request[size] = entry.request
        asked.waited_steps[size] = (counts[COUNT.STEPS] - entry.offered) // instances
        asked.waited_s[size] = now - entry.arrived_s
        chosen[size] = STAY
        size += 1
    counts[COUNT.GATHERED] = size
    if size > 0:
        show_times(world, now)
    return size


@jitable
def choose(world, place):  # type: ignore[no-untyped-def]
    """Let the policy answer."""
    size = counts_in(world)[COUNT.GATHERED]
    requests, answers = shortened(asked_in(world), size), shortened(chosen_in(world), size)
    ints, floats, settings = memory_ints_in(world), memory_floats_in(world), settings_in(world)
    if settings[SET.GROUPS] > 0.0 and len(bounds_in(world)) > 2:
        place_in_groups(
            view_in(world), requests, prices_in(world), bounds_in(world), int(settings[SET.BY_TOKENS]), place,
            params_in(world), ints, floats, answers,
        )  # fmt: skip
    else:
        place(
            view_in(world), requests, prices_in(world), params_in(world), Memory(ints[0], floats[0]), answers
        )


@jitable
def choose_in_turn(world):  # type: ignore[no-untyped-def]
    """Ranks in turn, as far as they have room: what is left when the picture is not to be trusted."""
    counts, chosen, asked, view = counts_in(world), chosen_in(world), asked_in(world), view_in(world)
    n = len(view.batch)
    for j in range(counts[COUNT.GATHERED]):
        chosen[j] = STAY
        for k in range(n):
            r = (counts[COUNT.CURSOR] + k) % n
            if view.free_tokens[r] >= asked.reserve_tokens[j]:
                chosen[j] = r
                counts[COUNT.CURSOR] = (r + 1) % n
                view.free_tokens[r] -= asked.reserve_tokens[j]
                view.free_slots[r] -= 1
                if view.free_slots[r] <= 0:
                    view.free_tokens[r] = -1
                break
        if chosen[j] == STAY:
            break


@jitable
def price_with(world, i, rank, tokens):  # type: ignore[no-untyped-def]
    """Price of the next step of an instance, one more request of so many tokens on a rank of the pool (-1: none)."""
    instance, view, prices = instances_in(world)[i], view_in(world), prices_in(world)
    scratch, saturated, totals = scratch_in(world), scratch_saturated_in(world), totals_in(world)
    first, width, lengths = instance.first, instance.ranks, prices.saturation_tokens
    for r in range(width):
        scratch[0, r], scratch[1, r] = view.batch[first + r], view.context_tokens[first + r]
        for s in range(len(lengths)):
            saturated[r, s] = view.saturated_tokens[first + r, s]
    if rank >= 0:
        scratch[0, rank - first] += 1
        scratch[1, rank - first] += tokens
        for s in range(len(lengths)):
            saturated[rank - first, s] += min(tokens, lengths[s])
    batch, context = scratch[0, :width], scratch[1, :width]
    totals[:] = 0
    for s in range(len(lengths)):
        for r in range(width):
            totals[s] += saturated[r, s]
    return step_price(prices, batch, context, saturated[:width], batch.sum(), context.sum(), totals)[0]


@jitable
def rank_with_affinity(world, e, r):  # type: ignore[no-untyped-def]
    """The rank the request's session was on last, if the step there is not dearer by more than the bonus; else r."""
    entry, view = entries_in(world)[e], view_in(world)
    p, bonus = entry.preferred, settings_in(world)[SET.AFFINITY]
    if bonus <= 0.0 or p in (NOBODY, r) or view.free_tokens[p] < entry.context:
        return r
    i, home = view.instance[r], view.instance[p]
    there = price_with(world, i, r, entry.context)
    more = price_with(world, home, p, entry.context)
    if home == i:
        more -= there
    else:
        more -= price_with(world, home, NOBODY, 0) + there - price_with(world, i, NOBODY, 0)
    return p if more <= bonus * there else r


@jitable
def commit(world, in_turn, now):  # type: ignore[no-untyped-def]
    """Dispatch what was placed; how much of the round was. What the view forbids is counted and stays queued."""
    counts, chosen, keys, entries = counts_in(world), chosen_in(world), keys_in(world), entries_in(world)
    placed, view, instances = placed_in(world), view_in(world), instances_in(world)
    size, ranks = counts[COUNT.GATHERED], len(view.batch)
    counts[COUNT.ROUNDS] += 1
    for j in range(size):  # the policy has booked its choices
        if 0 <= chosen[j] < ranks:
            refresh(world, chosen[j], now)
    count = 0
    for j in range(size):
        r, e = chosen[j], keys[j]
        if r == STAY:
            continue
        if 0 <= r < ranks and instances[view.instance[r]].probes_left <= 0:
            continue
        if breach(r, ranks, view.free_tokens[r] if 0 <= r < ranks else STAY, entries[e].context):
            counts[COUNT.BREACHES] += 1
            continue
        reason, told_rank = REASON.POLICY, r
        if in_turn:
            reason, told_rank = REASON.ROUND_ROBIN, NOBODY
        else:
            home = rank_with_affinity(world, e, r)
            if home != r:
                reason, r = REASON.AFFINITY, home
                counts[COUNT.AFFINITY] += 1
        dispatch(world, e, r, told_rank, reason, now)
        placed[count, 0], placed[count, 1] = key_of(world, e), (r << 2) | reason
        count += 1
    counts[COUNT.PLACED] = count
    counts[COUNT.HELD_BACK] = size - count
    return count

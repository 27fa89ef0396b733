"""What Python calls, each a number or two away from its work: a tuple of arrays would cost more than the decision."""

from __future__ import annotations

import numpy as np
from numba import types

from equipoise._jit import (
    FINISHED,
    PLACE,
    compiled,
    function_reader,
    jitable,
    numba_type,
    put,
    size_of,
)
from equipoise.router.kernel.ledger import (
    add_tokens,
    dispatch,
    enqueue,
    find,
    free_entry,
    grow,
    release,
    set_lengths,
    step,
    unqueue,
)
from equipoise.router.kernel.picture import forget_others, refresh, refresh_instance, take_report
from equipoise.router.kernel.rounds import choose, choose_in_turn, commit, gather, price_with
from equipoise.router.kernel.state import (
    COUNT,
    INDEX_MASK,
    LIVE,
    NOBODY,
    QUEUED,
    SET,
    World,
    counts_in,
    entries_in,
    instances_in,
    kinds_in,
    settings_in,
    view_in,
)

__all__ = [
    "adopt",
    "arrive",
    "cancel",
    "commit_round",
    "decide",
    "end",
    "expire",
    "gather_round",
    "lay_out",
    "lengths",
    "oldest",
    "price",
    "report",
    "show",
    "show_all",
    "stepped",
    "sweep",
    "tokens",
    "world_size",
]

INT, FLOAT = types.int64, types.float64
WORLD = numba_type(World)
place_at = function_reader(PLACE)
finished_at = function_reader(FINISHED)


@compiled(INT(WORLD), first_class=False)
def world_size(world):  # type: ignore[no-untyped-def]
    """Bytes the tables' descriptors take."""
    return size_of(world)


@compiled(
    types.void(WORLD, types.FunctionType(PLACE), types.FunctionType(FINISHED), INT, INT, INT),
    first_class=False,
)
def lay_out(world, place, finished, world_at, place_to, finished_to):  # type: ignore[no-untyped-def]
    """Write the tables' descriptors and the policy's functions where later calls find them."""
    put(world, world_at)
    put(place, place_to)
    put(finished, finished_to)


@jitable
def place_round(world, place, now):  # type: ignore[no-untyped-def]
    """One round; how many were placed. `place` is where the policy stands; 0: ranks in turn."""
    if gather(world, now) == 0:
        counts_in(world)[COUNT.PLACED] = 0
        return 0
    in_turn = place == 0 or settings_in(world)[SET.RUNG] == 2.0
    if in_turn:
        choose_in_turn(world)
    else:
        choose(world, place_at(place))
    return commit(world, in_turn, now)


@compiled(INT(INT, INT, FLOAT, INT, INT, INT, INT, INT, INT, FLOAT), first_class=False)
def arrive(world, place, now, context, budget, session, kind, size_bytes, preferred, arrived_s):  # type: ignore[no-untyped-def]
    """Queue a request, and offer it to the policy that stands at `place` (0: none); its key, -1: no entry is free."""
    key = enqueue(world, now, context, budget, session, kind, size_bytes, preferred, arrived_s)
    counts_in(world)[COUNT.LAST] = key
    if place != 0:
        place_round(world, place, now)
    return key


@compiled(INT(INT, FLOAT, INT, INT, INT, INT), first_class=False)
def adopt(world, now, context, generated, session, rank):  # type: ignore[no-untyped-def]
    """Take over a lease that another router made; its key, or -1 where the table is full. The policy is not told."""
    key = enqueue(world, now, context, -1, session, 0, 0, NOBODY, now)
    if key != NOBODY:
        dispatch(world, key & INDEX_MASK, rank, NOBODY, 0, now)
        grow(world, key & INDEX_MASK, generated, now)
    return key


@compiled(INT(INT, INT, FLOAT), first_class=False)
def decide(world, place, now):  # type: ignore[no-untyped-def]
    """One round; how many were placed. `place` is where the policy stands; 0: ranks in turn."""
    return place_round(world, place, now)


@compiled(INT(INT, FLOAT), first_class=False)
def gather_round(world, now):  # type: ignore[no-untyped-def]
    """Make up a round, for a policy that Python calls; how many requests."""
    return gather(world, now)


@compiled(INT(INT, INT, FLOAT), first_class=False)
def commit_round(world, in_turn, now):  # type: ignore[no-untyped-def]
    """Dispatch what a policy that Python called has placed, or ranks in turn."""
    if in_turn:
        choose_in_turn(world)
    return commit(world, in_turn != 0, now)


@compiled(INT(INT, INT, INT, FLOAT), first_class=False)
def tokens(world, key, count, now):  # type: ignore[no-untyped-def]
    """See `add_tokens`."""
    return add_tokens(world, key, count, now)


@compiled(INT(INT, INT, INT, INT, FLOAT), first_class=False)
def lengths(world, key, context, count, now):  # type: ignore[no-untyped-def]
    """See `set_lengths`."""
    return set_lengths(world, key, context, count, now)


@compiled(INT(INT, INT, INT, INT, FLOAT), first_class=False)
def end(world, finished, key, completed, now):  # type: ignore[no-untyped-def]
    """Release a lease; the rank it was on, -1: on none any more, -2: there is no such lease."""
    e = find(world, key, LIVE)
    if e == NOBODY:
        return -2
    rank = entries_in(world)[e].rank
    release(world, e, finished_at(finished), completed, now)
    return rank


@compiled(INT(INT, INT), first_class=False)
def cancel(world, key):  # type: ignore[no-untyped-def]
    """Take a request out of the queue; whether it was there."""
    e = find(world, key, QUEUED)
    if e == NOBODY:
        return 0
    unqueue(world, e)
    free_entry(world, e)
    return 1


@compiled(INT(INT, INT, INT, INT, FLOAT, INT, INT, FLOAT), first_class=False)
def report(world, rank, batch, context, taken_s, sequence, seen, now):  # type: ignore[no-untyped-def]
    """See `take_report`."""
    return take_report(world, rank, batch, context, taken_s, sequence, seen, now)


@compiled(types.void(INT, INT, FLOAT), first_class=False)
def show(world, instance, now):  # type: ignore[no-untyped-def]
    """Show an instance's ranks as they are; the queue is worth another look."""
    refresh_instance(world, instance, now)
    counts_in(world)[COUNT.DIRTY] = 1


@compiled(types.void(INT, FLOAT), first_class=False)
def show_all(world, now):  # type: ignore[no-untyped-def]
    """Show all ranks as they are."""
    for r in range(len(view_in(world).batch)):
        refresh(world, r, now)
    counts_in(world)[COUNT.DIRTY] = 1


@compiled(types.void(INT, INT, INT, FLOAT, FLOAT), first_class=False)
def stepped(world, instance, steps, ends_s, now):  # type: ignore[no-untyped-def]
    """An instance says that it has done steps, and when the next ends (infinity: none is under way)."""
    instances = instances_in(world)
    instances[instance].told, instances[instance].ends_s = 1, ends_s
    if steps > 0:
        if instances[instance].stepped_s > -np.inf:
            took_s = (now - instances[instance].stepped_s) / steps
            known = instances[instance].step_s > 0.0
            instances[instance].step_s += (took_s - instances[instance].step_s) * (0.25 if known else 1.0)
        step(world, instance, steps, now)


@compiled(INT(INT, FLOAT), first_class=False)
def sweep(world, now):  # type: ignore[no-untyped-def]
    """See `forget_others`."""
    return forget_others(world, now)


@compiled(INT(INT, INT, FLOAT), first_class=False)
def oldest(world, kind, before_s):  # type: ignore[no-untyped-def]
    """Index of the oldest request of a class if it arrived at or before that time; -1."""
    e = kinds_in(world)[kind].first
    return e if e != NOBODY and entries_in(world)[e].arrived_s <= before_s else NOBODY


@compiled(INT(INT, INT, FLOAT), first_class=False)
def expire(world, start, before_s):  # type: ignore[no-untyped-def]
    """Index of the first lease from `start` on that was last heard of before that time; -1."""
    entries = entries_in(world)
    for e in range(start, len(entries)):
        if entries[e].state == LIVE and entries[e].heard_s < before_s:
            return e
    return NOBODY


@compiled(FLOAT(INT, INT, INT, INT), first_class=False)
def price(world, instance, rank, context):  # type: ignore[no-untyped-def]
    """See `price_with`."""
    return price_with(world, instance, rank, context)

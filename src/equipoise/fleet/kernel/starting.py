"""An instance starts a step: its ranks make room and admit, what they run is priced, and its end is set."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.fleet.kernel.account import account_step
from equipoise.fleet.kernel.instances import set_end
from equipoise.fleet.kernel.layout import NO_PREEMPTION
from equipoise.fleet.kernel.pictures import held_tokens
from equipoise.fleet.kernel.price import price_step
from equipoise.fleet.kernel.state import NOBODY, PADDED, QUERIES, READ, TALLY
from equipoise.fleet.kernel.steps import admit, load_step, make_room
from equipoise.fleet.kernel.world import (
    extras_in,
    life_in,
    more_in,
    pool_in,
    prefill_in,
    prices_in,
    ranked_in,
    settings_in,
    state_in,
)

__all__ = ["start_step"]


@jitable
def fill_ranks(world, instance, most_growth, now):  # type: ignore[no-untyped-def]
    """Let the ranks of an instance make room for what grows, and admit from their queues; returns an error code."""
    life, ranked, state = life_in(world), ranked_in(world), state_in(world)
    width = pool_in(world).ranks_per_instance
    most_held = held_tokens(most_growth, life.block_shift)
    for rank in range(instance * width, (instance + 1) * width):
        on = state.ranks[rank]
        queued = state.lists[rank].first != NOBODY
        if not on.up or (on.rows == 0 and not queued):
            continue
        total, bound = on.resident, False
        if life.preemption != NO_PREEMPTION:
            bound = True
            total += on.rows * most_held
            if total > ranked.kv_capacity_tokens[rank]:
                total, bound = make_room(world, instance, rank, now), False
                queued = state.lists[rank].first != NOBODY
        if queued or on.frozen > 0:
            code = admit(world, instance, rank, total, bound, most_growth, now)
            if code:
                return code
    return 0


@jitable
def start_step(world, instance, most_growth, draining, now):  # type: ignore[no-untyped-def]
    """Start a step of an instance that has work; returns an error code.

    `most_growth` is the most tokens that a request yields in a step; `draining`: the load is falling for good.
    """
    life, settings, ranked, state = life_in(world), settings_in(world), ranked_in(world), state_in(world)
    width, tally = pool_in(world).ranks_per_instance, state.tally
    tally[TALLY.SWAPPED] = 0
    code = fill_ranks(world, instance, most_growth, now)
    if code:
        return code
    tokens, mixed = load_step(world, instance, width, more_in(world).counts)
    swap = tally[TALLY.SWAPPED] * life.swap_s_per_token / settings.seconds_per_unit
    first = instance * width
    cost, ideal, own_work = price_step(
        prices_in(world), prefill_in(world), extras_in(world), ranked.slowness[first : first + width],
        state.step[QUERIES], state.step[PADDED], state.step[READ], state.step_k[1], state.totals_k, state.pieces, mixed,
        swap, state.instances[instance].steps + instance * 9973, state.part,
    )  # fmt: skip
    end = now + cost * settings.seconds_per_unit
    set_end(world, instance, end)
    account_step(world, instance, cost, ideal, own_work, tokens, now, end, draining)
    return 0

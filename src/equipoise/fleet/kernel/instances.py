"""Instances: when a step ends, which ranks are up, and how many instances stand ready for a request."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.fleet.kernel.lists import set_clock
from equipoise.fleet.kernel.state import IDLE, TALLY
from equipoise.fleet.kernel.world import state_in

__all__ = ["set_end", "set_up"]


@jitable
def set_end(world, instance, end_s):  # type: ignore[no-untyped-def]
    """Set the end of an instance's step, and keep count of those that are ready."""
    state = state_in(world)
    leaf = len(state.end_s) // 2 + instance
    up = state.instances[instance].alive > 0
    state.tally[TALLY.READY] += (end_s == IDLE and up) - (state.end_s[leaf] == IDLE and up)
    set_clock(state.end_s, instance, end_s)


@jitable
def set_up(world, instance, rank, up):  # type: ignore[no-untyped-def]
    """Take a rank up or down."""
    state = state_in(world)
    if state.ranks[rank].up == up:
        return
    idle = state.end_s[len(state.end_s) // 2 + instance] == IDLE
    before = state.instances[instance].alive > 0
    state.ranks[rank].up = up
    change = 1 if up else -1
    state.instances[instance].alive += change
    state.tally[TALLY.UP] += change
    state.tally[TALLY.READY] += (idle and state.instances[instance].alive > 0) - (idle and before)

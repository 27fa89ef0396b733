"""The kernel's working state, made in Python: what is handed in need not be reference-counted while it runs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.replay.layout import MAX_ROUND, PoolLayout
from equipoise.types import Floats, Ints, Ints2D, Ints3D, SmallInts, SmallInts2D, SmallInts3D

__all__ = ["IDLE", "NOBODY", "State", "new_state"]

IDLE = np.inf
"""End of the step of an instance that runs none."""
NOBODY = -1
"""End of a list of requests."""
LONGEST_CALENDAR = 1 << 17
"""Slots of a calendar, in steps; longer outputs go round it more than once."""


class State(NamedTuple):
    """Ranks, instances, calendars and the buffers of a round."""

    # Ranks: requests placed, their context, K, requests below a saturation length ...
    batch: Ints2D
    context: Ints2D
    saturated: Ints3D
    unsaturated: Ints3D
    # ... and the same for those in the step under way.
    running: Ints2D
    growing: Ints3D
    # Instances: requests placed, steps completed, end of the step under way, requests that start with the next one.
    load: Ints
    steps: Ints
    end_s: Floats
    joining_first: SmallInts
    joining_next: SmallInts
    # Calendars of an instance, see `equipoise.replay.kernel.schedule`.
    first: SmallInts3D
    following: SmallInts2D
    due_step: SmallInts2D
    # A round: requests held back since they were first offered, since which boundary and when; the policy's choices.
    held: Ints
    offered_boundary: Ints
    offered_s: Floats
    chosen: Ints
    # Groups: first rank of each, then the number of ranks; the group of each instance.
    bounds: Ints
    group_of: Ints
    # K of an instance, added up.
    total_saturated: Ints


def calendar_slots(longest: int) -> int:
    """Slots of a calendar: a power of two above the longest wait, up to a limit."""
    slots = 2
    while slots <= longest and slots < LONGEST_CALENDAR:
        slots *= 2
    return slots


def new_state(
    pool: PoolLayout, saturations: int, requests: int, longest_output: int, *, keep_requests: bool
) -> State:
    """An empty pool.

    Parameters
    ----------
    pool : PoolLayout
    saturations, requests : int
    longest_output : int
        Tokens, so steps.
    keep_requests : bool
    """
    instances, width = pool.instances, pool.ranks_per_instance
    by_rank, by_length = (instances, width), (instances, width, saturations)
    calendars = 1 + saturations
    return State(
        batch=np.zeros(by_rank, np.int64),
        context=np.zeros(by_rank, np.int64),
        saturated=np.zeros(by_length, np.int64),
        unsaturated=np.zeros(by_length, np.int64),
        running=np.zeros(by_rank, np.int64),
        growing=np.zeros(by_length, np.int64),
        load=np.zeros(instances, np.int64),
        steps=np.zeros(instances, np.int64),
        end_s=np.full(instances, IDLE),
        joining_first=np.full(instances, NOBODY, np.int32),
        joining_next=np.full(requests if keep_requests else 0, NOBODY, np.int32),
        first=np.full((instances, calendars, calendar_slots(longest_output)), NOBODY, np.int32),
        following=np.full((calendars, requests), NOBODY, np.int32),
        due_step=np.zeros((calendars, requests), np.int32),
        held=np.zeros(MAX_ROUND, np.int64),
        offered_boundary=np.zeros(MAX_ROUND, np.int64),
        offered_s=np.zeros(MAX_ROUND),
        chosen=np.zeros(MAX_ROUND, np.int64),
        bounds=pool.group_starts * width,
        group_of=np.searchsorted(pool.group_starts, np.arange(instances), side="right") - 1,
        total_saturated=np.zeros(saturations, np.int64),
    )

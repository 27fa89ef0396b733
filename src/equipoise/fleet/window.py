"""From a window of simulated time to the steps in it."""

from __future__ import annotations

import numpy as np

from equipoise.errors import InputError
from equipoise.replay import ReplayResult, SnapshotPlan
from equipoise.replay.layout import SERIES

__all__ = ["MOST_CELLS", "window_plan"]

MOST_CELLS = 1 << 26
"""Ranks times steps that one plan may keep: 1.5 GiB of snapshots under a cost with one saturation length."""


def window_plan(result: ReplayResult, first_s: float, last_s: float) -> SnapshotPlan:
    """Plan of the steps that start from `first_s` to before `last_s`, for a second run.

    Which steps fall into a window of time is known only after a run. So: run, plan, and run again with the same
    arguments and ``snapshots=plan``; the same input and seed give the same steps::

        result = simulate(trace, deployment, policy, cost)
        plan = window_plan(result, 60.0, 61.0)
        window = simulate(trace, deployment, policy, cost, snapshots=plan)

    Where rows of the series stand for several steps, the plan is as coarse as they are: it takes whole rows, so that
    nothing of the window is missing.

    Raises
    ------
    InputError
        An empty window, one in which no step starts, or one of too many steps.
    """
    if not first_s < last_s:
        raise InputError(
            f"a window from {first_s:g} to {last_s:g} s", fix="its end must be after its beginning"
        )
    rows = result.series
    starts, ends = rows[:, SERIES.START_S], np.cumsum(rows[:, SERIES.STEPS]).astype(np.int64)
    # the row before the first that starts inside may hold such steps too, if it holds several
    low = int(np.searchsorted(starts, first_s))
    high = int(np.searchsorted(starts, last_s))
    if low > 0 and rows[low - 1, SERIES.STEPS] > 1:
        low -= 1
    if low >= high:
        raise InputError(
            f"no step starts from {first_s:g} to {last_s:g} s",
            fix=f"steps start from {starts[0]:g} to {starts[-1]:g} s; an idle instance starts none",
        )
    first = int(ends[low - 1]) if low else 0
    count = int(ends[high - 1]) - first
    if count * result.pool.ranks > MOST_CELLS:
        raise InputError(
            f"{count} steps of {result.pool.ranks} ranks from {first_s:g} to {last_s:g} s",
            fix=f"a plan keeps up to {MOST_CELLS // result.pool.ranks} steps; choose a shorter window",
        )
    return SnapshotPlan(count, first)

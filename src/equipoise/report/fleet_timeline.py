"""The ranks of a window of a simulated deployment as a trace for ui.perfetto.dev.

Drawn as `equipoise.report.timeline` draws a comparison, with the speed of each rank, speculation and padding in the
work. What a step costs beyond attention (overhead, FFN, communication, mixed prefill, swapping) is one slice at its
end, the same on all ranks. What happened to ranks and instances stands as instants. Preemptions are not drawn: a run
counts them by request and as a whole, without their times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.errors import InputError
from equipoise.fleet import FleetResult
from equipoise.fleet.arrays import ranked_of
from equipoise.replay import Snapshots
from equipoise.replay.layout import ENDED, SERIES
from equipoise.report.timeline import (
    FIRST_PID,
    MOST_RANKS,
    STEPS_TID,
    Event,
    Priced,
    as_trace,
    at_barriers,
    draw_instance,
    name_threads,
    only,
    write_trace,
)
from equipoise.types import Floats, Ints

__all__ = ["fleet_timeline", "write_fleet_timeline"]


def fleet_timeline(
    result: FleetResult, *, title: str | None = None, instances: Sequence[int] | None = None
) -> dict[str, Any]:
    """Draw the steps that a run kept rank by rank.

    Parameters
    ----------
    result : FleetResult
        Of `equipoise.fleet.simulate` with ``snapshots``; `equipoise.fleet.window_plan` plans a window of time.
    title : str, optional
        The policy by default.
    instances : sequence of int, optional
        Which to draw; by default the first, up to 256 ranks together.

    Raises
    ------
    InputError
        No steps were kept, or none of these instances.
    """
    window, pool = result.snapshots, result.pool
    if len(window.step) == 0:
        raise InputError(
            "the run kept no steps rank by rank",
            where="timeline",
            fix="simulate with snapshots=SnapshotPlan(...), or window_plan(...) for a window of time",
        )
    there = np.unique(window.instance)
    if instances is None:
        shown = [int(i) for i in there[: max(1, MOST_RANKS // pool.ranks)]]
    else:
        shown = [int(i) for i in instances]
        if missing := [i for i in shown if i not in there]:
            raise InputError(
                f"no step of instance {missing[0]} was kept",
                where="timeline",
                fix=f"in this window, instances {', '.join(map(str, there[:20]))} have steps",
            )
    title = title or result.policy_name
    origin_s = float(window.start_s[0])
    end_s = float((window.start_s + window.length_s).max())
    ranked = ranked_of(result.deployment, pool.layout(), result.seed)
    events: list[Event] = []
    for pid, instance in enumerate(shown, FIRST_PID):
        events += name_threads(pid, title, instance, pool.instances, pool.ranks)
        mine = only(window, instance)
        slowness = ranked.slowness[instance * pool.ranks : (instance + 1) * pool.ranks]
        events += draw_instance(pid, _priced(result, mine, slowness), origin_s)
        events += _waiting(pid, result, mine, origin_s)
        events += _changes(pid, result, instance, origin_s, end_s)
    notes = {
        "trace": result.trace_name,
        "policy": title,
        "cost": result.cost.formula(),
        "first_step": int(window.step[0]),
        "start_s": origin_s,
        "instances_shown": shown,
    }
    return as_trace(events, notes)


def write_fleet_timeline(
    result: FleetResult, path: str | Path, *, title: str | None = None, instances: Sequence[int] | None = None
) -> None:
    """Write `fleet_timeline` to a file, one event a line."""
    write_trace(fleet_timeline(result, title=title, instances=instances), Path(path))


def _priced(result: FleetResult, window: Snapshots, slowness: Floats) -> Priced:
    """What each rank did, as the simulation prices it."""
    cost, speculation = result.cost, result.deployment.speculation
    Q = window.batch * (1 + speculation.drafts)
    again = speculation.query_reads * speculation.drafts
    C = window.context_tokens + np.floor(again * window.context_tokens).astype(np.int64)
    K = window.saturated_tokens + np.floor(again * window.saturated_tokens).astype(np.int64)
    Q = _padded(Q, result.deployment.step.graph_sizes)
    work, names = at_barriers(cost, cost.work(Q, C, K) * slowness)
    total = window.length_s * 1e6 / cost.us_per_unit
    ideal = result.series[window.step, SERIES.IDEAL] if _by_the_step(result) else None
    return Priced(window, names, cost.constant, cost.us_per_unit, work, total, ideal)


def _padded(Q: Ints, graph_sizes: Sequence[int]) -> Ints:
    """All ranks of a step at its largest batch, rounded up to a captured one."""
    if not graph_sizes:
        return Q
    sizes = np.array(graph_sizes)
    largest = Q.max(axis=-1)
    at = np.searchsorted(sizes, largest)
    rounded = np.where(at < len(sizes), sizes[np.minimum(at, len(sizes) - 1)], largest)
    return np.broadcast_to(np.where(largest > 0, rounded, 0)[:, None], Q.shape)


def _by_the_step(result: FleetResult) -> bool:
    """Whether a row of the series is one step, so that a step's number is its row."""
    return int(result.outcome.ended[ENDED.SERIES_STEPS]) == 1


def _waiting(pid: int, result: FleetResult, window: Snapshots, origin_s: float) -> Iterator[Event]:
    """Requests waiting at the routers, all of them, when each step started."""
    if not _by_the_step(result):
        return
    for start_s, queued in zip(window.start_s, result.series[window.step, SERIES.QUEUED], strict=True):
        yield {
            "ph": "C",
            "name": "waiting at routers",
            "pid": pid,
            "tid": STEPS_TID,
            "ts": round(1e6 * float(start_s - origin_s), 3),
            "args": {"requests": int(queued)},
        }


def _changes(pid: int, result: FleetResult, instance: int, origin_s: float, end_s: float) -> Iterator[Event]:
    """What happened to the instance inside the window, and when routers noticed."""
    for change in result.deployment.changes:
        if change.instance != instance:
            continue
        what = change.what if change.rank is None else f"{change.what} rank {change.rank}"
        for name, at_s in ((what, change.at_s), (f"noticed: {what}", change.at_s + change.notice_s)):
            if origin_s <= at_s <= end_s:
                yield {
                    "ph": "i",
                    "s": "p" if change.rank is None else "t",
                    "name": name,
                    "cat": "change",
                    "pid": pid,
                    "tid": STEPS_TID if change.rank is None else change.rank + 2,
                    "ts": round(1e6 * (at_s - origin_s), 3),
                    "args": {"simulated_s": at_s, "stall_s": change.stall_s},
                }

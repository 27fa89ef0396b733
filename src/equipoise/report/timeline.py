"""The ranks of a few steps as a trace for ui.perfetto.dev (Chrome's trace event format, JSON).

Process = instance, thread = rank. Every step of a rank is cut at its barriers: the price every step pays first, as
``work``, then for each term of the cost its own ``work`` and the ``bubble`` until the slowest rank of that term is
done (with ``barrier = "step"`` one ``work`` and one ``bubble`` a step). In a real engine the layers of all terms
alternate dozens of times within a step; here each term is drawn once, as long as all its layers together, so that
the barriers, and what every rank waits at them, can be seen. A thread ``steps`` above the ranks holds the step
itself with its price, ideal and slowest rank; counters follow batch and context tokens.

Policies stand beside each other as processes of their own; each one's window starts at 0.
Format: "Trace Event Format", Google; ``ts`` and ``dur`` in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.cost import StepCost
from equipoise.errors import InputError
from equipoise.replay import SnapshotPlan, Snapshots
from equipoise.study import Cell, Comparison, rerun, setting_words
from equipoise.types import Floats

__all__ = ["timeline", "write_timeline"]

STEPS = 60
MOST_RANKS = 256
"""Ranks a policy is drawn with at most; of a larger pool the first instances are shown, one in any case."""
FIRST_PID = 100_001
"""Process ids above every thread id: a thread with the id of its process would be drawn as its main thread."""
STEPS_TID = 1
"""Thread of the steps; rank r is thread r + 2 (thread 0 is the idle task to Perfetto)."""

Event = dict[str, Any]


def timeline(comparison: Comparison, *, steps: int = STEPS, first: int | None = None) -> dict[str, Any]:
    """Draw the baseline and the best policy of the first setting.

    Parameters
    ----------
    comparison : Comparison
    steps : int
        Steps of each instance.
    first : int, optional
        Index of the first step over all instances, as in the summary; the middle of the counted steps by default.

    Raises
    ------
    InputError
        No step, or a window that begins after the last step.
    """
    if steps < 1:
        raise InputError(f"a timeline of {steps} steps", fix="show at least 1")
    setting = comparison.settings()[0]
    baseline, best = comparison.baseline(setting), comparison.best(setting)
    shown = [("best", best)] if best is baseline else [("baseline", baseline), ("best", best)]
    events: list[Event] = []
    notes: dict[str, Any] = {"setting": setting_words(setting), "cost": setting.cost.formula()}
    pid = FIRST_PID
    for role, cell in shown:
        window = _window(comparison, cell, steps, first)
        title = f"{role}: {cell.policy.label}"
        instances = np.unique(window.instance)[: max(1, MOST_RANKS // setting.pool.ranks)]
        notes[title] = {
            "first_step": int(window.step[0]),
            "start_s": float(window.start_s[0]),
            "instances_shown": len(instances),
        }
        for instance in instances:
            events += name_threads(pid, title, int(instance), setting.pool.instances, setting.pool.ranks)
            priced = _priced(setting.cost, only(window, int(instance)))
            events += draw_instance(pid, priced, float(window.start_s[0]))
            pid += 1
    return as_trace(events, notes)


def as_trace(events: list[Event], notes: dict[str, Any]) -> dict[str, Any]:
    """Events in the order the format wants, and notes, as one document."""
    events.sort(key=lambda e: (e["ph"] != "M", e.get("ts", 0.0)))  # stable: names first, then by time
    return {"displayTimeUnit": "ms", "otherData": notes, "traceEvents": events}


def write_timeline(
    comparison: Comparison, path: Path, *, steps: int = STEPS, first: int | None = None
) -> None:
    """Write `timeline` to a file, one event a line."""
    write_trace(timeline(comparison, steps=steps, first=first), path)


def write_trace(drawn: dict[str, Any], path: Path) -> None:
    """Write a document of `as_trace`, one event a line."""
    events = drawn.pop("traceEvents")
    head = json.dumps(drawn, ensure_ascii=False, allow_nan=False)[:-1]
    rows = ",\n".join(
        json.dumps(e, ensure_ascii=False, separators=(",", ":"), allow_nan=False) for e in events
    )
    path.write_text(f'{head}, "traceEvents": [\n{rows}\n]}}\n', "utf-8")


def _window(comparison: Comparison, cell: Cell, steps: int, first: int | None) -> Snapshots:
    run, instances = cell.runs[0], cell.setting.pool.instances
    count = steps * instances
    if first is None:
        low, high = run.counted_range
        first = max(low, (low + high + 1 - count) // 2)
    if not 0 <= first < run.steps:
        raise InputError(f"first step {first}", where="timeline", fix=f"must be from 0 to {run.steps - 1}")
    return rerun(comparison.plan, cell, SnapshotPlan(count, first)).snapshots


def name_threads(pid: int, title: str, instance: int, instances: int, ranks: int) -> Iterator[Event]:
    def name(kind: str, tid: int, **args: Any) -> Event:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}

    suffix = f", instance {instance}" if instances > 1 else ""
    yield name("process_name", STEPS_TID, name=title + suffix)
    yield name("process_sort_index", STEPS_TID, sort_index=pid - FIRST_PID)
    threads = [(STEPS_TID, "steps"), *((rank + 2, f"rank {rank}") for rank in range(ranks))]
    for tid, words in threads:
        yield name("thread_name", tid, name=words)
        yield name("thread_sort_index", tid, sort_index=tid)


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Steps of one instance and what each rank does in them, prices in the cost's unit.

    Parameters
    ----------
    window : Snapshots
        Steps of this instance only, in order.
    names : list of str
        Of the barriers.
    constant, us : float
        Price that every step pays first; microseconds a unit.
    work : float64[barriers, steps, ranks]
    total : float64[steps]
        Price of the step; what the barriers do not explain of it comes last, as ``beyond attention``.
    ideal : float64[steps], optional
    """

    window: Snapshots
    names: list[str]
    constant: float
    us: float
    work: Floats
    total: Floats
    ideal: Floats | None


def only(window: Snapshots, instance: int) -> Snapshots:
    """The steps of one instance."""
    rows = np.flatnonzero(window.instance == instance)
    return Snapshots(*(getattr(window, f.name)[rows] for f in fields(Snapshots)))


def _priced(cost: StepCost, window: Snapshots) -> Priced:
    """What a replay paid for these steps: attention."""
    loads = window.batch, window.context_tokens, window.saturated_tokens
    work, names = at_barriers(cost, cost.work(*loads))
    total = cost.constant + work.max(axis=2).sum(axis=0)
    return Priced(window, names, cost.constant, cost.us_per_unit, work, total, cost.ideal(*loads))


def at_barriers(cost: StepCost, work: Floats) -> tuple[Floats, list[str]]:
    """Work by term to work by barrier, float64[barriers, steps, ranks], and the names of these."""
    if cost.barrier == "step":
        return work.sum(axis=0, keepdims=True), ["step"]
    return work, [t.name for t in cost.terms]


def draw_instance(pid: int, priced: Priced, origin_s: float) -> Iterator[Event]:
    """All events of one instance, step by step."""
    window, us, names = priced.window, priced.us, priced.names
    B, C = window.batch, window.context_tokens
    starts = [round(1e6 * float(start_s - origin_s), 3) for start_s in window.start_s]
    for i, at in enumerate(starts):
        # a step may not reach into the next, not even by a rounded nanosecond: overlapping slices are dropped
        room = round(starts[i + 1] - at, 3) if i + 1 < len(starts) else np.inf
        own, total = priced.work[:, i], float(priced.total[i])
        known = {} if priced.ideal is None else {"ideal": round(float(priced.ideal[i]), 6)}
        yield {
            "ph": "X",
            "name": f"step {int(window.step[i])}",
            "cat": "step",
            "pid": pid,
            "tid": STEPS_TID,
            "ts": at,
            "dur": min(round(us * total, 3), room),
            "args": {
                "cost": round(total, 6),
                **known,
                "slowest": {n: f"rank {int(r)}" for n, r in zip(names, own.argmax(axis=1), strict=True)},
                "simulated_start_s": round(float(window.start_s[i]), 9),
            },
        }
        for name, values in (("batch", B[i]), ("context tokens", C[i])):
            args = {"max": int(values.max()), "mean": round(float(values.mean()), 3)}
            yield {"ph": "C", "name": name, "pid": pid, "tid": STEPS_TID, "ts": at, "args": args}
        yield from _ranks(pid, at, room, priced, i)


def _ranks(pid: int, at: float, room: float, priced: Priced, i: int) -> Iterator[Event]:
    """Slices of one step, rank by rank; ends are rounded, not lengths, so that slices meet exactly."""
    us, constant, own, total = priced.us, priced.constant, priced.work[:, i], float(priced.total[i])
    B, C = priced.window.batch[i], priced.window.context_tokens[i]
    ends = np.cumsum(own.max(axis=1)) + constant
    starts = np.concatenate([[constant], ends[:-1]])

    def piece(kind: str, rank: int, low: float, high: float, **args: Any) -> Iterator[Event]:
        begin, end = round(us * low, 3), min(round(us * high, 3), room)
        if end > begin:
            length, ts = round(end - begin, 3), round(at + begin, 3)
            yield {
                "ph": "X",
                "name": kind,
                "cat": kind,
                "pid": pid,
                "tid": rank + 2,
                "ts": ts,
                "dur": length,
                "args": args,
            }

    for rank in range(len(B)):
        load = {"batch": int(B[rank]), "context_tokens": int(C[rank])}
        yield from piece("work", rank, 0.0, constant, term="constant")
        for t, name in enumerate(priced.names):
            done = float(starts[t] + own[t, rank])
            yield from piece("work", rank, float(starts[t]), done, term=name, **load)
            yield from piece("bubble", rank, done, float(ends[t]), term=name)
        yield from piece("beyond attention", rank, float(ends[-1]), total)

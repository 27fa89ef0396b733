"""From a file's columns to `StepRecords`: what cannot be used is dropped and counted, what is special is flagged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.readers.format import Job
from equipoise.calibrate.readers.rows import Columns
from equipoise.calibrate.records import Flag, StepRecords
from equipoise.errors import CalibrationError

__all__ = ["assemble"]

LOST_STEPS = 3
"""A rank that is missing from at least so many of the last steps is lost; fewer may be a log cut off in between."""
COUNTS = ("batch", "query_tokens", "prefill_requests", "prefill_tokens")


def assemble(
    job: Job,
    name: str,
    columns: Columns,
    *,
    labels: Mapping[str, Any] | None = None,
    time_is: str = "step",
    chained: bool = True,
    reasons: tuple[str, ...] = (),
) -> StepRecords:
    """Check, order and flag the rows of one group.

    Parameters
    ----------
    job : Job
    name : str
        Name of the format.
    columns : Columns
        Columns of `StepRecords` and ``file``; ``flags`` may hold what only the reader knows.
    labels : mapping, optional
        What the file says of itself.
    time_is : {"step", "rank"}
        See `StepRecords`.
    chained : bool
        Rows of a rank follow each other in time. False for tables of separate measurements.
    reasons : tuple of str
        Why rows are dropped whose ``reason`` is 1, 2 ...; they count as steps that took place.

    Raises
    ------
    CalibrationError
        No row is left.
    """
    columns.setdefault("flags", np.zeros(len(columns["line"]), np.uint8))
    if len(columns["line"]):
        columns = _countable(job, columns)
    if chained and len(columns["line"]):
        _clocks(job, columns)
        columns = _ordered(columns)
        columns = _unique(job, columns)
        _lost_ranks(job, columns)
    if len(columns["line"]):
        columns = _timed(job, columns, chained, reasons)
    if not len(columns["line"]):
        gone = "".join(f", {d.rows:,} dropped: {d.reason} ({d.first})" for d in job.ledger.dropped)
        raise CalibrationError(
            f"holds no step that can be used{gone}",
            where=_source(job),
            fix="a fit needs decode steps with a batch and a time",
        )
    source = _source(job)
    columns.pop("file")
    return StepRecords.build(
        columns,
        source=source,
        format=name,
        labels=dict(labels or {}),
        time_is=time_is,
        dropped=job.ledger.dropped,
        notes=tuple(job.ledger.notes),
    )


def _source(job: Job) -> str:
    return ", ".join(str(path) for path in job.files)


def _place(job: Job, columns: Columns, row: int) -> str:
    path, line = job.files[int(columns["file"][row])], int(columns["line"][row])
    return f"{path}:{line}" if line else str(path)


def _keep(job: Job, columns: Columns, bad: NDArray[np.bool_], reason: str) -> Columns:
    """Drop rows, counted under a reason."""
    count = int(bad.sum())
    if count == 0:
        return columns
    rows = np.flatnonzero(bad)
    first = rows[np.lexsort((columns["line"][rows], columns["file"][rows]))[0]]
    job.ledger.drop(reason, count, _place(job, columns, int(first)))
    good = ~bad
    return {key: values[good] for key, values in columns.items()}


def _countable(job: Job, columns: Columns) -> Columns:
    bad = np.zeros(len(columns["line"]), dtype=bool)
    for key in COUNTS:
        if key in columns:
            bad |= columns[key] < 0
    if "context_tokens" in columns:
        bad |= columns["context_tokens"] < -1
    return _keep(job, columns, bad, "a number of requests or tokens is missing or negative")


def _clocks(job: Job, columns: Columns) -> None:
    """Count where a rank's clock runs backwards, in the order of the file."""
    if "clock_s" not in columns:
        return
    order = np.lexsort((columns["line"], columns["rank"], columns["instance"], columns["file"]))
    clock = columns["clock_s"][order]
    same = np.ones(len(order) - 1, dtype=bool)
    for key in ("rank", "instance", "file"):
        same &= np.diff(columns[key][order]) == 0
    back = np.flatnonzero(same & (np.diff(clock) < 0)) + 1
    if len(back):
        lines = columns["line"][order[back]]
        first = order[back[np.lexsort((lines, columns["file"][order[back]]))[0]]]
        times = "once" if len(back) == 1 else f"{len(back):,} times"
        worst_s = float(np.max(clock[back - 1] - clock[back]))
        job.ledger.note(
            f"The clock runs backwards {times}, by up to {worst_s:.3g} s, first at {_place(job, columns, int(first))}; "
            f"steps keep the order of their ids."
        )


def _ordered(columns: Columns) -> Columns:
    """Sorted by instance, step, rank; rows of the same three keep the order of the file."""
    keys = [columns[key].astype(np.int64) for key in ("instance", "step", "rank")]
    low = [int(key.min()) for key in keys]
    width = [int(key.max()) - at + 1 for key, at in zip(keys, low, strict=True)]
    if width[0] * width[1] * width[2] < 1 << 62:  # one key sorts faster than three
        joint = ((keys[0] - low[0]) * width[1] + (keys[1] - low[1])) * width[2] + (keys[2] - low[2])
        if (np.diff(joint) >= 0).all():
            return columns
        order = np.argsort(joint, kind="stable")
    else:
        order = np.lexsort((keys[2], keys[1], keys[0]))
    for key in columns:
        columns[key] = columns[key][order]
    return columns


def _unique(job: Job, columns: Columns) -> Columns:
    same = np.zeros(len(columns["line"]), dtype=bool)
    same[1:] = True
    for key in ("instance", "step", "rank"):
        same[1:] &= np.diff(columns[key]) == 0
    return _keep(job, columns, same, "the step is there twice for this rank, the first is kept")


def _lost_ranks(job: Job, columns: Columns) -> None:
    """Name the ranks that are missing from the last steps of their instance."""
    instance, step, rank = columns["instance"], columns["step"], columns["rank"]
    starts = np.flatnonzero(np.append(True, np.diff(instance) != 0))
    for begin, end in zip(starts, np.append(starts[1:], len(instance)), strict=True):
        steps = np.unique(step[begin:end])
        ranks, backwards = np.unique(rank[begin:end][::-1], return_index=True)
        last = step[begin:end][::-1][backwards]
        missing = len(steps) - 1 - np.searchsorted(steps, last)
        for r in np.flatnonzero(missing >= LOST_STEPS)[:100]:
            of = f" of instance {instance[begin]}" if len(starts) > 1 else ""
            job.ledger.note(
                f"Rank {ranks[r]}{of} has no rows from step {steps[np.searchsorted(steps, last[r]) + 1]} on, "
                f"the last {missing[r]:,} of {len(steps):,} steps: it seems to be lost, not idle."
            )


def _timed(job: Job, columns: Columns, chained: bool, reasons: tuple[str, ...]) -> Columns:
    """Flags, then the rows whose time is none."""
    prefill = np.zeros(len(columns["line"]), dtype=bool)
    for key in ("prefill_tokens", "prefill_requests"):
        if key in columns:
            prefill |= columns[key] > 0
    decode = columns["batch"] > 0
    flags = columns["flags"]
    flags |= np.where(prefill & ~decode, Flag.PREFILL, 0).astype(np.uint8)
    flags |= np.where(prefill & decode, Flag.MIXED, 0).astype(np.uint8)
    idle = ~prefill & ~decode
    flags |= np.where(idle, Flag.IDLE, 0).astype(np.uint8)
    if chained:
        flags |= np.where(_first(columns, idle), Flag.FIRST, 0).astype(np.uint8)
    for number, reason in enumerate(reasons, start=1):
        columns = _keep(job, columns, columns["reason"] == number, reason)
    columns.pop("reason", None)
    timeless = (columns["time_s"] == 0) | np.isnan(columns["time_s"])
    columns = _keep(job, columns, timeless & ((columns["flags"] & Flag.IDLE) > 0), "idle heartbeat")
    columns = _keep(job, columns, ~np.isfinite(columns["time_s"]), "the time is not a number")
    columns = _keep(job, columns, columns["time_s"] < 0, "negative time")
    return _keep(job, columns, columns["time_s"] == 0, "the time is zero")


def _first(columns: Columns, idle: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows whose rank ran nothing, or is not known to have run, in the step before."""
    instance, step, rank = columns["instance"], columns["step"], columns["rank"]
    new = np.ones(len(step), dtype=bool)
    new[1:] = (np.diff(step) != 0) | (np.diff(instance) != 0)
    # Steps counted inside what the file holds: a gap that all ranks share is a gap of the recorder, and still unknown.
    ordinal = np.cumsum(new)
    order = np.lexsort((ordinal, rank, instance))
    chain = np.zeros(len(step), dtype=bool)
    before, after = order[:-1], order[1:]
    chain[after] = (
        (instance[before] == instance[after])
        & (rank[before] == rank[after])
        & (ordinal[after] - ordinal[before] == 1)
        & (step[after] - step[before] <= _stride(step))
        & ~idle[before]
    )
    return ~chain & ~idle


def _stride(step: NDArray[np.int64]) -> int:
    """The usual distance of step ids: 1, or what a log that prints every n-th step counts by."""
    gaps = np.diff(np.unique(step))
    return int(np.median(gaps)) if len(gaps) else 1

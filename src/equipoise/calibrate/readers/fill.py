"""Rows for ranks that were idle in a step, where the source leaves them out."""

from __future__ import annotations

import numpy as np

from equipoise.calibrate.readers.format import Job
from equipoise.calibrate.readers.rows import Columns
from equipoise.types import Ints

__all__ = ["idle_rows"]

MOST = 50
"""Idle rows are added only up to so many times the rows of the file: step ids of a broken file may lie anywhere."""


def idle_rows(job: Job, columns: Columns) -> Columns:
    """Add a row for every step that a rank lacks before its last one; after that it is lost, not idle.

    The time is that of the other ranks: all wait for the slowest.
    """
    parts, added, ranks_with = [columns], 0, 0
    for number in np.unique(columns["instance"]):
        rows = np.flatnonzero(columns["instance"] == number)
        steps, at = np.unique(columns["step"][rows], return_inverse=True)
        ranks, which = np.unique(columns["rank"][rows], return_inverse=True)
        if len(steps) * len(ranks) > MOST * len(rows):
            job.ledger.note(
                f"Instance {number} has {len(ranks):,} ranks and {len(steps):,} steps with only {len(rows):,} rows: "
                f"idle ranks are left out."
            )
            continue
        there = np.zeros((len(steps), len(ranks)), bool)
        there[at, which] = True
        last = len(steps) - 1 - np.argmax(there[::-1], axis=0)
        lacking = ~there & (np.arange(len(steps))[:, None] <= last)
        slot, rank = np.nonzero(lacking)
        if not len(slot):
            continue
        times = columns["time_s"][rows]
        longest = np.full(len(steps), np.nan)
        np.fmax.at(longest, at, np.where(np.isfinite(times) & (times > 0), times, np.nan))
        usable = np.isfinite(longest[slot])
        slot, rank = slot[usable], rank[usable]
        added += len(slot)
        ranks_with += len(np.unique(rank))
        parts.append(
            _idle(columns, rows, slot, {"step": steps[slot], "rank": ranks[rank], "time_s": longest[slot]})
        )
    if len(parts) == 1:
        return columns
    job.ledger.note(
        f"{added:,} steps that {ranks_with:,} ranks did not print are taken as idle steps of theirs, as long as those "
        f"of the others."
    )
    return {
        name: np.concatenate([part[name] for part in parts]).astype(columns[name].dtype, copy=False)
        for name in columns
    }


def _idle(columns: Columns, rows: Ints, slot: Ints, known: Columns) -> Columns:
    part: Columns = {}
    for name, values in columns.items():
        if name in known:
            part[name] = known[name]
        elif name in ("instance", "file"):
            part[name] = np.full(len(slot), values[rows[0]])
        elif name == "clock_s":
            part[name] = np.full(len(slot), np.nan)
        else:
            part[name] = np.zeros(len(slot), values.dtype)
    return part

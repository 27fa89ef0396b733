"""Samples of SGLang's ``GET /v1/loads`` with ``decode_moments``: sums over decode steps, so differences are averages.

``managers/load_snapshot.py`` of sgl-project/sglang 0.5.23: per rank the running sums [steps, B, time in us, B^2,
B * time, generated tokens] over decode steps that follow each other. Between two samples the mean batch and the mean
step time are exact; the context is the mean of what the two samples show.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from equipoise.calibrate.readers.align import instances_of_rows
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.documents import Table, records, whole_number
from equipoise.calibrate.readers.format import Format, Head, Job
from equipoise.calibrate.readers.rows import Columns
from equipoise.calibrate.records import Flag, StepRecords
from equipoise.errors import CalibrationError

__all__ = ["FORMAT"]

SIGN = b'"num_running_reqs"'
WHAT = 'a sample {"timestamp", "loads": [{"dp_rank", "num_active_tokens", "decode_moments"}]}'
REASONS = (
    "first sample of a rank: its sums began before",
    "the same snapshot again: the server had not written a new one",
    "the sums fell: the server was started again",
)


def _sniff(head: Head) -> bool:
    return (
        head.is_json and SIGN in head.data and (b'"loads"' in head.data or b'"decode_moments"' in head.data)
    )


def _read(job: Job) -> list[StepRecords]:
    table = Table()
    sample = 0
    without = 0
    for file, line, record in records(job, "sglang_loads", WHAT):
        loads = record.get("loads") if isinstance(record, dict) else None
        if loads is None and isinstance(record, dict) and "dp_rank" in record:
            loads = [record]
        if not isinstance(loads, list):
            job.ledger.bad(
                "there is no list of loads", path=job.files[file], line=line or None, expected=WHAT
            )
            continue
        sample += 1
        for load in loads:
            try:
                row = _row(load, record)
            except (ValueError, TypeError, OverflowError) as error:
                job.ledger.bad(
                    f"the load is none ({error})", path=job.files[file], line=line or None, expected=WHAT
                )
                continue
            if row is None:
                without += 1
                continue
            table.add(file, line, step=sample, **row)
    columns = table.columns()
    if "rank" not in columns:
        if without:
            raise CalibrationError(
                "the samples have no decode_moments, and so no step times",
                where=str(job.files[0]),
                fix="sample /v1/loads?include=core of an SGLang that has them (0.5.23)",
            )
        return [assemble(job, "sglang_loads", columns)]
    _differences(job, columns)
    job.ledger.note(
        "The generated tokens do not tell how many a request verifies; query tokens are taken as one a request."
    )
    return [assemble(job, "sglang_loads", columns, reasons=REASONS)]


def _row(load: Any, record: dict[str, Any]) -> dict[str, Any] | None:
    if not isinstance(load, dict):
        raise ValueError("it is no object")
    moments = load.get("decode_moments")
    if not moments:
        return None
    if not isinstance(moments, list) or len(moments) < 3:
        raise ValueError("decode_moments is no list of sums")
    steps, batch, time_us = (whole_number(m, "decode_moments") for m in moments[:3])
    rank = whole_number(load.get("dp_rank", 0), "dp_rank")
    if not 0 <= rank < 1 << 16:
        raise ValueError(f"dp_rank = {rank}")
    held = load.get("num_active_tokens", load.get("num_used_tokens"))
    return {
        "rank": rank,
        "count": steps,
        "sum_batch": batch,
        "sum_us": time_us,
        "held": -1 if held is None else whole_number(held, "num_active_tokens"),
        "clock_s": _clock(load.get("timestamp", record.get("timestamp"))),
    }


def _clock(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, TypeError, OverflowError, OSError):
        return float("nan")


def _differences(job: Job, columns: Columns) -> None:
    """From sums to means between a rank's sample and the one before it."""
    rank, file, clock = columns["rank"], columns["file"], columns["clock_s"]
    columns["instance"] = instances_of_rows(len(job.files), file, rank, clock)[file]
    order = np.lexsort((columns["step"], rank, columns["instance"]))
    before = np.full(len(order), -1)
    same = (np.diff(rank[order]) == 0) & (np.diff(columns["instance"][order]) == 0)
    before[order[1:][same]] = order[:-1][same]
    deltas = [columns[name] - columns[name][before] for name in ("count", "sum_batch", "sum_us")]
    steps, batch, time_us = (np.where(before >= 0, delta, 0) for delta in deltas)
    for name in ("count", "sum_batch", "sum_us"):
        del columns[name]
    fell = (steps < 0) | (batch < 0) | (time_us < 0)
    columns["reason"] = np.select([before < 0, fell, steps == 0], [1, 3, 2], 0).astype(np.uint8)
    whole = np.maximum(steps, 1)
    held = columns.pop("held")
    mean = np.rint((held + held[before]) / 2).astype(np.int64)
    columns["batch"] = np.maximum(np.rint(batch / whole), 0).astype(np.int64)
    columns["context_tokens"] = np.where((held >= 0) & (held[before] >= 0), mean, -1)
    columns["time_s"] = time_us / whole / 1e6
    columns["steps"] = whole.astype(np.float64)
    columns["flags"] = np.full(len(order), Flag.AVERAGED, np.uint8)
    if np.isnan(clock).all():
        del columns["clock_s"]


FORMAT = Format(
    name="sglang_loads",
    title="samples of SGLang's GET /v1/loads with decode_moments: means between two samples",
    sniff=_sniff,
    read=_read,
    example='{"timestamp": "2026-11-29T12:00:05", "loads": [{"dp_rank": 0, "timestamp": 1764417605.0, '
    '"num_running_reqs": 32, "num_used_tokens": 262144, "num_active_tokens": 262144, '
    '"decode_moments": [100, 3200, 3010000, 102400, 96320000, 3200]}]}',
    sign=SIGN,
)

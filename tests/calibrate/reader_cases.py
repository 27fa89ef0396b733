"""Small step logs in the formats' own words, for the reader tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from equipoise.calibrate.readers import read
from equipoise.calibrate.records import StepRecords


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def one(paths: Any, **options: Any) -> StepRecords:
    """The single table of a log."""
    (records,) = read(paths, **options)
    return records


def dropped(records: StepRecords) -> dict[str, int]:
    return {d.reason: d.rows for d in records.dropped}


def fpm(
    counter: int,
    rank: int = 0,
    *,
    batch: int = 8,
    context: int = 8000,
    wall: float = 0.03,
    worker: str = "w0",
    at_s: float | None = None,
    **scheduled: float,
) -> str:
    """One ForwardPassMetrics line, as the recorder writes it if there is a time of receipt."""
    metrics = {
        "version": 1,
        "worker_id": worker,
        "dp_rank": rank,
        "counter_id": counter,
        "wall_time": wall,
        "scheduled_requests": {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": 0,
            "var_prefill_length": 0.0,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": batch,
            "sum_decode_kv_tokens": context,
            "var_decode_kv_tokens": 100.0 if batch > 1 else 0.0,
            **scheduled,
        },
        "queued_requests": {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": 0,
            "var_prefill_length": 0.0,
            "num_decode_requests": 0,
            "sum_decode_kv_tokens": 0,
            "var_decode_kv_tokens": 0.0,
        },
    }
    if at_s is None:
        return json.dumps(metrics) + "\n"
    return json.dumps({"received_at_ns": 1764400000_000000000 + round(at_s * 1e9), "metrics": metrics}) + "\n"

"""TensorRT-LLM's iteration statistics: ``GET /metrics`` with ``enable_iter_perf_stats``, a record a rank and iteration.

NVIDIA/TensorRT-LLM 1.3: a JSON list that reading drains, so a recording is one list or many, a line each. Ranks under
attention DP are told by ``attentionDpRank``, or by ``rank`` with ``TLLM_METRICS_ALL_RANKS=1``; their counts of what was
scheduled are their own, time and KV blocks are those of rank 0.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from equipoise.calibrate.readers.align import instances_of_rows
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.documents import Table, records, whole_number
from equipoise.calibrate.readers.format import Format, Job, has_sign
from equipoise.calibrate.readers.fpm_steps import prefill_pairs
from equipoise.calibrate.readers.without import accept_without_context
from equipoise.calibrate.records import StepRecords

__all__ = ["FORMAT"]

SIGN = b'"inflightBatchingStats"'
WHAT = "a record of TensorRT-LLM's iteration statistics"


def _read(job: Job) -> list[StepRecords]:
    table = Table()
    for file, line, record in records(job, "trtllm_metrics", WHAT):
        try:
            row = _row(record)
        except (ValueError, TypeError, OverflowError) as error:
            job.ledger.bad(
                f"the record is none ({error})", path=job.files[file], line=line or None, expected=WHAT
            )
        else:
            table.add(file, line, **row)
    columns = table.columns()
    if "batch" not in columns:
        return [assemble(job, "trtllm_metrics", columns)]
    host, latency = columns.pop("host_s"), columns.pop("latency_s")
    if np.isfinite(host).mean() > 0.5:
        columns["time_s"] = host
        job.ledger.note("The time is hostStepTimeMS, one loop of the host.")
    else:
        columns["time_s"] = latency
        job.ledger.note(
            "The time is iterLatencyMS; with the overlap scheduler it may span two iterations, and later versions "
            "record hostStepTimeMS beside it."
        )
    _context(job, columns)
    position = columns["step"].astype(np.float64)
    columns["instance"] = instances_of_rows(len(job.files), columns["file"], columns["rank"], position)[
        columns["file"]
    ]
    columns["prompt_variance"] = np.full(len(columns["line"]), np.nan)
    columns["prefill_pairs"] = prefill_pairs(columns, job.ledger)
    if np.isnan(columns["clock_s"]).all():
        del columns["clock_s"]
    job.ledger.note("Under attention DP every rank carries the time of rank 0: it is that of the step.")
    return [assemble(job, "trtllm_metrics", columns)]


def _row(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or not isinstance(record.get("inflightBatchingStats"), dict):
        raise ValueError("there is no inflightBatchingStats")
    stats = record["inflightBatchingStats"]
    blocks = record.get("kvCacheStats")
    blocks = blocks if isinstance(blocks, dict) else {}
    # Fanned out by rank 0, records have its `rank`; written by every rank, they have `attentionDpRank` 0.
    tags = [whole_number(record.get(tag) or 0, "the rank") for tag in ("attentionDpRank", "rank")]
    rank = max(tags)
    if not 0 <= min(tags) <= rank < 1 << 16:
        raise ValueError(f"the rank = {rank}")

    def count(name: str, default: int = 0) -> int:
        return whole_number(stats.get(name, default), name)

    return {
        "step": whole_number(record.get("iter"), "iter"),
        "rank": rank,
        "batch": count("numGenRequests"),
        "attended": count("numGenKvTokens", -1),
        "resident": whole_number(blocks.get("usedNumBlocks", -1), "usedNumBlocks")
        * whole_number(blocks.get("tokensPerBlock", 1), "tokensPerBlock"),
        "prefill_requests": count("numContextRequests"),
        "prefill_tokens": count("numCtxTokens"),
        "sum_prefill_kv_tokens": count("numCtxKvTokens"),
        "host_s": _ms(record.get("hostStepTimeMS")),
        "latency_s": _ms(record.get("iterLatencyMS")),
        "clock_s": _clock(record.get("timestamp")),
    }


def _ms(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) / 1e3 if number else float("nan")


def _clock(text: Any) -> float:
    for pattern in ("%m-%d-%Y %H:%M:%S.%f", "%m-%d-%Y %H:%M:%S"):
        try:
            return (datetime.strptime(text, pattern) - datetime(1970, 1, 1)).total_seconds()
        except (ValueError, TypeError):
            continue
    return float("nan")


def _context(job: Job, columns: dict[str, Any]) -> None:
    attended, resident = columns.pop("attended"), columns.pop("resident")
    decode = columns["batch"] > 0
    if (attended[decode] > 0).any() or not decode.any():
        columns["context_tokens"] = np.maximum(attended, -1)
    elif (resident[decode] > 0).any():
        columns["context_tokens"] = np.maximum(resident, -1)
        job.ledger.note(
            "numGenKvTokens is missing (before TensorRT-LLM PR 13199): contexts are the tokens of the used KV blocks, "
            "in which shared prefixes count once."
        )
    else:
        first = int(np.flatnonzero(decode)[0])
        line = int(columns["line"][first])
        path = str(job.files[int(columns["file"][first])])
        accept_without_context(
            job,
            f"{path}:{line}" if line else path,
            "the records have neither numGenKvTokens nor KV blocks in use",
        )
        columns["context_tokens"] = np.where(decode, -1, 0)


FORMAT = Format(
    name="trtllm_metrics",
    title="TensorRT-LLM GET /metrics (enable_iter_perf_stats): a JSON list, or one list or record a line",
    sniff=has_sign(SIGN, json=True),
    read=_read,
    example='{"iter": 17, "attentionDpRank": 0, "iterLatencyMS": 30.1, "hostStepTimeMS": 29.8, "timestamp": '
    '"11-29-2026 12:00:05.000000", "inflightBatchingStats": {"numContextRequests": 0, "numCtxTokens": 0, '
    '"numCtxKvTokens": 0, "numGenRequests": 32, "numGenKvTokens": 262144}}',
    sign=SIGN,
)

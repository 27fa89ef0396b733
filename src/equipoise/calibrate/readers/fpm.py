"""ForwardPassMetrics v1, JSON lines: one record a (rank, forward pass), raw or as Dynamo's recorder writes them.

Fields and their meaning: ``dynamo/common/forward_pass_metrics.py`` (ai-dynamo/dynamo) and
``sglang/srt/observability/forward_pass_metrics.py``. The recorder (``python -m
dynamo.common.recv_forward_pass_metrics``) wraps a record as ``{"received_at_ns": n, "metrics": {...}}``.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from equipoise import _files
from equipoise.calibrate.readers.align import MAX_RANKS
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.format import Format, Job, has_sign
from equipoise.calibrate.readers.fpm_steps import align, prefill_pairs, time_meaning, variances
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.readers.rows import Columns, Rows
from equipoise.calibrate.readers.text import blocks, refuse_foreign
from equipoise.calibrate.readers.without import refuse_without_context
from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError

__all__ = ["FORMAT"]

SIGN = b'"scheduled_requests"'
EXPECTED = "a ForwardPassMetrics record of version 1"
LIMIT = 1 << 53
MAX_WORKERS = 4096


class _Scheduled(msgspec.Struct, gc=False):
    num_prefill_requests: int = 0
    sum_prefill_tokens: int = 0
    sum_prefill_kv_tokens: int = 0
    num_decode_requests: int = 0
    sum_decode_kv_tokens: int = 0
    var_prefill_length: float = 0.0
    var_decode_kv_tokens: float = 0.0


class _Metrics(msgspec.Struct, gc=False):
    scheduled_requests: _Scheduled
    wall_time: float
    version: int = 1
    worker_id: str | int = ""
    dp_rank: int = 0
    counter_id: int = 0


class _Recorded(msgspec.Struct, gc=False):
    metrics: _Metrics
    received_at_ns: int | None = None


_SUMS = tuple(_Scheduled.__struct_fields__)[:5]


class _Chunks:
    """Decodes blocks into rows; keeps the numbers of the workers."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.rows = Rows()
        self.workers: dict[str | int, int] = {}
        self.recorded = msgspec.json.Decoder(_Recorded)
        self.raw = msgspec.json.Decoder(_Metrics)
        self.wrapped = True

    def add(self, file: int, line: int, data: bytes) -> None:
        """One block of lines."""
        numbers = np.arange(line, line + _files.count_lines(data))
        pairs = self._fast(data)
        columns = None if pairs is None or len(pairs[0]) != len(numbers) else self._columns(*pairs)
        if columns is None:
            refuse_foreign(self.job, "fpm", file, line, data)
            numbers, records, received = self._exact(self.job.files[file], line, data)
            columns = self._columns(records, received)
            if columns is None:
                raise AssertionError("exact rows are within bounds")
        self.rows.add(file, numbers, **columns)

    def _fast(self, data: bytes) -> tuple[list[_Metrics], list[int | None]] | None:
        for wrapped in (self.wrapped, not self.wrapped):
            try:
                if wrapped:
                    records = self.recorded.decode_lines(data)
                    pair = [r.metrics for r in records], [r.received_at_ns for r in records]
                else:
                    bare = self.raw.decode_lines(data)
                    pair = bare, [None] * len(bare)
            except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
                continue
            self.wrapped = wrapped
            return pair
        return None

    def _columns(self, records: list[_Metrics], received: list[int | None]) -> Columns | None:
        """Arrays, or None where a number is out of bounds: which, is found out line by line."""
        count = len(records)
        scheduled = [r.scheduled_requests for r in records]
        # Comprehensions that name the attribute are nearly twice as fast as a loop over names.
        whole = {
            "num_prefill_requests": [s.num_prefill_requests for s in scheduled],
            "sum_prefill_tokens": [s.sum_prefill_tokens for s in scheduled],
            "sum_prefill_kv_tokens": [s.sum_prefill_kv_tokens for s in scheduled],
            "num_decode_requests": [s.num_decode_requests for s in scheduled],
            "sum_decode_kv_tokens": [s.sum_decode_kv_tokens for s in scheduled],
            "counter_id": [r.counter_id for r in records],
            "version": [r.version for r in records],
            "dp_rank": [r.dp_rank for r in records],
        }
        real = {
            "var_prefill_length": [s.var_prefill_length for s in scheduled],
            "var_decode_kv_tokens": [s.var_decode_kv_tokens for s in scheduled],
            "time_s": [r.wall_time for r in records],
        }
        try:
            columns: Columns = {name: np.fromiter(values, np.int64, count) for name, values in whole.items()}
            columns |= {name: np.fromiter(values, np.float64, count) for name, values in real.items()}
            if received.count(None) == 0:
                columns["clock_s"] = np.fromiter(received, np.int64, count) / 1e9
            else:
                columns["clock_s"] = np.array([np.nan if t is None else t / 1e9 for t in received])
        except OverflowError:
            return None
        if (columns.pop("version") != 1).any() or any(
            ((columns[name] >= LIMIT) | (columns[name] <= -LIMIT)).any() for name in (*_SUMS, "counter_id")
        ):
            return None
        rank = columns.pop("dp_rank")
        if count and (rank.min() < 0 or rank.max() >= MAX_RANKS):
            return None
        columns["rank"] = rank.astype(np.int32)
        names = [r.worker_id for r in records]
        for worker in dict.fromkeys(names):
            self.workers.setdefault(worker, len(self.workers))
        if len(self.workers) > MAX_WORKERS:
            raise CalibrationError(
                f"the records name more than {MAX_WORKERS:,} workers",
                where=str(self.job.files[-1]),
                fix="worker_id is that of the engine, the same in all its records",
            )
        columns["instance"] = np.fromiter(map(self.workers.__getitem__, names), np.int32, count)
        return columns

    def _exact(
        self, path: Path, line: int, data: bytes
    ) -> tuple[NDArray[np.int64], list[_Metrics], list[int | None]]:
        numbers, records, received = [], [], []
        for number, text in enumerate(data.split(b"\n"), start=line):
            if not text.strip():
                continue
            record = _record(text, path, number, self.job.ledger)
            if record is not None:
                numbers.append(number)
                records.append(record.metrics)
                received.append(record.received_at_ns)
        return np.array(numbers, np.int64), records, received


def _record(text: bytes, path: Path, line: int, ledger: Ledger) -> _Recorded | None:
    """One line with all doubts; Python's decoder knows NaN, which JSON does not."""
    try:
        value = json.loads(text)
        if isinstance(value, dict) and "metrics" not in value:
            value = {"metrics": value}
        record = msgspec.convert(value, _Recorded)
        metrics = record.metrics
        if metrics.version != 1:
            raise ValueError(f"the record is of version {metrics.version}")
        if not 0 <= metrics.dp_rank < MAX_RANKS:
            raise ValueError(f"dp_rank = {metrics.dp_rank}")
        whole = [getattr(metrics.scheduled_requests, name) for name in _SUMS]
        if (
            max(map(abs, (*whole, metrics.counter_id))) >= LIMIT
            or not -(2**63) <= (record.received_at_ns or 0) < 2**63
        ):
            raise ValueError("a number is absurd")
    except RecursionError:
        ledger.bad("the line is nested too deeply", path=path, line=line, expected=EXPECTED)
    except (ValueError, msgspec.MsgspecError) as error:
        shown = text[:40].decode(errors="replace").strip()
        ledger.bad(f"the line {shown!r} is no record ({error})", path=path, line=line, expected=EXPECTED)
    else:
        return record
    return None


def _read(job: Job) -> list[StepRecords]:
    chunks = _Chunks(job)
    for file, line, data in blocks(job, "fpm", watch=False):
        chunks.add(file, line, data)
    columns = chunks.rows.columns()
    if "time_s" not in columns:
        return [assemble(job, "fpm", columns)]
    ledger = job.ledger
    columns["batch"] = columns.pop("num_decode_requests")
    columns["context_tokens"] = columns.pop("sum_decode_kv_tokens")
    columns["prefill_requests"] = columns.pop("num_prefill_requests")
    columns["prefill_tokens"] = columns.pop("sum_prefill_tokens")
    refuse_without_context(job, columns, "sum_decode_kv_tokens is 0 in every record")
    variances(columns, ledger)
    columns["prefill_pairs"] = prefill_pairs(columns, ledger)
    if np.isnan(columns["clock_s"]).all():
        del columns["clock_s"]
    align(columns, ledger)
    ledger.note(
        "wall_time is a different thing in every engine, and the records do not say which wrote them: the interval "
        "between two updates (vLLM under Dynamo), the GPU span of the forward pass (SGLang), or one time of the "
        "whole engine repeated on every rank (TensorRT-LLM)."
    )
    ledger.note(
        "ForwardPassMetrics does not say how many tokens a request verifies; query tokens are one a request."
    )
    workers = {str(i): str(name) for name, i in chunks.workers.items()}
    return [assemble(job, "fpm", columns, labels={"workers": workers}, time_is=time_meaning(columns, ledger))]


FORMAT = Format(
    name="fpm",
    title="ForwardPassMetrics v1 JSON lines: Dynamo's recorder, or raw records of vLLM, SGLang, TensorRT-LLM",
    sniff=has_sign(SIGN, json=True),
    read=_read,
    example='{"received_at_ns": 1764400000030000000, "metrics": {"version": 1, "worker_id": "w0", "dp_rank": 0, '
    '"counter_id": 1, "wall_time": 0.0301, "scheduled_requests": {"num_prefill_requests": 0, "sum_prefill_tokens": 0, '
    '"var_prefill_length": 0.0, "sum_prefill_kv_tokens": 0, "num_decode_requests": 32, "sum_decode_kv_tokens": 262144, '
    '"var_decode_kv_tokens": 1048576.0}, "queued_requests": {}}}',
    sign=SIGN,
)

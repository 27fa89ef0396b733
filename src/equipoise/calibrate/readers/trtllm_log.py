"""TensorRT-LLM's log with ``print_iter_log``: one line a rank and iteration.

``profile_step`` of ``py_executor.py`` (NVIDIA/TensorRT-LLM 1.2, 1.3) writes ``iter = i, global_rank = r, rank = r,
num_scheduled_requests = n, kv_cache_util = x, currank_total_requests = a/b, host_step_time = xms,
prev_device_step_time = xms, timestamp = .., states = {...}``; older builds write ``num_scheduled_requests: n`` after
the time stamp. The device time in a line is that of the iteration before it.
"""

from __future__ import annotations

import re
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.readers.align import instances_of_rows
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.format import Format, Job, has_sign
from equipoise.calibrate.readers.rows import Columns, Rows
from equipoise.calibrate.readers.text import matches, number
from equipoise.calibrate.readers.without import accept_without_context
from equipoise.calibrate.records import StepRecords
from equipoise.types import Ints

__all__ = ["FORMAT"]

SIGN = b"prev_device_step_time"
LINE = re.compile(
    rb"iter = (\d{1,15}), [^\n]*?host_step_time = ([-.\deE]{1,30}) ?ms, prev_device_step_time = "
    rb"(?:([-.\deE]{1,30}) ?ms|N/A|None)[^\n]*"
)
WHOLE = {
    name: re.compile(rb"\b" + key + rb"'?(?: =|:) (\d{1,15})")
    for name, key in (
        ("rank", b"rank"),
        ("scheduled", b"num_scheduled_requests"),
        ("prefill_requests", b"num_ctx_requests"),
        ("prefill_tokens", b"num_ctx_tokens"),
        ("query_tokens", b"num_generation_tokens"),
        ("cached", b"cached_kv_(?:len|tokens)"),
    )
}
USED = re.compile(rb"kv_cache_util = ([.\deE-]{1,30})")
STAMP = re.compile(rb"timestamp = (\d{2,4}-\d\d-\d{2,4} \d\d:\d\d:\d\d)")
EXPECTED = '"iter = i, ... host_step_time = x ms, prev_device_step_time = x ms, ..."'
REASONS = (
    "the device time of the iteration stands in a line that is missing",
    "empty iteration: its device time is a wait",
)


def _read(job: Job) -> list[StepRecords]:
    rows = Rows()
    for file, _, found, numbers in matches(job, "trtllm_log", LINE, SIGN, EXPECTED):
        if not found:
            continue
        lines = [m[0] for m in found]
        columns: Columns = {
            name: np.array([int(m[1]) if (m := pattern.search(text)) else -1 for text in lines], np.int64)
            for name, pattern in WHOLE.items()
        }
        columns["step"] = np.array([int(m[1]) for m in found], np.int64)
        columns["host_s"] = np.array([number(m[2]) for m in found]) / 1e3
        columns["device_s"] = np.array([number(m[3]) if m[3] else np.nan for m in found]) / 1e3
        columns["used"] = np.array([number(m[1]) if (m := USED.search(t)) else np.nan for t in lines])
        columns["clock_s"] = np.array([_clock(t) for t in lines])
        rows.add(file, numbers, **columns)
    columns = rows.columns()
    if "step" not in columns:
        return [assemble(job, "trtllm_log", columns)]
    columns["rank"] = np.clip(columns["rank"], 0, 1 << 16).astype(np.int32)
    for name in ("prefill_requests", "prefill_tokens"):
        columns[name] = np.maximum(columns[name], 0)
    scheduled = columns.pop("scheduled")
    batch = scheduled - columns["prefill_requests"]
    columns["batch"] = np.where(scheduled >= 0, batch, columns["query_tokens"])
    columns["query_tokens"] = np.where(
        columns["query_tokens"] >= 0, columns["query_tokens"], columns["batch"]
    )
    columns["prefill_pairs"] = np.where(columns["prefill_tokens"] > 0, np.nan, 0.0)
    _context(job, columns)
    position = columns["step"].astype(np.float64)
    numbers = instances_of_rows(len(job.files), columns["file"], columns["rank"], position)
    columns["instance"] = numbers[columns["file"]]
    _times(job, columns)
    if np.isnan(columns["clock_s"]).all():
        del columns["clock_s"]
    return [assemble(job, "trtllm_log", columns, reasons=REASONS)]


def _clock(text: bytes) -> float:
    match = STAMP.search(text)
    stamp = match[1].decode() if match else ""
    for pattern in ("%Y-%m-%d %H:%M:%S", "%m-%d-%Y %H:%M:%S"):
        try:
            return (datetime.strptime(stamp, pattern) - datetime(1970, 1, 1)).total_seconds()
        except ValueError:
            continue
    return float("nan")


def _context(job: Job, columns: Columns) -> None:
    cached, used = columns.pop("cached"), columns.pop("used")
    decode = columns["batch"] > 0
    if (cached[decode] > 0).any() or not decode.any():
        columns["context_tokens"] = cached
        return
    if job.kv_capacity_tokens is not None and np.isfinite(used[decode]).any():
        tokens = np.rint(np.nan_to_num(used, nan=-1.0) * job.kv_capacity_tokens)
        columns["context_tokens"] = np.maximum(tokens, -1).astype(np.int64)
        job.ledger.note("Contexts are kv_cache_util times the capacity; a shared prefix counts once.")
        return
    first = int(np.flatnonzero(decode)[0])
    accept_without_context(
        job,
        f"{job.files[int(columns['file'][first])]}:{columns['line'][first]}",
        "its lines have no cached_kv_len",
        "give the tokens that fit with kv_capacity_tokens=N (--kv-capacity-tokens N), "
        if np.isfinite(used[decode]).any()
        else "",
    )
    columns["context_tokens"] = np.where(decode, -1, 0)


def _times(job: Job, columns: Columns) -> None:
    """Give every iteration the device time that the line after it prints."""
    host, device = columns.pop("host_s"), columns.pop("device_s")
    reason = np.zeros(len(host), np.uint8)
    if np.isfinite(device).mean() < 0.5:
        columns["time_s"] = host
        job.ledger.note("Most lines have no device time: the time is host_step_time.")
    else:
        order = np.lexsort((columns["line"], columns["step"], columns["rank"], columns["instance"]))
        after = _following(columns, order)
        time_s = np.where(after >= 0, device[after], np.nan)
        reason[np.isnan(time_s)] = 1
        columns["time_s"] = np.where(reason == 1, host, time_s)
        job.ledger.note(
            "The time is prev_device_step_time of the line after, which belongs to this iteration."
        )
    idle = (columns["batch"] <= 0) & (columns["prefill_requests"] <= 0)
    reason[idle & _all_idle(columns, idle) & (reason == 0)] = 2
    columns["reason"] = reason


def _following(columns: Columns, order: Ints) -> Ints:
    """Row of the same rank's next iteration; -1 where the log lacks it."""
    after = np.full(len(order), -1)
    near = np.diff(columns["step"][order]) == 1
    for key in ("rank", "instance"):
        near &= np.diff(columns[key][order]) == 0
    after[order[:-1][near]] = order[1:][near]
    return after


def _all_idle(columns: Columns, idle: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows of iterations in which no rank ran anything."""
    _, at = np.unique(np.stack([columns["instance"], columns["step"]]), axis=1, return_inverse=True)
    at = np.ravel(at)
    busy = np.zeros(int(at.max()) + 1, bool)
    busy[at[~idle]] = True
    return ~busy[at]


FORMAT = Format(
    name="trtllm_log",
    title="TensorRT-LLM log with print_iter_log; device times are moved to the iteration they belong to",
    sniff=has_sign(SIGN, json=False),
    read=_read,
    example="[TRT-LLM] [I] [_torch][RANK 0] iter = 260, global_rank = 0, rank = 0, num_scheduled_requests = 32, "
    "kv_cache_util = 0.41, currank_total_requests = 0/32, host_step_time = 30.4ms, prev_device_step_time = 30.1ms, "
    "timestamp = 11-29-2026 12:00:05, cached_kv_len = 262144, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, "
    "'num_generation_tokens': 32}",
    sign=SIGN,
)

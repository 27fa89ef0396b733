"""vLLM's log with ``--enable-logging-iteration-details``: one line a rank and step.

Two shapes (vllm-project/vllm): from the engine process, ``(EngineCore_DP<k> pid=..)``, up to about 0.2x, and from the
API server, ``Engine <kkk>:``, which adds ``(dummy)`` and the use of the KV cache (0.33). The index is shared by the
ranks; steps of a rank without requests are not printed in normal serving, so an index that a rank lacks is an idle one.
The elapsed time is that of the host around the whole step: the slowest rank's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from typing import Any

import numpy as np

from equipoise.calibrate.readers.align import instances_of_rows
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.fill import idle_rows
from equipoise.calibrate.readers.format import Format, Job, has_sign
from equipoise.calibrate.readers.rows import Columns, Rows
from equipoise.calibrate.readers.text import matches, number
from equipoise.calibrate.readers.without import accept_without_context
from equipoise.calibrate.records import StepRecords

__all__ = ["FORMAT"]

SIGN = b"iteration elapsed time:"
LINE = re.compile(
    rb"Iteration\((\d{1,18})\): (\d{1,9}) context requests, (\d{1,12}) context tokens, (\d{1,9}) generation requests, "
    rb"(\d{1,12}) generation tokens, iteration elapsed time: ([-+.\deE]{1,30}|nan|inf) ms( \(dummy\))?"
    rb"(?:, GPU KV cache usage: ([.\d]{1,20})%)?"
)
RANK = re.compile(rb"EngineCore_DP(\d{1,5})|Engine (\d{1,5}):")
STAMP = re.compile(rb"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
CAPACITY = re.compile(rb"GPU KV cache size: ([\d,]{1,24}) tokens")
EXPECTED = '"Iteration(i): n context requests, ... iteration elapsed time: x ms"'
YEAR = 2000  # the stamps have none; a leap year knows every day


def _read(job: Job) -> list[StepRecords]:
    rows = Rows()
    places: dict[bytes, tuple[int, float]] = {}
    capacity = job.kv_capacity_tokens
    for file, data, found, numbers in matches(job, "vllm_log", LINE, SIGN, EXPECTED):
        told = CAPACITY.search(data) if capacity is None else None
        if told and told[1].replace(b",", b"").isdigit():
            capacity = int(told[1].replace(b",", b""))
            job.ledger.note(f"The log says that a rank's KV cache holds {capacity:,} tokens.")
        if found:
            rows.add(file, numbers, **_columns(data, found, places))
    columns = rows.columns()
    if "batch" not in columns:
        return [assemble(job, "vllm_log", columns)]
    _context(job, columns, capacity)
    columns["instance"] = _instances(job, columns)
    columns["prefill_pairs"] = np.where(columns["prefill_tokens"] > 0, np.nan, 0.0)
    if np.isnan(columns["clock_s"]).all():
        del columns["clock_s"]
    columns = idle_rows(job, columns)
    return [assemble(job, "vllm_log", columns)]


def _columns(
    data: bytes, found: list[re.Match[bytes]], places: dict[bytes, tuple[int, float]]
) -> dict[str, Any]:
    where = []
    for match in found:
        prefix = data[data.rfind(b"\n", 0, match.start()) + 1 : match.start()]
        place = places.get(prefix)
        if place is None:
            if len(places) > 100_000:
                places.clear()
            place = places[prefix] = _place(prefix)
        where.append(place)
    fields = list(zip(*(m.groups() for m in found), strict=True))
    whole = [np.array(fields[i], dtype=np.int64) for i in range(5)]
    dummy = np.array([d is not None for d in fields[6]])
    ranks, clocks = zip(*where, strict=True)
    return {
        "rank": np.array(ranks, np.int32),
        "clock_s": np.array(clocks, np.float64),
        "step": whole[0],
        "prefill_requests": np.where(dummy, 0, whole[1]),
        "prefill_tokens": np.where(dummy, 0, whole[2]),
        "batch": np.where(dummy, 0, whole[3]),
        "query_tokens": np.where(dummy, 0, whole[4]),
        "time_s": np.array([number(t) for t in fields[5]]) / 1e3,
        "usage": np.array([np.nan if u is None else number(u) for u in fields[7]]),
    }


def _place(prefix: bytes) -> tuple[int, float]:
    ranks = RANK.findall(prefix)
    clock = float("nan")
    for stamp in STAMP.findall(prefix)[-1:]:
        with suppress(ValueError):
            month, day, hour, minute, second = map(int, stamp)
            clock = (datetime(YEAR, month, day, hour, minute, second) - datetime(YEAR, 1, 1)).total_seconds()
    return (int(ranks[-1][0] or ranks[-1][1]) if ranks else 0), clock


def _context(job: Job, columns: Columns, capacity: int | None) -> None:
    """Tokens from the use of the KV cache; without it, unknown or refused."""
    usage = columns.pop("usage")
    decode = columns["batch"] > 0
    known = np.isfinite(usage)
    if capacity is not None and known.any():
        with np.errstate(invalid="ignore"):
            tokens = np.where(known, np.rint(np.nan_to_num(usage) / 100 * capacity), -1).astype(np.int64)
        columns["context_tokens"] = np.where(decode, tokens, 0)
        job.ledger.note(
            f"Contexts are the used share of the KV cache times {capacity:,} tokens, in steps of "
            f"{capacity / 1000:,.0f} (0.1 %); a shared prefix counts once, prompts in progress count too."
        )
        return
    first = int(np.flatnonzero(decode)[0]) if decode.any() else 0
    where = f"{job.files[int(columns['file'][first])]}:{columns['line'][first]}"
    if known.any():
        why = "its lines give the use of the KV cache only in percent"
        fix = (
            "give the tokens that fit with kv_capacity_tokens=N (--kv-capacity-tokens N; vLLM prints it at its start "
            "as GPU KV cache size), "
        )
    else:
        why, fix = "this version of vLLM does not print them", ""
    accept_without_context(job, where, why, fix)
    columns["context_tokens"] = np.where(decode, -1, 0)


def _instances(job: Job, columns: Columns) -> Any:
    """Files with the same ranks at the same steps come from different engines."""
    position = columns["step"].astype(np.float64)
    numbers = instances_of_rows(len(job.files), columns["file"], columns["rank"], position)
    if numbers.max() > 0:
        job.ledger.note(
            f"The files hold the same ranks at the same steps: they are taken as {numbers.max() + 1} instances."
        )
    return numbers[columns["file"]]


FORMAT = Format(
    name="vllm_log",
    title="vLLM log with --enable-logging-iteration-details, from the engine or the API server",
    sniff=has_sign(SIGN, json=False),
    read=_read,
    example="(APIServer pid=7) INFO 11-29 12:00:05 [loggers.py:259] Engine 000: Iteration(42): 0 context requests, "
    "0 context tokens, 32 generation requests, 32 generation tokens, iteration elapsed time: 30.10 ms, "
    "GPU KV cache usage: 41.2%",
    sign=SIGN,
)

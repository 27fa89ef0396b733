"""DeepInfer's log, and its cache of decode times.

A line every ``DEEPINFER_LOGGING_INTERVAL_STEP`` (100) steps: ``RANK r, GPU g, step s, [stats] (is_prompt .. |
cur_SPS .. | running n | num_batched_tokens n[..%] | sum_seqlen_qxk n | ...)`` (deepinfer 0.1.0, by its package). The
time is 1 / cur_SPS, steps a second; ``sum_seqlen_qxk`` sums query times key tokens, so divided by the query tokens a
request it is the sum of the contexts. The cache (``DEEPINFER_DECODE_PERF_CACHE_DIR``) is a JSON list of [batch, ms].
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from equipoise.calibrate.readers.align import instances_of_rows
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.documents import Table, records, whole_number
from equipoise.calibrate.readers.format import Format, Head, Job
from equipoise.calibrate.readers.rows import Rows
from equipoise.calibrate.readers.text import matches, number
from equipoise.calibrate.readers.without import accept_without_context
from equipoise.calibrate.records import Flag, StepRecords

__all__ = ["FORMAT"]

SIGN = b"sum_seqlen_qxk"
LINE = re.compile(
    rb"RANK (\d{1,5}), GPU \d+, step (\d{1,15}), [^\n]*?\[stats\] \(([^\n]*?sum_seqlen_qxk[ :=]+\d{1,17}[^\n]*)"
)
FIELDS = {
    name: re.compile(rb"\b" + name.encode() + rb"[ :=]+([-+.\w]{1,30})")
    for name in ("is_prompt", "cur_SPS", "running", "num_batched_tokens", "sum_seqlen_qxk")
}
CACHE = re.compile(rb"^\s*\[\s*\[\s*\d+\s*,\s*[\d.eE+-]+\s*\]")
EXPECTED = '"RANK r, GPU g, step s, [stats] (... cur_SPS x | running n | ... sum_seqlen_qxk n ...)"'


def _sniff(head: Head) -> bool:
    return (SIGN in head.data and not head.is_json) or CACHE.match(head.data) is not None


def _read(job: Job) -> list[StepRecords]:
    from equipoise.calibrate.readers.format import look

    if CACHE.match(look(job.files[0]).data):
        return [_cache(job)]
    rows = Rows()
    for file, _, found, numbers in matches(job, "deepinfer_log", LINE, SIGN, EXPECTED):
        if found:
            rows.add(file, numbers, **_columns(found))
    columns = rows.columns()
    if "batch" not in columns:
        return [assemble(job, "deepinfer_log", columns)]
    position = columns["step"].astype(np.float64)
    columns["instance"] = instances_of_rows(len(job.files), columns["file"], columns["rank"], position)[
        columns["file"]
    ]
    columns["steps"] = _distance(columns)
    columns["flags"] = np.full(len(columns["line"]), Flag.AVERAGED, np.uint8)
    job.ledger.note(
        "The time is 1 / cur_SPS, and contexts are sum_seqlen_qxk over the query tokens a request; prompt steps give "
        "no pairs."
    )
    return [assemble(job, "deepinfer_log", columns)]


def _columns(found: list[re.Match[bytes]]) -> dict[str, Any]:
    texts = [m[3] for m in found]
    values = {
        name: [m[1] if (m := pattern.search(text)) else b"" for text in texts]
        for name, pattern in FIELDS.items()
    }
    prompt = np.array([v.lower() in (b"true", b"1") for v in values["is_prompt"]])
    whole = {
        name: np.nan_to_num(np.array([number(v) for v in values[name]]), nan=-1.0)
        for name in ("running", "num_batched_tokens", "sum_seqlen_qxk")
    }
    batch, tokens, pairs = (np.clip(v, -1, 2**53).astype(np.int64) for v in whole.values())
    speed = np.array([number(v) for v in values["cur_SPS"]])
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s = 1 / speed
        context = np.rint(pairs * batch / np.maximum(tokens, 1))
    return {
        "rank": np.array([int(m[1]) for m in found], np.int32),
        "step": np.array([int(m[2]) for m in found], np.int64),
        "batch": np.where(prompt, 0, batch),
        "query_tokens": np.where(prompt, 0, tokens),
        "context_tokens": np.where(prompt, 0, context).astype(np.int64),
        "prefill_requests": np.where(prompt, batch, 0),
        "prefill_tokens": np.where(prompt, tokens, 0),
        "prefill_pairs": np.where(prompt, np.nan, 0.0),
        "time_s": time_s,
    }


def _distance(columns: dict[str, Any]) -> Any:
    """Steps since the rank's line before; 1 for the first."""
    order = np.lexsort((columns["step"], columns["rank"], columns["instance"]))
    gaps = np.ones(len(order))
    same = (np.diff(columns["rank"][order]) == 0) & (np.diff(columns["instance"][order]) == 0)
    gaps[order[1:][same]] = np.maximum(np.diff(columns["step"][order])[same], 1)
    return gaps


def _cache(job: Job) -> StepRecords:
    table = Table()
    pairs = [
        (file, line, pair)
        for file, line, value in records(job, "deepinfer_log", "a pair [batch, ms]")
        for pair in ([value] if _is_pair(value) else value if isinstance(value, list) else [value])
    ]
    for file, line, pair in pairs:
        if not _is_pair(pair):
            job.ledger.bad(
                f"{pair!r:.40} is no pair",
                path=job.files[file],
                line=line or None,
                expected="a pair [batch, ms]",
            )
            continue
        table.add(file, line, batch=whole_number(pair[0], "batch"), time_s=float(pair[1]) / 1e3)
    accept_without_context(job, str(job.files[0]), "the cache knows the batch only")
    return assemble(job, "deepinfer_log", table.columns(), chained=False)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1 << 53 for v in value)
    )


FORMAT = Format(
    name="deepinfer_log",
    title="DeepInfer [stats] lines, or its decode perf cache (a JSON list of [batch, ms])",
    sniff=_sniff,
    read=_read,
    example="RANK 0, GPU 0, step 1200, [stats] (is_prompt False | cur_SPS 33.22 | running 32 | pending 0 "
    "| num_batched_tokens 64[50.0%] | KV_cache_usage 41.2% | preempted 0 | sum_seqlen_qxk 524288 | max_seqlen_k 16384 "
    "| min_seqlen_k 512)",
    sign=SIGN,
)

"""``vllm bench forward --output-json``: exact batches timed without a server, a list of cases.

Every case is ``{"case": name, "requests": [{"query_len", "kv_len", "num_draft_tokens", "count"}], "median_us": t,
"ranks": r}`` (vllm-project/vllm 0.33). All ranks get the same batch and the time is that of the slowest, so a case is a
step of one rank. ``kv_len`` holds the query tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.documents import Table, records, whole_number
from equipoise.calibrate.readers.format import Format, Head, Job
from equipoise.calibrate.records import StepRecords

__all__ = ["FORMAT"]

SIGN = b'"median_us"'
WHAT = 'a case {"case", "requests": [{"query_len", "kv_len"}], "median_us"}'


def _sniff(head: Head) -> bool:
    return head.is_json and SIGN in head.data and b'"requests"' in head.data


def _read(job: Job) -> list[StepRecords]:
    table = Table()
    cases: list[str] = []
    for file, line, record in records(job, "vllm_bench_forward", WHAT):
        try:
            row = _row(record)
        except (ValueError, TypeError, OverflowError) as error:
            job.ledger.bad(
                f"the case is none ({error})", path=job.files[file], line=line or None, expected=WHAT
            )
            continue
        cases.append(str(record.get("case", "")))
        table.add(file, line, **row)
    job.ledger.note(
        "All ranks of a case run the same batch: it is a step of one rank and says nothing of imbalance. Unless it was "
        "turned off (--kv-len-jitter 0), the lengths were spread around those given."
    )
    columns = table.columns()
    ranks = sorted({int(r) for r in columns.pop("ranks", np.zeros(0)) if r > 0})
    labels = {"framework": "VLLM", "ranks": ranks, "cases": cases}
    return [assemble(job, "vllm_bench_forward", columns, labels=labels, chained=False)]


def _row(record: Any) -> dict[str, Any]:
    requests = record.get("requests") if isinstance(record, dict) else None
    if not isinstance(requests, list) or not requests:
        raise ValueError("there is no list of requests")
    decode: list[tuple[int, int, int]] = []
    prefill: list[tuple[int, int, int]] = []
    for request in requests:
        if not isinstance(request, dict):
            raise ValueError("a request is no object")
        query = whole_number(request.get("query_len"), "query_len")
        kv = whole_number(request.get("kv_len") or query, "kv_len")
        drafts = whole_number(request.get("num_draft_tokens") or 0, "num_draft_tokens")
        count = whole_number(request.get("count", 1), "count")
        if min(query, count) < 1 or drafts < 0 or kv < query or query * kv * count >= 1 << 62:
            raise ValueError(f"query_len = {query}, kv_len = {kv}, count = {count}")
        (decode if query <= 1 + drafts else prefill).append((count, query, kv))
    batch = sum(n for n, _, _ in decode)
    context = sum(n * kv for n, _, kv in decode)
    mean = context / batch if batch else 0.0
    spread = sum(n * (kv - mean) ** 2 for n, _, kv in decode)
    time = record.get("median_us")
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise ValueError(f"median_us = {time!r:.40}")
    ranks = record.get("ranks")
    return {
        "batch": batch,
        "context_tokens": context,
        "query_tokens": sum(n * q for n, q, _ in decode),
        "context_variance": spread / batch if batch and len(decode) > 1 else np.nan,
        "prefill_requests": sum(n for n, _, _ in prefill),
        "prefill_tokens": sum(n * q for n, q, _ in prefill),
        "prefill_pairs": float(sum(n * (q * (kv - q) + q * (q + 1) / 2) for n, q, kv in prefill)),
        "time_s": float(time) / 1e6,
        "ranks": len(ranks)
        if isinstance(ranks, list)
        else ranks
        if type(ranks) is int and 0 < ranks < 1 << 16
        else 0,
    }


FORMAT = Format(
    name="vllm_bench_forward",
    title="vllm bench forward --output-json: exact batches, the same on all ranks",
    sniff=_sniff,
    read=_read,
    example='[{"case": "decode32", "requests": [{"query_len": 1, "kv_len": 8192, "num_draft_tokens": 0, "chunked": '
    'false, "count": 32}], "median_us": 30100.0, "ranks": 8}]',
    sign=SIGN,
)

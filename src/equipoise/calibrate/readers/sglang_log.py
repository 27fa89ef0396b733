"""SGLang's log: a "Decode batch" line every ``--decode-log-interval`` (40) decode steps of a rank.

Shapes as written by ``log_decode_stats`` of sgl-project/sglang up to 0.5.23: plain, hybrid models (``#full token``),
prefix ``[date time DPi TPj EPk]``, with and without speculation, disaggregation fields and iteration numbers. The line
gives the state at the end of its window and the throughput over it; the mean step took

    time = requests * accepted tokens a step / throughput,

which holds while the number of requests stands still.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np

from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.format import Format, Job, has_sign
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.readers.rows import Columns, Rows
from equipoise.calibrate.readers.sglang_windows import WINDOW_REASONS, averages, verify_width
from equipoise.calibrate.readers.text import matches, number
from equipoise.calibrate.records import Flag, StepRecords

__all__ = ["FORMAT"]

SIGN = b"Decode batch"
PREFILL_SIGN = b"Prefill batch"
LINE = re.compile(
    rb"Decode batch(?: \[(\d{1,18})\])?[,.] #running-req: (\d{1,9}),[^\n]*?#(?:full )?token: (\d{1,15}),([^\n]*?)"
    rb"gen throughput \(token/s\): ([-+.\deE]{1,30}|nan|inf)"
)
PREFILL = re.compile(rb"Prefill batch(?: \[\d+\])?[,.] #new-seq: (\d{1,9}), #new-token: (\d{1,15})")
STAMP = re.compile(rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)")
RANK = re.compile(rb"\bDP(\d{1,5})\b")
ACCEPT = re.compile(rb"accept len: ([.\d]{1,20})(?:, accept rate: ([.\d]{1,20}))?")
EXPECTED = '"Decode batch, #running-req: n, #token: n, ... gen throughput (token/s): x"'


class _Places:
    """Rank and clock out of a line's prefix; stamps repeat, so they are parsed once."""

    def __init__(self) -> None:
        self.seen: dict[bytes, tuple[int, float]] = {}

    def of(self, prefix: bytes) -> tuple[int, float]:
        place = self.seen.get(prefix)
        if place is None:
            if len(self.seen) > 100_000:
                self.seen.clear()
            place = self.seen[prefix] = self._parse(prefix)
        return place

    @staticmethod
    def _parse(prefix: bytes) -> tuple[int, float]:
        ranks = RANK.findall(prefix)
        clock = float("nan")
        for day, time in STAMP.findall(prefix)[-1:]:
            try:
                at = datetime.fromisoformat(f"{day.decode()}T{time.decode().replace(',', '.')}")
                clock = (at - datetime(1970, 1, 1)).total_seconds()
            except ValueError:
                pass
        return (int(ranks[-1]) if ranks else 0), clock


def _read(job: Job) -> list[StepRecords]:
    rows = Rows()
    places = _Places()
    waiting: dict[tuple[int, int], list[int]] = {}
    for file, data, found, numbers in matches(job, "sglang_log", LINE, SIGN, EXPECTED):
        table = list(_lines(file, data, found, places, waiting))
        names = ("rank", "clock_s", "iteration", "running", "tokens", "accepted", "rate", "throughput")
        columns: Columns = {}
        for name, values in zip(
            (*names, "prefill_requests", "prefill_tokens"), zip(*table, strict=True), strict=False
        ):
            columns[name] = np.array(values)
        rows.add(file, numbers, **columns)
    columns = rows.columns()
    if "running" not in columns:
        return [assemble(job, "sglang_log", columns)]
    averages(job, columns)
    _query_tokens(columns, job.ledger)
    columns["prefill_pairs"] = np.where(columns["prefill_tokens"] > 0, np.nan, 0.0)
    columns["steps"] = np.full(len(columns["line"]), float(job.decode_log_interval))
    columns["flags"] = columns["flags"] | np.uint8(Flag.AVERAGED)
    job.ledger.note(
        "#token counts tokens resident in the KV cache, a shared prefix once; attention reads it once a request."
    )
    return [assemble(job, "sglang_log", columns, reasons=WINDOW_REASONS)]


def _lines(
    file: int,
    data: bytes,
    found: list[re.Match[bytes]],
    places: _Places,
    waiting: dict[tuple[int, int], list[int]],
) -> Iterator[tuple[Any, ...]]:
    """Fields of every decode line; prompts that a rank logged since its last one are added to it."""
    prompts = list(PREFILL.finditer(data)) if PREFILL_SIGN in data else []
    nan = float("nan")
    for match in sorted((*found, *prompts), key=lambda m: m.start()):
        start = data.rfind(b"\n", 0, match.start()) + 1
        rank, clock = places.of(data[start : match.start()])
        held = waiting.setdefault((file, rank), [0, 0])
        if match.re is PREFILL:
            held[0] += int(match[1])
            held[1] += int(match[2])
            continue
        iteration, running, tokens, middle, throughput = match.groups()
        accept = ACCEPT.search(middle) if b"accept len" in middle else None
        yield (
            rank,
            clock,
            float(iteration) if iteration else nan,
            int(running),
            int(tokens),
            number(accept[1]) if accept else 1.0,
            number(accept[2]) if accept and accept[2] else nan,
            number(throughput),
            held[0],
            held[1],
        )
        held[:] = [0, 0]


def _query_tokens(columns: Columns, ledger: Ledger) -> None:
    accepted, rate = columns.pop("accepted"), columns.pop("rate")
    if (accepted == 1.0).all() and np.isnan(rate).all():
        return
    width = verify_width(accepted, rate)
    if width is None:
        ledger.note(
            "The lines do not tell how many tokens a request verifies; query tokens are the accepted ones, a lower "
            "bound."
        )
        columns["query_tokens"] = np.rint(columns["batch"] * np.nan_to_num(accepted, nan=1.0)).astype(
            np.int64
        )
    else:
        ledger.note(f"A request verifies {width} tokens a step, from accept len and accept rate.")
        columns["query_tokens"] = columns["batch"] * width


FORMAT = Format(
    name="sglang_log",
    title='SGLang log: "Decode batch" lines, plain, hybrid, with DP ranks and speculation; means over 40 steps',
    sniff=has_sign(SIGN, json=False),
    read=_read,
    example="[2026-11-29 12:00:05 DP0 TP0 EP0] Decode batch, #running-req: 32, #token: 262144, token usage: 0.41, "
    "cuda graph: True, gen throughput (token/s): 1066.67, #queue-req: 0",
    sign=SIGN,
)

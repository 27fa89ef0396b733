"""Any CSV, JSON lines or Parquet file with a column of prompt lengths and one of output lengths.

Which column is what comes from the caller (``columns``) or from the usual names. Times carry their unit in the target:
``arrival_s``, ``arrival_ms``, ``arrival_us``, ``arrival_ns`` are numbers, ``arrival_time`` a date and time of day.
Without arrivals they are drawn (see `interleave.assign_session_starts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from equipoise.errors import TraceError, nearest
from equipoise.traces.readers import parquet
from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job, look
from equipoise.traces.readers.json_lines import read_json_lines
from equipoise.traces.readers.kinds import (
    ARRIVAL_S,
    DURATION_S,
    INDEX,
    TOKENS,
    Field,
    Identity,
    Kind,
    WallClock,
    arrival,
    session_numbers,
)
from equipoise.traces.readers.problems import show
from equipoise.traces.readers.rows import Columns, Schema
from equipoise.traces.readers.table import read_table
from equipoise.traces.timing import service_s
from equipoise.traces.trace import Trace
from equipoise.types import Floats

__all__ = ["FORMATS", "TARGETS"]

TARGETS: dict[str, tuple[Kind, str]] = {
    "context_tokens": (TOKENS, "context_tokens"),
    "output_tokens": (TOKENS, "output_tokens"),
    "arrival_s": (ARRIVAL_S, "arrival_s"),
    "arrival_ms": (arrival(1e3, "milliseconds"), "arrival_s"),
    "arrival_us": (arrival(1e6, "microseconds"), "arrival_s"),
    "arrival_ns": (arrival(1e9, "nanoseconds"), "arrival_s"),
    "arrival_time": (WallClock(), "arrival_ns"),
    "session": (Identity(), "session"),
    "turn": (INDEX, "turn"),
    "think_s": (DURATION_S, "think_s"),
    "elapsed_s": (DURATION_S, "elapsed_s"),
}
"""What a column may be mapped to: its kind, and the name it has from then on."""

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "context_tokens": (
        "input_tokens",
        "prompt_tokens",
        "input_length",
        "prompt_length",
        "prompt_len",
        "input_len",
        "isl",
    ),
    "output_tokens": (
        *("completion_tokens", "generated_tokens", "response_tokens", "output_length"),
        *("completion_length", "output_len", "osl"),
    ),
    "arrival_s": ("arrived_at", "timestamp_s", "time_s"),
    "arrival_ms": ("timestamp_ms", "time_ms"),
    "session": ("session_id", "conversation_id"),
    "think_s": ("think_time_s",),
}


def _schema(names: Sequence[str], job: Job) -> Schema:
    """Fields of a file with these columns."""
    mapping = dict(job.columns or {})
    for target in mapping:
        if target not in TARGETS:
            raise TraceError(
                f"{target!r} is not a trace column",
                where=f"columns {target}={mapping[target]}",
                fix=nearest(target, TARGETS),
            )
    for target in TARGETS:
        if target not in mapping and target in names:
            mapping[target] = target
        for usual in () if job.columns else USUAL_NAMES.get(target, ()):
            if target not in mapping and usual in names:
                mapping[target] = usual
    if not job.columns:
        guessed = [f"{target}={name}" for target, name in mapping.items() if target != name]
        if guessed:
            job.problems.note(f"columns taken as {','.join(guessed)}")
    for target in ("context_tokens", "output_tokens"):
        if target not in mapping:
            raise TraceError(
                f"no column holds the {target}",
                where=str(job.path),
                fix=f"say which one does (--columns {target}=NAME); the columns are {show(', '.join(names), 200)}",
            )
    fields = tuple(Field(column, TARGETS[t][1], TARGETS[t][0]) for t, column in mapping.items())
    times = [f.column for f in fields if f.target.startswith("arrival")]
    if len(times) > 1:
        raise TraceError(
            f"two columns are arrival times, {times[0]!r} and {times[1]!r}",
            where=str(job.path),
            fix="map one",
        )
    twice = [f.column for f in fields if [g.target for g in fields].count(f.target) > 1]
    if twice:
        raise TraceError(f"the column {twice[0]!r} is mapped twice", where=str(job.path), fix="map it once")
    if not times:
        unused = [
            name for name in names if name.lower() in ("timestamp", "time", "ts", "arrival", "arrival_time")
        ]
        if unused:
            job.problems.note(
                f"column {unused[0]!r} is not used, its unit is unknown (map it: arrival_s={unused[0]})"
            )
    return Schema(fields)


def _finish(columns: Columns, job: Job) -> Trace:
    if "session" in columns and not isinstance(columns["session"], np.ndarray):
        columns["session"] = session_numbers(columns["session"])
    known = any(name in columns for name in ("arrival_s", "arrival_ns"))
    if not known and len(columns["context_tokens"]):
        columns["arrival_s"] = _offsets(columns)
        columns.setdefault("think_s", np.zeros(len(columns["context_tokens"])))
    return assemble(job.name, columns, Layout(arrivals_known=known), job.problems)


def _offsets(columns: Columns) -> Floats:
    """Seconds from a session's start to each of its turns: answer times and think times of the turns before."""
    n = len(columns["context_tokens"])
    if "session" not in columns:
        return np.zeros(n)
    session = np.where(columns["session"] < 0, -1 - np.arange(n), columns["session"])
    order = np.lexsort((columns.get("turn", np.zeros(n)), session))
    answer_s = columns.get("elapsed_s", service_s(columns["output_tokens"]))[order]
    step_s = np.r_[0.0, answer_s[:-1]] + columns.get("think_s", np.zeros(n))[order]
    total_s = np.cumsum(step_s)
    begins = np.r_[True, session[order][1:] != session[order][:-1]]
    first = np.maximum.accumulate(np.where(begins, np.arange(n), 0))
    offset = np.empty(n)
    offset[order] = np.maximum(total_s - total_s[first], 0.0)
    return offset


def _read_csv(job: Job) -> Trace:
    head = look(job.path)
    return _finish(read_table(job.path, _schema(head.columns, job), job.problems), job)


def _read_jsonl(job: Job) -> Trace:
    names = tuple(look(job.path).record or ())
    return _finish(read_json_lines(job.path, _schema(names, job), job.problems), job)


def _read_parquet(job: Job) -> Trace:
    schema = _schema(parquet.columns(job.path), job)
    return _finish(parquet.read_columns(job.path, schema, job.problems), job)


def _recognisable(names: Sequence[str]) -> bool:
    def one_of(target: str) -> bool:
        return target in names or any(usual in names for usual in USUAL_NAMES[target])

    return one_of("context_tokens") and one_of("output_tokens")


def _format(
    kind: str, title: str, sniff: Callable[[Head], bool], read: Callable[[Job], Any], example: str
) -> Format:
    return Format(name=kind, title=title, sniff=sniff, read=read, example=example)


FORMATS = (
    _format(
        "csv",
        "any CSV with a header; columns by the usual names or a column map",
        lambda head: head.record is None and _recognisable(head.columns),
        _read_csv,
        "arrival_s,context_tokens,output_tokens,session,turn,think_s\n0.0,19560,1017,7,0,0.0",
    ),
    _format(
        "jsonl",
        "any JSON lines; keys by the usual names or a column map",
        lambda head: head.record is not None and _recognisable(tuple(head.record)),
        _read_jsonl,
        '{"arrival_s": 0.0, "prompt_tokens": 19560, "completion_tokens": 1017}',
    ),
    _format(
        "parquet",
        "any Parquet; columns by the usual names or a column map",
        lambda head: head.magic == parquet.MAGIC,
        _read_parquet,
        "",
    ),
)

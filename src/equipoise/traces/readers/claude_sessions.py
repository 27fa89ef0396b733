"""Slim Claude Code sessions: one row a call of an agent's session, no absolute times.

Columns session, thread (0 = main, else a sub-agent), t [s], input_tokens, output_tokens, think_time [s] and more, a
derivative of the WEKA corpus (github.com/callanjfox/kv-cache-tester). ``t`` counts from the session's start in the
main thread and from the sub-agent's start in the others. A sub-agent starts when the main call that stands before it in
the file has been answered (t + api_time): in the upstream files a sub-agent's recorded end minus its duration is that
moment. All threads of a session are one session, its turns counted in order of time. Calls without output were aborted:
nothing was decoded, they are dropped and counted.
"""

from __future__ import annotations

import numpy as np

from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.kinds import (
    ARRIVAL_S,
    COUNT,
    DURATION_S,
    OUTPUT,
    TOKENS,
    Field,
    Identity,
    session_numbers,
)
from equipoise.traces.readers.rows import Columns, Schema
from equipoise.traces.readers.table import read_table
from equipoise.traces.trace import Trace
from equipoise.types import Floats

__all__ = ["ABORTED", "FORMAT"]

ABORTED = "aborted calls (0 output tokens)"

SCHEMA = Schema(
    (
        Field("session", "session", Identity()),
        Field("thread", "thread", COUNT),
        Field("t", "arrival_s", ARRIVAL_S),
        Field("input_tokens", "context_tokens", TOKENS),
        Field("output_tokens", "output_tokens", OUTPUT),
        Field("api_time", "elapsed_s", DURATION_S, required=False),
        Field("think_time", "think_s", DURATION_S),
    ),
    drop_zero=("output_tokens", ABORTED),
)


def _sniff(head: Head) -> bool:
    return head.has("session", "thread", "t", "input_tokens", "output_tokens", "think_time")


def _read(job: Job) -> Trace:
    columns = read_table(job.path, SCHEMA, job.problems)
    columns["session"] = session_numbers(columns["session"])
    if len(columns["arrival_s"]):
        columns["arrival_s"] = _offsets(columns)
    columns.pop("elapsed_s", None)
    columns.pop("thread")
    return assemble(job.name, columns, Layout(arrivals_known=False), job.problems)


def _offsets(columns: Columns) -> Floats:
    """Seconds since the session's start for every row, sub-agents put after the main call that launched them."""
    session, thread, t = columns["session"], columns["thread"], columns["arrival_s"]
    answered = t + columns.get("elapsed_s", 0.0)
    main = thread == 0
    row = np.arange(len(t))
    launcher = np.maximum.accumulate(np.where(main, row, -1))
    known = ~main & (launcher >= 0)
    known[known] = session[launcher[known]] == session[known]
    offset: Floats = t.copy()
    offset[known] += answered[launcher[known]]
    return offset


FORMAT = Format(
    name="claude-sessions",
    title="Slim Claude Code session CSV: threads of sessions, no absolute times",
    sniff=_sniff,
    read=_read,
    example="session,thread,t,input_tokens,output_tokens,cached_prefix_tokens,api_time,ttft,think_time,model_family\n"
    "1,0,19.0,72762,296,71168,9.19,,12.0,opus",
)

"""BurstGPT CSV: Timestamp [s], Session ID, Elapsed time [s], Model, Request/Response/Total tokens, Log Type.

github.com/HPMLL/BurstGPT. Version 1 has no Session ID and no Elapsed time. Failed requests have 0 response tokens;
nothing was decoded for them, so they are dropped and counted. API calls have no session id.
"""

from __future__ import annotations

from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.kinds import ARRIVAL_S, DURATION_S, OUTPUT, TOKENS, Field, Identity
from equipoise.traces.readers.rows import Schema
from equipoise.traces.readers.table import read_table
from equipoise.traces.trace import Trace

__all__ = ["FORMAT"]

SCHEMA = Schema(
    (
        Field("Timestamp", "arrival_s", ARRIVAL_S),
        Field("Request tokens", "context_tokens", TOKENS),
        Field("Response tokens", "output_tokens", OUTPUT),
        Field("Session ID", "session", Identity(), required=False),
        Field("Elapsed time", "elapsed_s", DURATION_S, required=False),
    ),
    drop_zero=("output_tokens", "failed requests (0 response tokens)"),
)


def _sniff(head: Head) -> bool:
    return head.has("Timestamp", "Request tokens", "Response tokens")


def _read(job: Job) -> Trace:
    return assemble(job.name, read_table(job.path, SCHEMA, job.problems), Layout(), job.problems)


FORMAT = Format(
    name="burstgpt",
    title="BurstGPT CSV: arrivals in s, sessions, lengths; failed requests are dropped",
    sniff=_sniff,
    read=_read,
    example="Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log",
)

"""Vidur CSV: arrived_at [s], num_prefill_tokens, num_decode_tokens.

github.com/microsoft/vidur, data/processed_traces; descendants add session_id and session_turn_index.
"""

from __future__ import annotations

from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.kinds import ARRIVAL_S, TOKENS, Field, Identity
from equipoise.traces.readers.rows import Schema
from equipoise.traces.readers.table import read_table
from equipoise.traces.trace import Trace

__all__ = ["FORMAT"]

SCHEMA = Schema(
    (
        Field("arrived_at", "arrival_s", ARRIVAL_S),
        Field("num_prefill_tokens", "context_tokens", TOKENS),
        Field("num_decode_tokens", "output_tokens", TOKENS),
        Field("session_id", "session", Identity(), required=False),
    )
)


def _sniff(head: Head) -> bool:
    return head.has("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def _read(job: Job) -> Trace:
    return assemble(job.name, read_table(job.path, SCHEMA, job.problems), Layout(), job.problems)


FORMAT = Format(
    name="vidur",
    title="Vidur CSV: arrivals in s, prefill and decode tokens",
    sniff=_sniff,
    read=_read,
    example="arrived_at,num_prefill_tokens,num_decode_tokens\n0.125,547,248",
)

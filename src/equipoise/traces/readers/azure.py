"""Azure LLM inference CSV: TIMESTAMP (wall clock), ContextTokens, GeneratedTokens.

github.com/Azure/AzurePublicDataset, traces of 2023 (Patel et al., "Splitwise", ISCA 2024) and 2024.
"""

from __future__ import annotations

from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.kinds import TOKENS, Field, WallClock
from equipoise.traces.readers.rows import Schema
from equipoise.traces.readers.table import read_table
from equipoise.traces.trace import Trace

__all__ = ["FORMAT"]

SCHEMA = Schema(
    (
        Field("TIMESTAMP", "arrival_ns", WallClock()),
        Field("ContextTokens", "context_tokens", TOKENS),
        Field("GeneratedTokens", "output_tokens", TOKENS),
    )
)


def _sniff(head: Head) -> bool:
    return head.has("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _read(job: Job) -> Trace:
    return assemble(job.name, read_table(job.path, SCHEMA, job.problems), Layout(), job.problems)


FORMAT = Format(
    name="azure",
    title="Azure LLM inference CSV (2023, 2024): wall-clock arrivals, lengths",
    sniff=_sniff,
    read=_read,
    example="TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10",
)

"""Mooncake JSON lines: timestamp [ms], input_length, output_length, hash_ids of 512-token blocks.

Published with Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST'25
(github.com/kvcache-ai/Mooncake, FAST25-release/traces); the format is also read by AIPerf and DynoSim.
"""

from __future__ import annotations

from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.json_lines import read_json_lines
from equipoise.traces.readers.kinds import TOKENS, Blocks, Field, arrival
from equipoise.traces.readers.rows import Schema
from equipoise.traces.trace import Trace

__all__ = ["BLOCK_TOKENS", "FORMAT"]

BLOCK_TOKENS = 512

SCHEMA = Schema(
    (
        Field("timestamp", "arrival_s", arrival(1e3, "milliseconds")),
        Field("input_length", "context_tokens", TOKENS),
        Field("output_length", "output_tokens", TOKENS),
        Field("hash_ids", "prefix", Blocks(), required=False),
    )
)


def _sniff(head: Head) -> bool:
    return head.keys("timestamp", "input_length", "output_length") and not head.keys("chat_id")


def _read(job: Job) -> Trace:
    columns = read_json_lines(job.path, SCHEMA, job.problems)
    return assemble(job.name, columns, Layout(block_tokens=BLOCK_TOKENS), job.problems)


FORMAT = Format(
    name="mooncake",
    title="Mooncake JSON lines: arrivals in ms, lengths, 512-token prefix blocks",
    sniff=_sniff,
    read=_read,
    example='{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}',
)

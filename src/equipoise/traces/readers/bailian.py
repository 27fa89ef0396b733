"""Qwen-Bailian JSON lines: chat_id, parent_chat_id, timestamp [s], lengths, turn, hash_ids of 16-token blocks.

github.com/alibaba-edu/qwen-bailian-usagetraces-anon (Wang et al., "KVCache Cache in the Wild", ATC'25). Each request
is a chat of its own; its parent is the turn before (-1: none). A session is a tree of them, named by its first request;
turns are counted in order of arrival, since a window of a day cuts long conversations.
"""

from __future__ import annotations

import numpy as np

from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.json_lines import read_json_lines
from equipoise.traces.readers.kinds import ARRIVAL_S, TOKENS, Blocks, Field, Identity, session_numbers
from equipoise.traces.readers.rows import Schema
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints

__all__ = ["FORMAT"]

BLOCK_TOKENS = 16

SCHEMA = Schema(
    (
        Field("chat_id", "chat", Identity()),
        Field("parent_chat_id", "parent", Identity()),
        Field("timestamp", "arrival_s", ARRIVAL_S),
        Field("input_length", "context_tokens", TOKENS),
        Field("output_length", "output_tokens", TOKENS),
        Field("hash_ids", "prefix", Blocks(), required=False),
    )
)


def _sniff(head: Head) -> bool:
    return head.keys("chat_id", "parent_chat_id", "input_length", "output_length")


def _read(job: Job) -> Trace:
    columns = read_json_lines(job.path, SCHEMA, job.problems)
    chat, parent = (session_numbers(columns.pop(name)) for name in ("chat", "parent"))
    columns["session"] = _roots(chat, parent, columns["arrival_s"])
    return assemble(job.name, columns, Layout(block_tokens=BLOCK_TOKENS), job.problems)


def _roots(chat: Ints, parent: Ints, arrival_s: Floats) -> Ints:
    """First ancestor of every request, walking in order of arrival: a parent always comes before its child.

    A parent that is not in the file stands for the conversation it began; a loop cannot arise, since only
    requests seen before count as parents.
    """
    root: dict[int, int] = {}
    session = np.empty(len(chat), dtype=np.int64)
    for i in np.argsort(arrival_s, kind="stable").tolist():
        above = int(parent[i])
        session[i] = root.get(above, above) if above >= 0 else chat[i]
        root[int(chat[i])] = int(session[i])
    return session


FORMAT = Format(
    name="bailian",
    title="Qwen-Bailian JSON lines: chats with parents, arrivals in s, 16-token prefix blocks",
    sniff=_sniff,
    read=_read,
    example='{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,'
    ' "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]}',
)

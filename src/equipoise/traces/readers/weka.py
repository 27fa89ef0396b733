"""WEKA session JSON: one document a session, with calls and nested sub-agents; a folder of them is one trace.

github.com/callanjfox/kv-cache-tester, traces/*.json (the corpus behind the AgentX benchmark); a file with one session a
line, as the corpus is published elsewhere, reads the same. A call has t [s from the session's start], in, out,
hash_ids (64-token blocks, local to the session unless hash_id_scope is "global"), api_time and think_time [s]. A
sub-agent stands in the list where it *ended*: its first call came ``duration_ms`` before its t, and its calls count
their t from there. All threads of a document are one session. Calls with ``out`` 0 were aborted and are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.errors import TraceError
from equipoise.traces.readers.assemble import Layout, assemble
from equipoise.traces.readers.claude_sessions import ABORTED
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.json_lines import decode
from equipoise.traces.readers.kinds import ARRIVAL_S, DURATION_S, OUTPUT, TOKENS, Blocks, Number
from equipoise.traces.readers.problems import Problems, show
from equipoise.traces.readers.source import line_blocks, whole
from equipoise.traces.trace import Trace
from equipoise.types import Ints

__all__ = ["FORMAT", "session_files"]

ENDINGS = tuple(f".{kind}{zipped}" for kind in ("json", "jsonl") for zipped in ("", ".gz", ".zst"))
BLOCK_TOKENS = Number(1, 1 << 20, whole=True, empty=64)
MAX_DEPTH = 100
KINDS = {"t": ARRIVAL_S, "in": TOKENS, "out": OUTPUT, "think_time": DURATION_S, "hash_ids": Blocks()}
NEEDED = ("t", "in", "out")


@dataclass(slots=True)
class _Session:
    """The calls of one document, as columns."""

    ident: str
    block_tokens: int
    shared_ids: bool
    t: list[float] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    think: list[float] = field(default_factory=list)
    blocks: list[Ints] = field(default_factory=list)


def session_files(folder: Path) -> list[Path]:
    """Session documents of a folder, in order of their names."""
    return sorted(p for p in folder.iterdir() if p.name.lower().endswith(ENDINGS) and p.is_file())


def _sniff(head: Head) -> bool:
    if head.folder:
        return bool(session_files(head.path))
    return head.keys("requests") and (
        head.keys("block_size") or head.keys("hash_id_scope") or head.keys("id")
    )


def _read(job: Job) -> Trace:
    files = session_files(job.path) if job.path.is_dir() else [job.path]
    if not files:
        raise TraceError("holds no .json file", where=str(job.path), fix="expected WEKA session files")
    sessions = []
    for path in files:
        for line, document in _documents(path, job.problems):
            session = _session(document, path, line, job.problems)
            if session is not None and session.t:
                sessions.append(session)
    return assemble(job.name, _columns(sessions, job.problems), *_layout(sessions), job.problems)


def _documents(path: Path, problems: Problems) -> Iterator[tuple[int | None, Any]]:
    """The whole file if it is one document, the elements if it is an array, else one document a line."""
    text = whole(path)
    problems.unit = "line"
    try:
        document = decode(text)
        if isinstance(document, list):
            problems.unit = "element"
            yield from enumerate(document, start=1)
        else:
            yield None, document
        return
    except ValueError as error:
        one = text.strip().count(b"\n") == 0 or not text.lstrip().partition(b"\n")[0].rstrip().endswith(b"}")
        if one:
            problems.bad(str(error), path=path, expected="one JSON document a session")
            return
    del text
    for first, block in line_blocks(path):
        for number, raw in enumerate(block.split(b"\n"), start=first):
            if raw.strip():
                try:
                    yield number, decode(raw)
                except ValueError as error:
                    problems.bad(str(error), path=path, line=number, expected="one JSON document a session")


def _session(document: Any, path: Path, line: int | None, problems: Problems) -> _Session | None:
    requests = document.get("requests") if isinstance(document, dict) else None
    if not isinstance(requests, list):
        problems.bad("there is no list 'requests'", path=path, line=line, expected="a WEKA session document")
        return None
    try:
        block_tokens = int(BLOCK_TOKENS.json(document.get("block_size")))
    except ValueError as error:
        what = f"{show(document.get('block_size'))} {error}"
        problems.bad(what, path=path, line=line, column="block_size", expected=BLOCK_TOKENS.expected)
        return None
    session = _Session(
        str(document.get("id", path.name)), block_tokens, document.get("hash_id_scope") == "global"
    )
    _calls(session, requests, "requests", 0.0, 0, (path, line, problems))
    return session


def _calls(
    session: _Session,
    requests: list[Any],
    where: str,
    start_s: float,
    depth: int,
    at: tuple[Path, int | None, Problems],
) -> None:
    path, line, problems = at
    for i, call in enumerate(requests):
        place = f"{where}[{i}]"
        if not isinstance(call, dict):
            problems.bad(
                f"{show(call)} is not a call", path=path, line=line, column=place, expected="a JSON object"
            )
        elif "requests" in call:
            nested = call["requests"]
            try:
                if not isinstance(nested, list) or depth >= MAX_DEPTH:
                    raise ValueError(
                        "has no list of requests" if depth < MAX_DEPTH else "is nested too deeply"
                    )
                begun_s = (
                    start_s
                    + ARRIVAL_S.json(call.get("t", 0.0))
                    - DURATION_S.json(call.get("duration_ms")) / 1e3
                )
            except ValueError as error:
                problems.bad(
                    f"the sub-agent's t or duration_ms {error}",
                    path=path,
                    line=line,
                    column=place,
                    expected="numbers",
                )
                continue
            _calls(session, nested, f"{place}.requests", begun_s, depth + 1, at)
        else:
            _call(session, call, place, start_s, at)


def _call(
    session: _Session, call: dict[str, Any], place: str, start_s: float, at: tuple[Path, int | None, Problems]
) -> None:
    path, line, problems = at
    values: dict[str, Any] = {}
    for key in ("out", "in", "t", "think_time", "hash_ids"):  # what makes a call void comes first
        try:
            if key in NEEDED and key not in call:
                raise ValueError("there is no value")
            values[key] = KINDS[key].json(call.get(key))
        except ValueError as error:
            what = f"{show(call[key])} {error}" if key in call else str(error)
            problems.bad(what, path=path, line=line, column=f"{place}.{key}", expected=KINDS[key].expected)
            return
        if key == "out" and values[key] == 0:
            problems.drop(ABORTED)
            return
    session.t.append(start_s + values["t"])
    session.context.append(values["in"])
    session.output.append(values["out"])
    session.think.append(values["think_time"])
    session.blocks.append(values["hash_ids"])


def _columns(sessions: list[_Session], problems: Problems) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "arrival_s": np.array([t for s in sessions for t in s.t], dtype=np.float64),
        "context_tokens": np.array([c for s in sessions for c in s.context], dtype=np.int64),
        "output_tokens": np.array([o for s in sessions for o in s.output], dtype=np.int64),
        "think_s": np.array([t for s in sessions for t in s.think], dtype=np.float64),
        "session": np.repeat(_numbers(sessions), [len(s.t) for s in sessions])
        if sessions
        else np.zeros(0, np.int64),
    }
    if len({s.block_tokens for s in sessions}) > 1:
        problems.note("prefix blocks left out: the sessions disagree on their size")
    elif sessions:
        columns["prefix"] = _prefix(sessions)
    return columns


def _layout(sessions: list[_Session]) -> tuple[Layout]:
    return (Layout(block_tokens=sessions[0].block_tokens if sessions else 0, arrivals_known=False),)


def _numbers(sessions: list[_Session]) -> Ints:
    """The number a session's id ends in, as upstream counts them; by position where these are not unique."""
    matches = [re.search(r"(\d{1,18})\D*$", s.ident) for s in sessions]
    numbers = [int(m.group(1)) for m in matches if m]
    unique = len(numbers) == len(sessions) == len(set(numbers))
    return np.array(numbers if unique else range(len(sessions)), dtype=np.int64)


def _prefix(sessions: list[_Session]) -> tuple[Ints, Ints]:
    """Ids made dense: those of one session mean nothing in another, unless the document says they are global."""
    lengths = np.array([len(ids) for s in sessions for ids in s.blocks], dtype=np.int64)
    flat = [np.concatenate([np.zeros(0, dtype=np.int64), *s.blocks]) for s in sessions]
    world = np.unique(
        np.concatenate(
            [np.zeros(0, np.int64), *[f for f, s in zip(flat, sessions, strict=True) if s.shared_ids]]
        )
    )
    base = len(world)
    for i, session in enumerate(sessions):
        if session.shared_ids:
            flat[i] = np.searchsorted(world, flat[i])
        else:
            known, flat[i] = np.unique(flat[i], return_inverse=True)
            flat[i] += base
            base += len(known)
    return lengths, np.concatenate(flat)


FORMAT = Format(
    name="weka",
    title="WEKA session JSON: calls and nested sub-agents, 64-token prefix blocks; a file or a folder",
    sniff=_sniff,
    read=_read,
    example='{"id": "trace_0277", "block_size": 64, "hash_id_scope": "local", "requests": [\n'
    '  {"t": 0.0, "type": "n", "in": 19560, "out": 1017, "hash_ids": [1, 2], "api_time": 18.78, "think_time": 0.0}]}',
    folder=True,
)

"""From a file's columns to a `Trace`: sort, count turns, estimate think times, draw unknown arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import TraceError
from equipoise.traces.readers.kinds import session_numbers
from equipoise.traces.readers.problems import Problems
from equipoise.traces.readers.rows import Columns
from equipoise.traces.reorder import reorder
from equipoise.traces.sessions import think_times, turn_numbers
from equipoise.traces.timing import SERVER_TPOT_S
from equipoise.traces.trace import PrefixBlocks, Trace
from equipoise.types import Floats

__all__ = ["Layout", "assemble"]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a format says beyond its columns.

    Parameters
    ----------
    block_tokens : int
        Tokens a prefix block.
    arrivals_known : bool
        False: arrivals are offsets inside a session, its start is not recorded.
    rebase : bool
        Subtract the first arrival.
    """

    block_tokens: int = 0
    arrivals_known: bool = True
    rebase: bool = True


def assemble(name: str, columns: Columns, layout: Layout, problems: Problems) -> Trace:
    """Build the trace; what had to be done to the data is noted in ``problems``.

    Parameters
    ----------
    name : str
    columns : Columns
        ``context_tokens`` and ``output_tokens``; optional ``arrival_s`` or ``arrival_ns``, ``session`` (text or
        numbers), ``turn``, ``think_s``, ``elapsed_s`` (server time, to derive think times from), ``prefix``.
    layout : Layout
    problems : Problems

    Raises
    ------
    TraceError
        No request is left.
    """
    n = len(columns["context_tokens"])
    if n == 0:
        left = f" after {problems.skipped} bad lines" if problems.skipped else ""
        left += "".join(f", {count} dropped: {reason}" for reason, count in problems.dropped.items())
        raise TraceError(
            f"holds no requests{left}", where=str(problems.path), fix="a trace needs at least one"
        )
    arrival_s = _arrivals(columns)
    known = layout.arrivals_known and arrival_s is not None
    session = _sessions(columns)
    trace = Trace.from_columns(
        name,
        np.zeros(n),
        columns["context_tokens"],
        columns["output_tokens"],
        session=session,
        turn=None if "turn" not in columns else columns["turn"].astype(np.int32),
        think_s=columns.get("think_s"),
        arrivals_known=known,
        prefix=_prefix(columns, layout.block_tokens),
    )
    if arrival_s is not None:
        trace = _sorted(trace, arrival_s, columns, layout, problems)
    if session is None:
        return trace
    changes: dict[str, Any] = {}
    if "turn" not in columns:
        changes["turn"] = turn_numbers(trace.session)
    if "think_s" not in columns and arrival_s is not None:
        elapsed = columns.get("elapsed_s")  # already in the order of the trace
        changes["think_s"] = think_times(trace, elapsed)
        if elapsed is None and changes["think_s"].any():
            problems.note(f"think times estimated as gap - {SERVER_TPOT_S * 1e3:.0f} ms x output tokens")
    return reorder(trace, None, **changes)


def _arrivals(columns: Columns) -> Floats | None:
    if "arrival_ns" in columns:
        nanoseconds: NDArray[np.int64] = columns["arrival_ns"]
        # Differences first: a double holds a recent epoch time only to a quarter of a microsecond.
        since_first_s: Floats = (nanoseconds - nanoseconds.min()) / 1e9
        return since_first_s
    arrival_s: Floats | None = columns.get("arrival_s")
    return arrival_s


def _sessions(columns: Columns) -> NDArray[np.int64] | None:
    session = columns.get("session")
    if session is None:
        return None
    numbers = session if isinstance(session, np.ndarray) else session_numbers(session)
    return numbers if (numbers >= 0).any() else None


def _prefix(columns: Columns, block_tokens: int) -> PrefixBlocks | None:
    if "prefix" not in columns:
        return None
    lengths, ids = columns["prefix"]
    if len(ids) == 0:
        return None
    return PrefixBlocks(np.concatenate([[0], np.cumsum(lengths)]), ids, block_tokens)


def _sorted(trace: Trace, arrival_s: Floats, columns: Columns, layout: Layout, problems: Problems) -> Trace:
    falls = int((arrival_s[1:] < arrival_s[:-1]).sum())
    order = None
    if falls:
        order = np.argsort(arrival_s, kind="stable")
        arrival_s = arrival_s[order]
        if "elapsed_s" in columns:
            columns["elapsed_s"] = columns["elapsed_s"][order]
        if layout.arrivals_known:
            problems.note(f"{falls:,} arrivals were earlier than the line before, sorted")
    if layout.rebase:
        arrival_s = arrival_s - arrival_s[0]
    return reorder(trace, order, arrival_s=arrival_s)

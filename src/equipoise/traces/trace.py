"""`Trace`: the requests of a workload as columns, in arrival order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import TraceError
from equipoise.types import Floats, Ints

__all__ = ["MAX_TOKENS", "PrefixBlocks", "Trace"]

MAX_TOKENS = 100_000_000
"""Longest context or output believed, in tokens: a hundred times the longest window on the market."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixBlocks:
    """Prefix-block ids of every request, flattened; equal ids mean reusable KV.

    Parameters
    ----------
    offsets : int64[requests + 1]
        Request i owns ``ids[offsets[i]:offsets[i + 1]]``.
    ids : int64[...]
    block_tokens : int
        Tokens a block.
    """

    offsets: Ints
    ids: Ints
    block_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A workload: one row a request, ordered by arrival.

    Parameters
    ----------
    name : str
        File stem or preset name.
    arrival_s : float64[requests]
        Seconds since the first request, never falling.
    context_tokens : int64[requests]
        Tokens in the KV cache when decoding starts (the prompt), at least 1.
    output_tokens : int64[requests]
        Tokens to generate, at least 1.
    session : int64[requests]
        Conversation the request belongs to, -1 where there is none.
    turn : int32[requests]
        Turn inside its session, from 0.
    think_s : float64[requests]
        Seconds the client waits after the previous answer before it sends this turn.
    arrivals_known : bool
        False where the file holds no absolute arrival times; see `transforms.assign_session_starts`.
    prefix : PrefixBlocks, optional
    source : str
        Format and provenance, for the report.

    Raises
    ------
    TraceError
        Empty, columns of different lengths, lengths outside 1 ... MAX_TOKENS, arrivals that fall or are not
        finite.
    """

    name: str
    arrival_s: Floats
    context_tokens: Ints
    output_tokens: Ints
    session: Ints
    turn: NDArray[np.int32]
    think_s: Floats
    arrivals_known: bool = True
    prefix: PrefixBlocks | None = None
    source: str = ""

    def __post_init__(self) -> None:
        _validate(self)

    def __len__(self) -> int:
        return len(self.context_tokens)

    def __iter__(self) -> Iterator[object]:
        raise TypeError("a Trace is a set of columns; iterate over trace.context_tokens and the like")

    def take(self, rows: Ints | slice, **changes: object) -> Trace:
        """The chosen rows in the given order, with other fields replaced; prefix blocks are dropped."""
        columns = {
            "arrival_s": self.arrival_s[rows],
            "context_tokens": self.context_tokens[rows],
            "output_tokens": self.output_tokens[rows],
            "session": self.session[rows],
            "turn": self.turn[rows],
            "think_s": self.think_s[rows],
            "prefix": None,
        }
        return replace(self, **{**columns, **changes})  # type: ignore[arg-type]

    @classmethod
    def from_columns(
        cls,
        name: str,
        arrival_s: Floats,
        context_tokens: Ints,
        output_tokens: Ints,
        *,
        session: Ints | None = None,
        turn: NDArray[np.int32] | None = None,
        think_s: Floats | None = None,
        arrivals_known: bool = True,
        prefix: PrefixBlocks | None = None,
        source: str = "",
    ) -> Trace:
        """Build a trace, filling the columns that are not given (no session, turn 0, no think time).

        The fill-ins are views of a single value: a ten-million-row trace does not pay for them.
        """
        n = len(context_tokens)
        return cls(
            name=name,
            arrival_s=np.ascontiguousarray(arrival_s, dtype=np.float64),
            context_tokens=np.ascontiguousarray(context_tokens, dtype=np.int64),
            output_tokens=np.ascontiguousarray(output_tokens, dtype=np.int64),
            session=np.broadcast_to(np.int64(-1), n)
            if session is None
            else np.asarray(session, dtype=np.int64),
            turn=np.broadcast_to(np.int32(0), n) if turn is None else np.asarray(turn, dtype=np.int32),
            think_s=np.broadcast_to(0.0, n) if think_s is None else np.asarray(think_s, dtype=np.float64),
            arrivals_known=arrivals_known,
            prefix=prefix,
            source=source,
        )


def _validate(trace: Trace) -> None:
    n = len(trace.context_tokens)
    if n == 0:
        raise TraceError(
            "the trace is empty", where=f"trace {trace.name!r}", fix="it must hold at least one request"
        )
    for column in ("arrival_s", "output_tokens", "session", "turn", "think_s"):
        length = len(getattr(trace, column))
        if length != n:
            raise TraceError(
                f"{column} has {length} rows, context_tokens {n}",
                where=f"trace {trace.name!r}",
                fix="equal lengths",
            )
    for column in ("context_tokens", "output_tokens"):
        values = getattr(trace, column)
        if values.min() >= 1 and values.max() <= MAX_TOKENS:  # no temporary arrays on the way of the good
            continue
        bad = np.flatnonzero((values < 1) | (values > MAX_TOKENS))
        raise TraceError(
            f"{column} = {values[bad[0]]} in row {bad[0]}",
            where=f"trace {trace.name!r}",
            fix=f"must be from 1 to {MAX_TOKENS}; {len(bad)} such rows",
        )
    if not np.isfinite(trace.arrival_s).all():
        row = int(np.flatnonzero(~np.isfinite(trace.arrival_s))[0])
        raise TraceError(
            f"arrival_s is not finite in row {row}", where=f"trace {trace.name!r}", fix="use seconds"
        )
    falls = trace.arrival_s[1:] < trace.arrival_s[:-1]
    if falls.any():
        row = int(np.argmax(falls)) + 1
        raise TraceError(
            f"arrival_s falls at row {row}", where=f"trace {trace.name!r}", fix="sort by arrival"
        )

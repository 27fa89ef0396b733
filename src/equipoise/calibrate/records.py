"""`StepRecords`: what an engine said of its steps, one row a (step, rank), whatever file it came from.

A reader fills one of these; the fit sees nothing else. A row of a measured table is a step of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.types import Floats, Ints

__all__ = ["Drop", "Flag", "StepRecords"]


class Flag(IntFlag):
    """What is special about a row; 0 is a plain decode step."""

    PREFILL = 1
    """Prompt tokens only."""
    MIXED = 2
    """Prompt tokens beside decode tokens."""
    IDLE = 4
    """The rank ran nothing of its own; it went along with the others."""
    FIRST = 8
    """The step before it, on this rank, was missing or idle: its time may hold a wait that is none of its work."""
    AVERAGED = 16
    """The row is a mean over several steps (``steps`` says how many)."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Rows left out for one reason.

    Parameters
    ----------
    reason : str
        In words: "prefill step", "negative time".
    rows : int
    first : str
        Where it first happened: ``file.log:17``; empty where rows have no place.
    """

    reason: str
    rows: int
    first: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class StepRecords:
    """Columns of equal length, one row a (instance, step, rank); sorted by instance, step, rank.

    Parameters
    ----------
    instance : int32[rows]
        Which barrier: an index into the workers seen, from 0.
    step : int64[rows]
        Step id, shared by the ranks of an instance.
    rank : int32[rows]
    batch : int64[rows]
        B: decoding requests.
    context_tokens : int64[rows]
        C: sum of their context lengths, in tokens; -1 where the source does not say.
    query_tokens : int64[rows]
        Q: decode tokens processed, = B without speculation.
    context_variance : float64[rows]
        Variance of the context length over the rank's requests, in tokens squared; NaN: unknown.
    prefill_requests, prefill_tokens : int64[rows]
        Prompts in this step, and the prompt tokens of theirs that it processed.
    prefill_pairs : float64[rows]
        Attended (query, key) pairs of these prompt tokens: sum over prompts of tokens * earlier context +
        tokens * (tokens + 1) / 2; NaN: unknown.
    time_s : float64[rows]
        Length of the step as this rank reports it, in seconds.
    clock_s : float64[rows]
        When the row was recorded, in seconds of any clock; NaN: unknown.
    steps : float64[rows]
        Steps the row is a mean over; 1 for a plain row.
    flags : uint8[rows]
        Sum of `Flag`.
    line : int64[rows]
        Line of the source file; 0 where it has none.
    source : str
        File name or names.
    format : str
        Name of the reader.
    labels : mapping
        What the file says of itself: ``system``, ``framework``, ``version``, ``model``, ``layer`` ...
    time_is : {"step", "rank"}
        ``step``: every row's time is that of the whole step (the slowest rank's); ``rank``: the rank's own.
    dropped : sequence of Drop
        What the reader left out.
    notes : sequence of str
        What a person should know of this source, in full sentences.
    """

    instance: NDArray[np.int32]
    step: Ints
    rank: NDArray[np.int32]
    batch: Ints
    context_tokens: Ints
    query_tokens: Ints
    context_variance: Floats
    prefill_requests: Ints
    prefill_tokens: Ints
    prefill_pairs: Floats
    time_s: Floats
    clock_s: Floats
    steps: Floats
    flags: NDArray[np.uint8]
    line: Ints
    source: str = ""
    format: str = ""
    labels: Mapping[str, Any] = field(default_factory=dict)
    time_is: str = "step"
    dropped: tuple[Drop, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.step)

    def select(self, rows: NDArray[Any], *drops: Drop) -> StepRecords:
        """The rows of a mask or an index array, in the order given; `drops` are added to `dropped`."""
        kept = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(self, **kept, dropped=(*self.dropped, *drops))

    def step_starts(self) -> Ints:
        """int64[steps + 1], first row of every (instance, step), then the number of rows."""
        new = np.ones(len(self), dtype=bool)
        new[1:] = (np.diff(self.step) != 0) | (np.diff(self.instance) != 0)
        return np.append(np.flatnonzero(new), len(self)).astype(np.int64)

    def where(self, row: int) -> str:
        """``file:line`` of a row, for messages."""
        return f"{self.source}:{self.line[row]}" if self.line[row] else self.source

    @classmethod
    def build(cls, columns: Mapping[str, Any], **about: Any) -> StepRecords:
        """From columns by name (the rest get their neutral values), sorted by instance, step and rank.

        Parameters
        ----------
        columns : mapping of str to array
            At least ``batch`` and ``time_s``; without ``step`` every row is a step of its own.
        **about
            ``source``, ``format``, ``labels``, ``time_is``, ``dropped``, ``notes``.
        """
        rows = len(columns["time_s"])
        whole: dict[str, Any] = {name: columns.get(name) for name in COLUMNS}
        neutral: dict[str, Any] = {
            "step": np.arange(rows),
            "context_tokens": -1,
            "query_tokens": whole["batch"],
            "context_variance": np.nan,
            "prefill_pairs": np.nan,
            "clock_s": np.nan,
            "steps": 1.0,
        }
        for name, dtype in COLUMNS.items():
            value = neutral.get(name, 0) if whole[name] is None else whole[name]
            whole[name] = np.array(np.broadcast_to(np.asarray(value), rows), dtype=dtype)
        order = np.lexsort((whole["rank"], whole["step"], whole["instance"]))
        if not (np.diff(order) == 1).all():
            whole = {name: column[order] for name, column in whole.items()}
        return cls(**whole, **about)

    @classmethod
    def concatenate(cls, parts: Iterator[StepRecords] | list[StepRecords]) -> StepRecords:
        """One table of several of the same format; instances are renumbered so that they stay apart."""
        parts = list(parts)
        first, offset, columns = parts[0], 0, {name: [] for name in COLUMNS}  # type: ignore[var-annotated]
        for part in parts:
            for name in COLUMNS:
                column = getattr(part, name)
                columns[name].append(column + offset if name == "instance" else column)
            offset += int(part.instance.max()) + 1 if len(part) else 0
        return cls(
            **{name: np.concatenate(pieces) for name, pieces in columns.items()},
            source=", ".join(dict.fromkeys(p.source for p in parts)),
            format=first.format,
            labels=first.labels,
            time_is=first.time_is,
            dropped=tuple(d for p in parts for d in p.dropped),
            notes=tuple(dict.fromkeys(n for p in parts for n in p.notes)),
        )


_DTYPES = {"instance": np.int32, "rank": np.int32, "flags": np.uint8}
_FLOATS = ("context_variance", "prefill_pairs", "time_s", "clock_s", "steps")
COLUMNS: Mapping[str, Any] = {
    f.name: _DTYPES.get(f.name, np.float64 if f.name in _FLOATS else np.int64)
    for f in fields(StepRecords)[:15]
}
"""Names and dtypes of the columns."""

"""Tables of a live run: their columns, and how they are read and written. Whoever analyses a run reads only these.

``trace.parquet`` is what was to be sent, ``requests.parquet`` what became of it, ``scrapes.parquet`` what ranks said of
themselves meanwhile, ``steps.parquet`` what single steps took where that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import polars as pl

from equipoise._files import parquet_errors
from equipoise.errors import InputError, nearest
from equipoise.live.files import replacing

__all__ = ["ANSWERED", "PROBE", "TABLES", "Outcome", "empty", "read_table", "table_path", "write_table"]


class Outcome(StrEnum):
    """How a request ended."""

    OK = "ok"
    """Answered in full, with as many tokens as were asked for."""
    WRONG_LENGTH = "wrong_length"
    """Answered in full, with another number of prompt or output tokens than planned."""
    REFUSED_429 = "refused_429"
    """The engine had no room."""
    PIN_REFUSED = "pin_refused"
    """The engine has no such rank, or no such worker."""
    TOO_LONG = "too_long"
    """Longer than the engine's context."""
    REFUSED = "refused"
    """Any other status."""
    REJECTED = "rejected"
    """The router turned it away; it was never sent."""
    UNREACHABLE = "unreachable"
    """Nobody answered at the address."""
    RESET = "reset"
    """The connection broke after it was sent."""
    CUT_SHORT = "cut_short"
    """The answer ended before its end, or with an error in it."""
    UNREADABLE = "unreadable"
    """The answer was no stream of events."""
    TIMEOUT = "timeout"
    """No end within the time allowed."""
    STOPPED = "stopped"
    """The run was stopped while it was under way."""


ANSWERED = (Outcome.OK, Outcome.WRONG_LENGTH)
"""Outcomes of requests whose times can be used."""

PROBE = "probe"
"""Policy of the rows of a probe, and where its steps come from."""

_KEYS = {"policy": pl.String(), "repeat": pl.Int32()}

TABLES: Mapping[str, Mapping[str, pl.DataType]] = {
    "trace": {
        "request": pl.Int64(),
        "arrival_s": pl.Float64(),
        "session": pl.Int64(),
        "turn": pl.Int32(),
        "think_s": pl.Float64(),
        "prompt_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
        "class": pl.String(),
    },
    "requests": {
        **_KEYS,
        "order": pl.Int32(),
        "request": pl.Int64(),
        "intended_s": pl.Float64(),
        "sent_s": pl.Float64(),
        "first_token_s": pl.Float64(),
        "finished_s": pl.Float64(),
        "prompt_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
        "rank": pl.Int32(),
        "instance": pl.String(),
        "outcome": pl.String(),
        "message": pl.String(),
        "itl_ms": pl.List(pl.Float32()),
    },
    "scrapes": {
        **_KEYS,
        "at_s": pl.Float64(),
        "instance": pl.String(),
        "rank": pl.Int32(),
        "running": pl.Int64(),
        "waiting": pl.Int64(),
        "context_tokens": pl.Int64(),
        "kv_usage": pl.Float64(),
        "own_requests": pl.Int64(),
        "own_context_tokens": pl.Int64(),
    },
    "steps": {
        "instance": pl.Int32(),
        "step": pl.Int64(),
        "rank": pl.Int32(),
        "clock_s": pl.Float64(),
        "batch": pl.Int64(),
        "context_tokens": pl.Int64(),
        "prefill_tokens": pl.Int64(),
        "time_ms": pl.Float64(),
        "source": pl.String(),
    },
}
"""Columns and their types, table by table. Those of ``steps`` are known to `equipoise.calibrate.readers`."""


def table_path(folder: Path, table: str) -> Path:
    """Where a table lies in the folder of a run."""
    return folder / f"{table}.parquet"


def empty(table: str) -> pl.DataFrame:
    """A table without rows."""
    return pl.DataFrame(schema=dict(TABLES[table]))


def write_table(path: Path, table: str, frame: pl.DataFrame) -> None:
    """Write a table; the file appears, or is replaced, only when it is complete.

    Raises
    ------
    InputError
        It cannot be written.
    """
    with replacing(path) as file:
        frame.select(pl.col(n).cast(d) for n, d in TABLES[table].items()).write_parquet(
            file, compression="zstd"
        )


def read_table(path: Path, table: str) -> pl.DataFrame:
    """Read a table; columns this release does not know are left out.

    Raises
    ------
    InputError
        The file is not there or is no Parquet, or a column is missing or of another type.
    """
    with parquet_errors(path, fix="run it again"), path.open("rb") as file:
        frame = pl.read_parquet(file)
    for name, dtype in TABLES[table].items():
        if name not in frame.columns:
            raise InputError(
                f"there is no column {name!r}", where=str(path), fix=nearest(name, frame.columns)
            )
        if frame.schema[name] != dtype:
            try:
                frame = frame.with_columns(pl.col(name).cast(dtype))
            except pl.exceptions.PolarsError:
                raise InputError(
                    f"the column {name!r} is {frame.schema[name]}", where=str(path), fix=f"it must be {dtype}"
                ) from None
    return frame.select(list(TABLES[table]))

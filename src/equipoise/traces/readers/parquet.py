"""Parquet: our own lossless form, and columns of any other file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from equipoise._files import parquet_errors
from equipoise.errors import TraceError
from equipoise.traces.readers.format import Format, Head, Job
from equipoise.traces.readers.kinds import Identity, Kind, Number, WallClock
from equipoise.traces.readers.problems import Problems
from equipoise.traces.readers.rows import Columns, Schema, parse_rows
from equipoise.traces.trace import PrefixBlocks, Trace

if TYPE_CHECKING:
    import polars as pl

__all__ = ["FORMAT", "MAGIC", "META_KEY", "VERSION", "Meta", "columns", "read_columns"]

MAGIC = b"PAR1"
META_KEY = "equipoise.trace"
VERSION = 1


class Meta(msgspec.Struct, forbid_unknown_fields=False):
    """What the columns of our own files do not say (JSON under the key ``equipoise.trace``)."""

    version: int
    name: str
    arrivals_known: bool
    source: str
    block_tokens: int


def columns(path: Path) -> tuple[str, ...]:
    """Column names of a Parquet file."""
    import polars as pl

    with parquet_errors(path, TraceError), path.open("rb") as file:
        return tuple(pl.read_parquet_schema(file))


def _meta(path: Path) -> Meta | None:
    import polars as pl

    with parquet_errors(path, TraceError), path.open("rb") as file:
        text = pl.read_parquet_metadata(file).get(META_KEY)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=Meta)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TraceError(
            f"the metadata {META_KEY!r} is not ours ({error})", where=str(path), fix="convert again"
        ) from None


def _sniff(head: Head) -> bool:
    return head.magic == MAGIC and not head.folder and _meta(head.path) is not None


def _read(job: Job) -> Trace:
    """Our own form: nothing is sorted, shifted or guessed."""
    path = job.path
    meta = _meta(path)
    if meta is None:
        raise TraceError(f"has no metadata {META_KEY!r}", where=str(path), fix="read it as format parquet")
    if meta.version > VERSION:
        raise TraceError(
            f"is of version {meta.version}", where=str(path), fix=f"this release reads up to {VERSION}"
        )
    frame = _frame(path, None)
    data: dict[str, Any] = {}
    for name, dtype in _COLUMNS.items():
        if name not in frame.columns:
            raise TraceError(f"there is no column {name!r}", where=str(path), fix="convert again")
        values = frame[name]
        if values.null_count() or not values.dtype.is_numeric():
            raise TraceError(
                f"the column {name} holds something that is not a number",
                where=str(path),
                fix="convert again",
            )
        data[name] = np.ascontiguousarray(values.to_numpy(), dtype=dtype)
        if not values.dtype.is_float() and not (data[name] == values.to_numpy()).all():
            raise TraceError(
                f"the column {name} holds a number out of range", where=str(path), fix="convert again"
            )
    prefix = _prefix(frame, meta, path) if "prefix_blocks" in frame.columns else None
    del frame
    return Trace(
        name=meta.name, arrivals_known=meta.arrivals_known, prefix=prefix, source=meta.source, **data
    )


_COLUMNS: dict[str, type[np.generic]] = {
    "arrival_s": np.float64,
    "context_tokens": np.int64,
    "output_tokens": np.int64,
    "session": np.int64,
    "turn": np.int32,
    "think_s": np.float64,
}


def _prefix(frame: pl.DataFrame, meta: Meta, path: Path) -> PrefixBlocks:
    import polars as pl

    blocks = frame["prefix_blocks"]
    if blocks.dtype != pl.List(pl.Int64) or blocks.null_count() or meta.block_tokens < 1:
        raise TraceError(
            "the column prefix_blocks is not a list of whole numbers", where=str(path), fix="convert again"
        )
    lengths = blocks.list.len().to_numpy().astype(np.int64)
    ids = blocks.filter(blocks.list.len() > 0).explode()
    if ids.null_count():
        raise TraceError("prefix_blocks holds a null", where=str(path), fix="convert again")
    return PrefixBlocks(np.concatenate([[0], np.cumsum(lengths)]), ids.to_numpy(), meta.block_tokens)


def read_columns(path: Path, schema: Schema, problems: Problems) -> Columns:
    """Columns of any Parquet file; row numbers stand in for line numbers, from 1."""
    fields = schema.present(columns(path), where=str(path))
    frame = _frame(path, [f.column for f in fields])
    fast: Columns = {}
    for f in fields:
        values = _fast(frame[f.column], f.kind)
        if values is None:
            break
        fast[f.target] = values
    else:
        return fast

    def rows() -> Iterator[tuple[int, Callable[[str], Any]]]:
        for number, values in enumerate(frame.iter_rows(named=True), start=1):
            yield number, values.__getitem__

    return parse_rows(rows(), fields, schema, problems, _value)


def _fast(series: pl.Series, kind: Kind) -> Any | None:
    import polars as pl

    if isinstance(kind, Number) and series.dtype.is_numeric() and not series.dtype.is_decimal():
        return kind.column(series)
    if isinstance(kind, WallClock) and isinstance(series.dtype, pl.Datetime) and not series.null_count():
        return series.dt.timestamp("ns").to_numpy()
    if isinstance(kind, Identity) and (series.dtype.is_integer() or series.dtype == pl.String):
        return kind.column(series.cast(pl.String))
    return None


def _value(kind: Kind, raw: Any) -> Any:
    if isinstance(kind, WallClock) and hasattr(raw, "isoformat"):
        raw = raw.isoformat()
    return kind.json(raw)


def _frame(path: Path, names: list[str] | None) -> pl.DataFrame:
    import polars as pl

    with parquet_errors(path, TraceError), path.open("rb") as file:
        return pl.read_parquet(file, columns=names)


FORMAT = Format(
    name="equipoise",
    title="our own Parquet: every column and flag, prefix blocks included",
    sniff=_sniff,
    read=_read,
    example="",
)

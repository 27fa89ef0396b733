"""Write a trace: our own Parquet (lossless), Mooncake JSON lines, canonical CSV. Nothing is left half-written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from equipoise._replacing import replacing
from equipoise.errors import TraceError, nearest
from equipoise.traces.readers.mooncake import BLOCK_TOKENS
from equipoise.traces.readers.parquet import META_KEY, VERSION, Meta
from equipoise.traces.trace import PrefixBlocks, Trace

if TYPE_CHECKING:
    import polars as pl

__all__ = ["WRITERS", "write"]

ROWS_AT_A_TIME = 1 << 16
ENDINGS = {".parquet": "equipoise", ".jsonl": "mooncake", ".csv": "csv"}
COLUMNS = ("arrival_s", "context_tokens", "output_tokens", "session", "turn", "think_s")


def write(trace: Trace, path: str | PathLike[str], format: str | None = None) -> tuple[str, ...]:
    """Write a trace to a file; the file appears, or is replaced, only when it is complete.

    Parameters
    ----------
    trace : Trace
    path : path
        Ends in ``.parquet``, ``.jsonl`` or ``.csv``; the latter two also with ``.gz`` or ``.zst``.
    format : "equipoise", "mooncake" or "csv", optional
        Told from the ending if not given.

    Returns
    -------
    tuple of str
        What the format could not hold, in words; empty for ``equipoise``.

    Raises
    ------
    TraceError
        Unknown ending or format, or the file cannot be written.
    """
    path = Path(path)
    name, packing = _split(path)
    if format is None:
        ending = Path(name).suffix.lower()
        if ending not in ENDINGS:
            raise TraceError(
                f"the ending {ending or '(none)'} says no format",
                where=str(path),
                fix=f"use {', '.join(ENDINGS)} or name one",
            )
        format = ENDINGS[ending]
    if format not in WRITERS:
        raise TraceError(f"traces cannot be written as {format!r}", fix=nearest(format, WRITERS))
    if format == "equipoise" and packing:
        raise TraceError("Parquet is compressed inside", where=str(path), fix=f"leave out {packing}")
    with _complete(path, packing) as file:
        WRITERS[format](trace, file)
    return _lost(trace, format)


def _split(path: Path) -> tuple[str, str]:
    for packing in (".gz", ".zst"):
        if path.name.lower().endswith(packing):
            return path.name[: -len(packing)], packing
    return path.name, ""


@contextmanager
def _complete(path: Path, packing: str) -> Iterator[IO[bytes]]:
    """A file that takes its name only when all is written; bytes do not depend on the time."""
    fix = "check the folder and its rights"
    with replacing(path, error=TraceError, fix=fix) as raw, _packed(raw, packing) as file:
        yield file


@contextmanager
def _packed(raw: IO[bytes], packing: str) -> Iterator[Any]:
    if packing == ".gz":
        import gzip

        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as file:
            yield file
    elif packing == ".zst":
        import zstandard

        with zstandard.ZstdCompressor(level=3).stream_writer(raw, closefd=False) as file:
            yield file
    else:
        yield raw


def _frame(trace: Trace, rows: slice = slice(None)) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame({name: np.ascontiguousarray(getattr(trace, name)[rows]) for name in COLUMNS})


def _write_parquet(trace: Trace, file: IO[bytes]) -> None:
    frame = _frame(trace)
    block_tokens = 0
    if trace.prefix is not None:
        frame = frame.with_columns(_blocks(trace.prefix).alias("prefix_blocks"))
        block_tokens = trace.prefix.block_tokens
    meta = Meta(VERSION, trace.name, trace.arrivals_known, trace.source, block_tokens)
    frame.write_parquet(file, compression="zstd", metadata={META_KEY: msgspec.json.encode(meta).decode()})


def _blocks(prefix: PrefixBlocks) -> pl.Series:
    """Ids of each request as a list; an empty one stays a list."""
    import polars as pl

    lengths = np.diff(prefix.offsets)
    rows = np.arange(len(lengths))
    flat = pl.DataFrame({"row": np.repeat(rows, lengths), "ids": prefix.ids})
    lists = flat.group_by("row", maintain_order=True).agg("ids")
    joined = pl.DataFrame({"row": rows}).join(lists, on="row", how="left", maintain_order="left")
    return joined["ids"].fill_null(pl.Series([[]], dtype=pl.List(pl.Int64)))


def _write_csv(trace: Trace, file: IO[bytes]) -> None:
    file.write((",".join(COLUMNS) + "\n").encode())
    for begin in range(0, len(trace), ROWS_AT_A_TIME):
        # polars writes the shortest digits that read back as the same double
        file.write(
            _frame(trace, slice(begin, begin + ROWS_AT_A_TIME)).write_csv(include_header=False).encode()
        )


def _write_mooncake(trace: Trace, file: IO[bytes]) -> None:
    blocks = trace.prefix if trace.prefix is not None and trace.prefix.block_tokens == BLOCK_TOKENS else None
    encoder = msgspec.json.Encoder()
    for begin in range(0, len(trace), ROWS_AT_A_TIME):
        rows = range(begin, min(begin + ROWS_AT_A_TIME, len(trace)))
        # to the nanosecond: enough for any clock, and no 27481.999999999996
        milliseconds = np.round(trace.arrival_s[rows.start : rows.stop] * 1e3, 6).tolist()
        records = []
        for i, ms in zip(rows, milliseconds, strict=True):
            record: dict[str, Any] = {
                "timestamp": int(ms) if ms == int(ms) else ms,
                "input_length": int(trace.context_tokens[i]),
                "output_length": int(trace.output_tokens[i]),
            }
            if blocks is not None:
                record["hash_ids"] = blocks.ids[blocks.offsets[i] : blocks.offsets[i + 1]].tolist()
            records.append(record)
        file.write(encoder.encode_lines(records))


WRITERS: dict[str, Callable[[Trace, IO[bytes]], None]] = {
    "equipoise": _write_parquet,
    "mooncake": _write_mooncake,
    "csv": _write_csv,
}
"""Formats that can be written, by name."""


def _lost(trace: Trace, format: str) -> tuple[str, ...]:
    """What does not fit into the format."""
    if format == "equipoise":
        return ()
    lost = []
    if format == "mooncake":
        if (trace.session >= 0).any():
            lost.append("sessions, turns and think times are not part of the Mooncake format")
        if trace.prefix is not None and trace.prefix.block_tokens != BLOCK_TOKENS:
            lost.append(
                f"prefix blocks of {trace.prefix.block_tokens} tokens left out (Mooncake has {BLOCK_TOKENS})"
            )
    elif trace.prefix is not None:
        lost.append("prefix blocks are not part of the CSV")
    if not trace.arrivals_known:
        lost.append("the file does not say that its arrivals were drawn, not recorded")
    return tuple(lost)

"""Columns of CSV and Parquet files as polars frames, a block at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise import _files
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.errors import CalibrationError
from equipoise.traces.readers.json_lines import decode
from equipoise.traces.readers.table import BOM, MAX_COLUMNS, split_header

if TYPE_CHECKING:
    import polars as pl

__all__ = ["MAGIC", "csv_blocks", "json_blocks", "parquet_batches", "parquet_columns"]

MAGIC = b"PAR1"
BATCH_ROWS = 1 << 18


def parquet_columns(path: Path) -> tuple[str, ...]:
    """Column names of a Parquet file."""
    import polars as pl

    with _parquet_errors(path), path.open("rb") as file:
        return tuple(pl.read_parquet_schema(file))


def parquet_batches(path: Path, names: list[str]) -> Iterator[tuple[int, pl.DataFrame]]:
    """Number of the first row (from 1), and rows, for as many at a time as a person's machine holds easily."""
    import polars as pl

    line = 1
    while True:
        with _parquet_errors(path):
            frame = pl.scan_parquet(path, glob=False).select(names).slice(line - 1, BATCH_ROWS).collect()
        if frame.height:
            yield line, frame
        if frame.height < BATCH_ROWS:
            return
        line += frame.height


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException) as error:
        reason = " ".join(str(error).split())[:100]
        raise CalibrationError(
            f"is not a readable Parquet file ({reason})", where=str(path), fix="write it again"
        ) from None


def csv_blocks(
    path: Path,
    ledger: Ledger,
    wanted: Collection[str],
    *,
    check: Callable[[tuple[str, ...]], None],
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Number of the first line, and the wanted columns as text, for every block of a CSV file with a header.

    One line is one row: a quoted field may hold the separator, not a newline. An empty field is null.

    Parameters
    ----------
    path : Path
        Plain, gzip or zstd.
    ledger : Ledger
        Books lines with too many or too few fields.
    wanted : collection of str
        Columns; those that the file has are given.
    check : callable
        Told the header; raises where it is of no use.
    """
    header: tuple[str, ...] = ()
    separator = ","
    for line, data in _files.line_blocks(
        path, error=CalibrationError, holds="a table holds one row a line", cut=partial(ledger.cut, path)
    ):
        if not header:
            block = data.removeprefix(BOM)
            while block and not block.partition(b"\n")[0].strip():
                block, line = block.partition(b"\n")[2], line + 1
            first, _, data = block.partition(b"\n")
            if not first:
                continue
            header, separator = _header(path, line, first)
            check(header)
            line += 1
        if data.strip():
            yield from _frame(path, ledger, line, data, header, separator, wanted)
    if not header:
        raise CalibrationError("the file is empty", where=str(path), fix="a table has a header and rows")


def _header(path: Path, line: int, first: bytes) -> tuple[tuple[str, ...], str]:
    names, separator = split_header(first.rstrip(b"\r").decode(errors="replace"))
    if len(names) > MAX_COLUMNS:
        raise CalibrationError(
            f"the header has {len(names)} columns", where=f"{path}:{line}", fix=f"at most {MAX_COLUMNS}"
        )
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise CalibrationError(
            f"the column {twice!r} is there twice", where=f"{path}:{line}", fix="rename one"
        )
    return tuple(names), separator


def _frame(
    path: Path,
    ledger: Ledger,
    line: int,
    data: bytes,
    header: tuple[str, ...],
    separator: str,
    wanted: Collection[str],
) -> Iterator[tuple[int, pl.DataFrame]]:
    """The block at once, or piece by piece around the lines that are not rows."""
    frame = _parse(data, header, separator, wanted)
    if frame is not None and frame.height == _files.count_lines(data):
        yield line, frame
        return
    good: list[bytes] = []
    start = line
    for number, raw in enumerate(data.split(b"\n"), start=line):
        one = _parse(raw + b"\n", header, separator, wanted) if raw.strip() else None
        if one is not None and one.height == 1:
            if not good:
                start = number
            good.append(raw)
            continue
        if raw.strip():
            text = raw[:60].decode(errors="replace")
            ledger.bad(
                f"the line {text!r} is not a row", path=path, line=number, expected=f"{len(header)} fields"
            )
        if good:
            yield from _whole(start, good, header, separator, wanted)
            good = []
    if good:
        yield from _whole(start, good, header, separator, wanted)


def _whole(
    start: int, good: list[bytes], header: tuple[str, ...], separator: str, wanted: Collection[str]
) -> Iterator[tuple[int, pl.DataFrame]]:
    frame = _parse(b"\n".join(good) + b"\n", header, separator, wanted)
    if frame is not None:
        yield start, frame


def _parse(
    data: bytes, header: tuple[str, ...], separator: str, wanted: Collection[str]
) -> pl.DataFrame | None:
    import polars as pl

    at = [i for i, name in enumerate(header) if name in wanted]
    names = [f"column_{i}" for i in range(len(header))]  # by position: header names may be empty
    try:
        frame = pl.read_csv(
            io.BytesIO(data),
            has_header=False,
            separator=separator,
            schema=dict.fromkeys(names, pl.String),
            infer_schema=False,
            columns=[names[i] for i in at],
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return None
    return frame.rename({names[i]: header[i] for i in at})


def json_blocks(
    path: Path, ledger: Ledger, head: bytes | None = None
) -> Iterator[tuple[int, dict[str, list[object]]]]:
    """Number of the first line, and columns by key, for blocks of JSON lines; lines of a block follow each other.

    Parameters
    ----------
    path : Path
    ledger : Ledger
        Books lines that are no objects.
    head : bytes, optional
        Look at the first object in here only; what is no JSON is passed over.
    """
    blocks = (
        _files.line_blocks(
            path, error=CalibrationError, holds="one JSON object a line", cut=partial(ledger.cut, path)
        )
        if head is None
        else iter([(1, head.removeprefix(BOM).lstrip().partition(b"\n")[0])])
    )
    names: dict[str, None] = {}
    for line, data in blocks:
        start, good = line, list[dict[str, object]]()
        for number, raw in enumerate(data.split(b"\n"), start=line):
            if not raw.strip():
                record: object = None
            else:
                try:
                    record = decode(raw)
                    if not isinstance(record, dict):
                        raise ValueError("is not a JSON object")
                except ValueError as error:
                    if head is not None:
                        return
                    ledger.bad(
                        f"the line {raw[:40].decode(errors='replace')!r} {error}",
                        path=path,
                        line=number,
                        expected="one JSON object a line",
                    )
                    record = None
            if isinstance(record, dict):
                if not good:
                    start = number
                good.append(record)
                if not names:
                    names = dict.fromkeys(record)
            elif good:
                yield start, _by_key(good, names)
                good = []
        if good:
            yield start, _by_key(good, names)


def _by_key(records: list[dict[str, object]], names: dict[str, None]) -> dict[str, list[object]]:
    return {name: [record.get(name) for record in records] for name in names}

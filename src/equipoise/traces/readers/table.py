"""CSV files: polars on blocks of lines, and line by line where a block holds anything doubtful."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from equipoise.errors import TraceError
from equipoise.traces.readers.kinds import Field
from equipoise.traces.readers.problems import Problems
from equipoise.traces.readers.rows import Columns, Schema, concatenate, parse_rows
from equipoise.traces.readers.source import count_lines, line_blocks

__all__ = ["read_table", "split_header"]

BOM = b"\xef\xbb\xbf"
MAX_COLUMNS = 10_000


def read_table(path: Path, schema: Schema, problems: Problems, *, fast: bool = True) -> Columns:
    """Read the columns of a CSV file with a header line.

    One line is one request: a quoted field may hold the separator, not a newline. Empty lines are passed over.

    Parameters
    ----------
    path : Path
        Plain, gzip or zstd.
    schema : Schema
    problems : Problems
        Books bad lines.
    fast : bool
        False reads every line on the exact path; the result is the same (tests compare the two).

    Raises
    ------
    TraceError
        No header, a missing column, more bad lines than tolerated.
    """
    blocks = line_blocks(path)
    first_line, block = next(blocks, (1, b""))
    header, separator, block, first_line = _header(path, first_line, block)
    fields = schema.present(header, where=f"{path}:{first_line - 1}")
    parts = []
    for line, data in _with_first(first_line, block, blocks):
        part = _fast(data, header, separator, fields, schema, problems) if fast else None
        if part is None:
            part = _exact(line, data, header, separator, fields, schema, problems)
        parts.append(part)
    return concatenate(parts)


def split_header(line: str) -> tuple[list[str], str]:
    """Column names and the separator (comma, else semicolon or tab) of a header line."""
    separator = "," if "," in line else ";" if ";" in line else "\t" if "\t" in line else ","
    try:
        names = next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error:
        names = line.split(separator)
    return [name.strip() for name in names], separator


def _header(path: Path, line: int, block: bytes) -> tuple[list[str], str, bytes, int]:
    """Header, separator, what follows it in the block, and the number of the next line."""
    block = block.removeprefix(BOM)
    while block.strip():
        first, _, rest = block.partition(b"\n")
        if first.strip():
            break
        block, line = rest, line + 1
    else:
        raise TraceError(
            "the file is empty", where=str(path), fix="a trace holds a header and one request a line"
        )
    try:
        names, separator = split_header(first.decode().rstrip("\r"))
    except UnicodeDecodeError:
        raise TraceError("is not UTF-8 text", where=f"{path}:{line}", fix="expected a CSV header") from None
    if len(names) > MAX_COLUMNS:
        raise TraceError(
            f"there are {len(names)} columns", where=f"{path}:{line}", fix=f"at most {MAX_COLUMNS}"
        )
    twice = sorted({name for name in names if name and names.count(name) > 1}) if len(names) < 1000 else []
    if twice:
        raise TraceError(f"the column {twice[0]!r} is there twice", where=f"{path}:{line}", fix="rename one")
    return names, separator, rest, line + 1


def _with_first(line: int, block: bytes, rest: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield line, block
    yield from rest


def _fast(
    data: bytes,
    header: list[str],
    separator: str,
    fields: tuple[Field, ...],
    schema: Schema,
    problems: Problems,
) -> Columns | None:
    """A whole block at once, or None: any doubt is settled line by line."""
    import polars as pl

    stray_return = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    if not data or data.isspace() or stray_return:
        return None
    names = [f"column_{i}" for i in range(1, len(header) + 1)]  # by position: header names may be empty
    try:
        frame = pl.read_csv(
            io.BytesIO(data),
            has_header=False,
            separator=separator,
            schema=dict.fromkeys(names, pl.String),
            infer_schema=False,
            columns=[names[header.index(f.column)] for f in fields],
        )
    except pl.exceptions.PolarsError:
        return None
    if frame.height != count_lines(data):
        return None
    void = None
    if schema.drop_zero:
        (field,) = (f for f in fields if f.target == schema.drop_zero[0])
        outputs = field.kind.column(frame[names[header.index(field.column)]])
        if outputs is None:
            return None
        void = outputs == 0
        frame = frame.filter(~void)
    columns: Columns = {}
    for f in fields:
        values = f.kind.column(frame[names[header.index(f.column)]])
        if values is None:
            return None
        columns[f.target] = values
    if schema.drop_zero and void is not None:
        problems.drop(schema.drop_zero[1], int(void.sum()))
    return columns


def _exact(
    line: int,
    data: bytes,
    header: list[str],
    separator: str,
    fields: tuple[Field, ...],
    schema: Schema,
    problems: Problems,
) -> Columns:
    """The block line by line."""

    def rows() -> Iterator[tuple[int, Callable[[str], Any]]]:
        for number, raw in enumerate(data.split(b"\n"), start=line):
            if not raw.strip():
                continue
            try:
                values = next(csv.reader([raw.decode().rstrip("\r")], delimiter=separator, strict=True))
            except UnicodeDecodeError:
                problems.bad("is not UTF-8 text", line=number, expected=f"{len(header)} fields")
            except csv.Error as error:
                problems.bad(
                    f"the quotes do not match ({error})", line=number, expected=f"{len(header)} fields"
                )
            else:
                if len(values) > len(header):
                    problems.bad(
                        f"there are {len(values)} fields", line=number, expected=f"{len(header)} fields"
                    )
                    continue
                yield number, _Record(zip(header, values, strict=False)).__getitem__

    return parse_rows(rows(), fields, schema, problems, lambda kind, raw: kind.text(raw))


class _Record(dict[str, str]):
    """A short line leaves its last fields empty."""

    def __missing__(self, key: str) -> str:
        return ""

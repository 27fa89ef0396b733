"""JSON lines: msgspec on blocks of lines into typed records, and line by line where a block holds anything doubtful."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from equipoise.errors import TraceError
from equipoise.traces.readers.json_array import array_blocks, is_array
from equipoise.traces.readers.kinds import Blocks, Field, Identity, Kind, Number, WallClock, block_ids
from equipoise.traces.readers.problems import Problems, show
from equipoise.traces.readers.rows import MISSING, Columns, Schema, concatenate, parse_rows
from equipoise.traces.readers.source import line_blocks

__all__ = ["decode", "read_json_lines"]


def read_json_lines(path: Path, schema: Schema, problems: Problems, *, fast: bool = True) -> Columns:
    """Read the columns of a file with one JSON object a line; empty lines are passed over.

    One JSON array of such objects is read too; places are then numbers of elements.

    Parameters
    ----------
    path : Path
        Plain, gzip or zstd.
    schema : Schema
        Keys that are not in it are ignored.
    problems : Problems
    fast : bool
        False reads every line on the exact path; the result is the same (tests compare the two).

    Raises
    ------
    TraceError
        The file is empty, or holds more bad lines than tolerated.
    """
    parts = []
    decoder = _decoder(schema.fields)
    array = is_array(path)
    if array:
        problems.unit = "element"
    for line, data in array_blocks(path) if array else line_blocks(path):
        part = _fast(data, decoder, schema, problems) if fast else None
        parts.append(_exact(line, data, schema, problems) if part is None else part)
    if not parts:
        raise TraceError("the file is empty", where=str(path), fix="a trace holds one JSON object a line")
    return concatenate(parts)


def decode(line: bytes) -> Any:
    """One JSON value; ValueError says what is wrong with the text."""
    try:
        return msgspec.json.decode(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"is not JSON ({error})") from None


def _decoder(fields: tuple[Field, ...]) -> msgspec.json.Decoder[Any]:
    """Typed records; keys may be any text, so the attributes are numbered."""
    columns: list[Any] = []
    rename = {}
    for i, f in enumerate(fields):
        rename[f"f{i}"] = f.column
        kind = _json_type(f.kind)
        may_be_null = (isinstance(f.kind, Number) and f.kind.empty is not None) or isinstance(
            f.kind, Identity | Blocks
        )
        if may_be_null:
            kind = kind | None
        columns.append((f"f{i}", kind) if f.required else (f"f{i}", kind, None))
    # kw_only: optional fields may stand before required ones
    return msgspec.json.Decoder(msgspec.defstruct("Row", columns, rename=rename, kw_only=True, gc=False))


def _json_type(kind: Kind) -> Any:
    if isinstance(kind, Number):
        return int if kind.whole else float
    if isinstance(kind, WallClock):
        return str
    return int | str if isinstance(kind, Identity) else list[int]


def _fast(
    data: bytes, decoder: msgspec.json.Decoder[Any], schema: Schema, problems: Problems
) -> Columns | None:
    try:
        records = decoder.decode_lines(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    dropped = 0
    if schema.drop_zero:
        (i,) = (i for i, f in enumerate(schema.fields) if f.target == schema.drop_zero[0])
        output = attrgetter(f"f{i}")
        kept = [record for record in records if output(record) != 0]
        dropped, records = len(records) - len(kept), kept
    columns: Columns = {}
    for i, f in enumerate(schema.fields):
        raw = list(map(attrgetter(f"f{i}"), records))
        values = _blocks(raw) if isinstance(f.kind, Blocks) else f.kind.values(raw)
        if values is None:
            return None
        columns[f.target] = values
    if schema.drop_zero:
        problems.drop(schema.drop_zero[1], dropped)
    return columns


def _blocks(raw: list[list[int] | None]) -> tuple[Any, Any] | None:
    lists = [ids or [] for ids in raw]
    lengths = np.array([len(ids) for ids in lists], dtype=np.int64)
    try:
        return lengths, block_ids([value for ids in lists for value in ids])
    except OverflowError:
        return None


def _exact(line: int, data: bytes, schema: Schema, problems: Problems) -> Columns:
    """The block line by line."""
    a_line = "a line" if problems.unit == "line" else "an element"

    def rows() -> Iterator[tuple[int, Callable[[str], Any]]]:
        for number, raw in enumerate(data.split(b"\n"), start=line):
            if not raw.strip():
                continue
            try:
                record = decode(raw)
                if not isinstance(record, dict):
                    raise ValueError("is not a JSON object")
            except ValueError as error:
                text = show(raw.decode(errors="replace").strip(), 40)
                problems.bad(f"{text} {error}", line=number, expected=f"one JSON object {a_line}")
                continue
            yield number, _Record(record).__getitem__

    return parse_rows(rows(), schema.fields, schema, problems, lambda kind, raw: kind.json(raw))


class _Record(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        return MISSING

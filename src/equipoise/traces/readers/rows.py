"""The exact path: one record after the other, every value named when it is wrong. The fast paths fall back to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.errors import TraceError
from equipoise.traces.readers.kinds import Blocks, Field, Kind
from equipoise.traces.readers.problems import Problems, show

__all__ = ["MISSING", "Columns", "Schema", "concatenate", "parse_rows"]

Columns = dict[str, Any]
"""Target name to numpy array, to polars Series of text, or to ``(lengths, ids)`` of prefix blocks."""

MISSING: Any = object()
"""A key that is not there at all."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a format.

    Parameters
    ----------
    fields : tuple of Field
    drop_zero : tuple of (str, str), optional
        A target and a reason: requests with 0 there are void by the format's own definition, and counted.
    """

    fields: tuple[Field, ...]
    drop_zero: tuple[str, str] | None = None

    def present(self, names: Sequence[str], where: str) -> tuple[Field, ...]:
        """Fields of a file with these columns; TraceError where a required one is missing."""
        missing = [f.column for f in self.fields if f.required and f.column not in names]
        if missing:
            raise TraceError(
                f"there is no column {' and no column '.join(repr(m) for m in missing)}",
                where=where,
                fix=f"the columns are {show(', '.join(names), 200)}",
            )
        return tuple(f for f in self.fields if f.column in names)

    def void_first(self, fields: Sequence[Field]) -> list[Field]:
        """Fields in checking order: what makes a request void comes first, its other values do not matter then."""
        return sorted(fields, key=lambda f: self.drop_zero is None or f.target != self.drop_zero[0])


def parse_rows(
    rows: Iterable[tuple[int, Callable[[str], Any]]],
    fields: Sequence[Field],
    schema: Schema,
    problems: Problems,
    parse: Callable[[Kind, Any], Any],
) -> Columns:
    """Columns of the good rows; bad ones are booked.

    Parameters
    ----------
    rows : iterable of (int, callable)
        Line number, and a function from column name to raw value (`MISSING` where there is none).
    parse : callable
        Kind and raw value to value: `Kind.text` or `Kind.json`.
    """
    kept: dict[str, list[Any]] = {f.target: [] for f in fields}
    for line, value_of in rows:
        record: dict[str, Any] = {}
        for f in schema.void_first(fields):
            raw = value_of(f.column)
            try:
                if raw is MISSING and f.required:
                    raise ValueError("there is no value")
                record[f.target] = parse(f.kind, None if raw is MISSING else raw)
            except ValueError as error:
                what = str(error) if raw is MISSING else f"{show(raw)} {error}"
                problems.bad(what, line=line, column=f.column, expected=f.kind.expected)
                break
            if schema.drop_zero and f.target == schema.drop_zero[0] and record[f.target] == 0:
                problems.drop(schema.drop_zero[1])
                break
        else:
            for target, value in record.items():
                kept[target].append(value)
    return {f.target: _column(f.kind, kept[f.target]) for f in fields}


def _column(kind: Kind, values: list[Any]) -> Any:
    if isinstance(kind, Blocks):
        lengths = np.array([len(ids) for ids in values], dtype=np.int64)
        return lengths, np.concatenate([np.zeros(0, dtype=np.int64), *values])
    if kind.dtype is None:
        import polars as pl

        return pl.Series(values, dtype=pl.String)
    return np.array(values, dtype=kind.dtype)


def concatenate(parts: list[Columns]) -> Columns:
    """One set of columns out of those of the blocks; the parts are emptied to save memory."""
    whole: Columns = {}
    for target in list(parts[0]) if parts else []:
        pieces = [part.pop(target) for part in parts]
        if isinstance(pieces[0], tuple):
            whole[target] = tuple(np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
        elif isinstance(pieces[0], np.ndarray):
            whole[target] = np.concatenate(pieces)
        else:
            import polars as pl

            whole[target] = pl.concat(pieces)
    return whole

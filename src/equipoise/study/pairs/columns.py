"""Columns of ``requests.parquet`` and ``steps.parquet``, read one by one: a file may hold tens of millions of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.errors import InputError
from equipoise.types import Floats

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Requests", "Steps", "cells_of", "open_requests", "open_steps"]

KEYS = ("trace", "cost_model", "groups", "group_policy", "policy", "deployment")
"""Columns that tell the cells of a comparison apart."""
BROKEN = "the file was cut short or damaged: write it again"


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    path: Path
    frame: pl.LazyFrame
    names: frozenset[str]

    def has(self, *names: str) -> bool:
        """Whether all these columns are there."""
        return self.names.issuperset(names)

    def take(self, column: pl.Expr) -> Any:
        """A column computed from those of the file, as an array."""
        import polars as pl

        try:
            return self.frame.select(column.alias("x")).collect()["x"].to_numpy()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _broken(self.path, error) from error


@dataclass(frozen=True, slots=True, eq=False)
class Requests(_Table):
    """The requests of one run, a row each in the order of the trace."""

    def numbers(self, name: str) -> Floats:
        """A column of numbers; NaN where there is none."""
        import polars as pl

        return np.asarray(self.take(pl.col(name).cast(pl.Float64)), np.float64)

    def first_of(self, *names: str) -> Floats:
        """The first of these columns that is there."""
        return self.numbers(next(n for n in names if n in self.names))

    def arrived_s(self) -> Floats:
        """When each request came."""
        return self.first_of("arrived_s", "arrival_s")

    def ended_s(self) -> Floats:
        """When each one ended; NaN: never."""
        return self.first_of("ended_s", "finish_s")

    def endings(self) -> Any:
        """How each one ended, in a word."""
        import polars as pl

        if "status" in self.names:
            return self.take(pl.col("status").cast(pl.String))
        return self.take(
            pl.when(pl.col("finish_s").is_finite()).then(pl.lit("finished")).otherwise(pl.lit("not_ended"))
        )


@dataclass(frozen=True, slots=True, eq=False)
class Steps(_Table):
    """The steps of one run, a row each or several to a row."""

    def counted(self) -> tuple[Floats, Floats, Floats]:
        """Start, cost and ideal of the rows that hold counted steps only; cost and ideal for all steps of a row."""
        import polars as pl

        whole = (pl.col("counted_steps") == pl.col("steps")) & (pl.col("steps") > 0)
        kept = self.take(whole)
        start, cost, ideal = (
            np.asarray(self.take(column.cast(pl.Float64)), np.float64)[kept]
            for column in (
                pl.col("start_s"),
                pl.col("cost") * pl.col("steps"),
                pl.col("ideal") * pl.col("steps"),
            )
        )
        return start, cost, ideal


def open_requests(path: Path, key: Mapping[str, Any] | None = None) -> Requests:
    """A ``requests.parquet``, of a comparison only the rows of one cell."""
    lengths = [("context_tokens",), ("output_tokens",), ("start_s",)]
    frame, names = _scan(
        path, "requests.parquet", [*lengths, ("arrived_s", "arrival_s"), ("ended_s", "finish_s")]
    )
    return Requests(path, _only(frame, names, key), names)


def open_steps(path: Path, key: Mapping[str, Any] | None = None) -> Steps:
    """A ``steps.parquet``, of a comparison only the rows of one cell."""
    frame, names = _scan(
        path, "steps.parquet", [(c,) for c in ("start_s", "steps", "counted_steps", "cost", "ideal")]
    )
    return Steps(path, _only(frame, names, key), names)


def cells_of(path: Path) -> Iterator[tuple[dict[str, Any], Requests]]:
    """The runs in a ``requests.parquet`` without a summary beside it, each with what the file says of it."""
    import polars as pl

    whole = open_requests(path)
    keys = [k for k in KEYS if k in whole.names]
    if not keys:
        yield {}, whole
        return
    try:
        cells = whole.frame.select(keys).unique(maintain_order=True).collect().to_dicts()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _broken(path, error) from error
    if not cells:
        raise InputError("holds no requests", where=str(path), fix="compare runs with requests")
    for cell in cells:
        same = pl.all_horizontal(*(pl.col(k) == v for k, v in cell.items()))
        named = {{"cost_model": "cost", "policy": "label"}.get(k, k): v for k, v in cell.items() if v != ""}
        yield named, Requests(path, whole.frame.filter(same), whole.names)


def _only(frame: pl.LazyFrame, names: frozenset[str], key: Mapping[str, Any] | None) -> pl.LazyFrame:
    """The rows of one cell; all of them where the file does not tell cells apart."""
    import polars as pl

    if key is None or not names.issuperset(key):
        return frame
    return frame.filter(*(pl.col(k) == v for k, v in key.items()))


def _scan(path: Path, kind: str, wanted: Sequence[Sequence[str]]) -> tuple[pl.LazyFrame, frozenset[str]]:
    """A file that has one column of numbers out of each of these choices."""
    import polars as pl

    try:
        frame = pl.scan_parquet(path, glob=False)
        schema = frame.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _broken(path, error) from error
    for choice in wanted:
        found = [name for name in choice if name in schema]
        fix = f"it should be the {kind} of a run"
        if not found:
            raise InputError(f"has no column {' or '.join(choice)}", where=str(path), fix=fix)
        if not schema[found[0]].is_numeric():
            raise InputError(
                f"column {found[0]} holds {schema[found[0]]}, not numbers", where=str(path), fix=fix
            )
    return frame, frozenset(schema.names())


def _broken(path: Path, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:80]
    return InputError(f"is not a readable Parquet file ({reason})", where=str(path), fix=BROKEN)

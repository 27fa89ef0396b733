"""Any CSV, JSON lines or Parquet file with a column of batch sizes and one of times.

Which column is what comes from the caller (``columns``) or from the usual names. Units stand in the target:
``time_s``, ``time_ms``, ``time_us`` and ``time_ns`` are the length of the step, ``clock_*`` when it was recorded;
``context_tokens`` is the sum over the rank's requests, ``context_mean`` the mean of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.format import Format, Head, Job, look
from equipoise.calibrate.readers.frames import (
    MAGIC,
    csv_blocks,
    json_blocks,
    parquet_batches,
    parquet_columns,
)
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.readers.rows import Columns, Rows
from equipoise.calibrate.readers.without import accept_without_context
from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError, nearest

if TYPE_CHECKING:
    import polars as pl

__all__ = ["FORMAT", "TARGETS"]

UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
WHOLE = (
    *("batch", "context_tokens", "query_tokens", "step", "rank", "instance"),
    *("prefill_requests", "prefill_tokens"),
)
REAL = ("context_mean", "context_variance", "prefill_pairs", "steps")
TARGETS = (*WHOLE, *REAL, *(f"{what}_{unit}" for what in ("time", "clock") for unit in UNITS))
"""What a column may be mapped to."""

USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "batch": ("batch_size", "num_decode_requests", "running", "n_running"),
    "context_tokens": ("sum_decode_kv_tokens", "kv_tokens", "total_context_tokens", "num_active_tokens"),
    "context_mean": ("context", "context_len", "context_length", "kv_len", "mean_context"),
    "time_s": ("wall_time", "step_time_s", "latency_s", "elapsed_s"),
    "time_ms": ("step_time_ms", "latency_ms", "elapsed_ms", "itl_ms"),
    "time_us": ("step_time_us", "latency_us", "elapsed_us", "median_us"),
    "rank": ("dp_rank",),
    "step": ("step_id", "iteration", "iter"),
    "clock_s": ("timestamp_s",),
    "clock_ms": ("timestamp_ms",),
}
LIMIT = float(1 << 53)
SMALL = {"rank": 1 << 16, "instance": 1 << 16}


def _mapping(names: tuple[str, ...], given: dict[str, str] | None, path: Path) -> dict[str, str]:
    """Target to column, for the columns that a file has."""
    if given:
        for target, column in given.items():
            if target not in TARGETS:
                raise CalibrationError(
                    f"{target!r} is nothing a column can be", where="columns", fix=nearest(target, TARGETS)
                )
            if column not in names:
                raise CalibrationError(
                    f"there is no column {column!r}", where=str(path), fix=nearest(column, names)
                )
    mapping = dict(given or {})
    for target in TARGETS:
        if target in mapping or (target[:5] in ("time_", "clock") and _of(mapping, target[:5])):
            continue
        usual = next((n for n in (target, *USUAL_NAMES.get(target, ())) if n in names), None)
        if usual is not None and usual not in mapping.values():
            mapping[target] = usual
    return mapping


def _of(mapping: dict[str, str], prefix: str) -> list[str]:
    return [target for target in mapping if target.startswith(prefix)]


def _checked(names: tuple[str, ...], given: dict[str, str] | None, path: Path) -> dict[str, str]:
    mapping = _mapping(names, given, path)
    times = _of(mapping, "time_")
    if len(times) > 1 or len(_of(mapping, "clock_")) > 1:
        raise CalibrationError(
            f"{' and '.join(times if len(times) > 1 else _of(mapping, 'clock_'))} are both mapped",
            where="columns",
            fix="give one of them",
        )
    if "batch" not in mapping or not times:
        missing = "batch sizes" if "batch" not in mapping else "times"
        raise CalibrationError(
            f"no column is known to hold {missing}, the columns are {', '.join(names)[:200]}",
            where=str(path),
            fix="map the columns (--columns batch=A,time_ms=B,context_tokens=C)",
        )
    if "context_tokens" in mapping and "context_mean" in mapping:
        del mapping["context_mean"]
    return mapping


def _sniff(head: Head) -> bool:
    names = _names(head)
    if not names:
        return False
    mapping = _mapping(names, None, head.path)
    return "batch" in mapping and len(_of(mapping, "time_")) == 1


def _names(head: Head) -> tuple[str, ...]:
    if head.data[:4] == MAGIC:
        return parquet_columns(head.path)
    if head.is_json:
        for _, frame in json_blocks(head.path, Ledger(), head.data):
            return tuple(frame)
        return ()
    return head.columns


def _read(job: Job) -> list[StepRecords]:
    rows = Rows()
    for file, path in enumerate(job.files):
        _file(job, file, path, rows)
    columns = rows.columns()
    if "batch" not in columns:
        return [assemble(job, "columns", columns)]
    if "context_tokens" not in columns or not (columns["context_tokens"] >= 0).any():
        accept_without_context(
            job,
            str(job.files[0]),
            "no column holds them",
            "map one (--columns context_tokens=SUM or context_mean=MEAN), ",
        )
    chained = "step" in columns
    if chained:
        columns.setdefault("rank", np.zeros(len(columns["line"]), np.int32))
        columns.setdefault("instance", np.zeros(len(columns["line"]), np.int32))
    elif "rank" in columns and len(np.unique(columns["rank"])) > 1:
        job.ledger.note(
            "There are ranks and no step ids: every row is taken as a step of its own. Map step=COLUMN."
        )
    return [assemble(job, "columns", columns, chained=chained)]


def _file(job: Job, file: int, path: Path, rows: Rows) -> None:
    mapping: dict[str, str] = {}
    for line, frame in _frames(job, path, mapping):
        columns, good = _numbers(frame, mapping)
        lines = np.arange(line, line + len(good))
        for row in np.flatnonzero(~good):
            shown = ", ".join(f"{c} = {_shown(frame, c, int(row))}" for c in mapping.values())
            job.ledger.bad(
                f"a number is missing or is none ({shown[:120]})",
                path=path,
                line=int(lines[row]),
                expected="numbers; whole ones for requests, tokens, steps and ranks",
            )
        rows.add(file, lines[good], **{name: values[good] for name, values in columns.items()})


def _shown(frame: Any, column: str, row: int) -> str:
    value = frame[column][row]
    return "nothing" if value is None else repr(value)[:30]


def _frames(job: Job, path: Path, mapping: dict[str, str]) -> Iterator[tuple[int, Any]]:
    """Blocks with the mapped columns; the mapping is filled once the names are known."""

    def check(names: tuple[str, ...]) -> None:
        if not mapping:
            mapping.update(_checked(names, job.columns, path))

    head = look(path)
    if head.data[:4] == MAGIC:
        check(parquet_columns(path))
        yield from parquet_batches(path, list(dict.fromkeys(mapping.values())))
    elif head.is_json:
        for line, frame in json_blocks(path, job.ledger):
            check(tuple(frame))
            yield (
                line,
                {
                    name: frame.get(name) or [None] * len(next(iter(frame.values())))
                    for name in mapping.values()
                },
            )
    else:
        yield from csv_blocks(path, job.ledger, _Mapped(mapping), check=check)


class _Mapped:
    """The mapped columns, asked for only after the header is known."""

    def __init__(self, mapping: dict[str, str]) -> None:
        self.mapping = mapping

    def __contains__(self, name: object) -> bool:
        return name in self.mapping.values()

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping.values())

    def __len__(self) -> int:
        return len(self.mapping)


def _numbers(frame: Any, mapping: dict[str, str]) -> tuple[Columns, NDArray[np.bool_]]:
    """Columns of records, and which rows are whole; a time may be NaN or negative, it is dropped and counted later."""
    columns: Columns = {}
    good: NDArray[np.bool_] | None = None
    for target, column in mapping.items():
        values, present = _floats(frame[column])
        ok = present.copy()
        if target in WHOLE:
            with np.errstate(invalid="ignore"):
                ok &= np.isfinite(values) & (np.abs(values) < LIMIT) & (np.floor(values) == values)
                if target in SMALL:
                    ok &= (values >= 0) & (values < SMALL[target])
                elif target in ("batch", "context_tokens"):
                    ok &= np.abs(values) < LIMIT
            columns[target] = np.where(ok, values, 0).astype(np.int64)
        elif target.startswith(("time_", "clock_")):
            what, unit = target.rsplit("_", 1)
            columns[f"{what}_s"] = values / UNITS[unit]
        else:
            if target == "context_mean":
                with np.errstate(invalid="ignore"):
                    ok &= np.isfinite(values) & (values >= 0) & (values < LIMIT)
            columns[target] = values
        good = ok if good is None else good & ok
    if good is None:
        good = np.zeros(0, bool)
    if "context_mean" in columns:
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.rint(columns.pop("context_mean") * columns["batch"])
        good &= np.abs(total) < LIMIT
        columns["context_tokens"] = np.where(good, total, 0).astype(np.int64)
    return columns, good


def _floats(values: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Numbers of a column (text, numbers or a list of JSON values) and where there is one."""
    import polars as pl

    if isinstance(values, list):
        values = pl.Series([_plain(v) for v in values], dtype=pl.Float64)
    if values.dtype == pl.String:
        values = values.str.strip_chars()
    if values.dtype == pl.Boolean or values.dtype.is_nested() or values.dtype.is_temporal():
        return np.zeros(len(values)), np.zeros(len(values), bool)
    series: pl.Series = values.cast(pl.Float64, strict=False)
    return series.fill_null(0.0).to_numpy().copy(), series.is_not_null().to_numpy()


def _plain(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if number else None  # type: ignore[arg-type]


FORMAT = Format(
    name="columns",
    title="any CSV, JSON lines or Parquet file with batch sizes and step times, by usual names or --columns",
    sniff=_sniff,
    read=_read,
    example="step,rank,batch,context_tokens,time_ms\n17,0,32,262144,30.1",
)

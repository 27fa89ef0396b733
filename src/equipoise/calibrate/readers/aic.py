"""AIConfigurator's decode tables: measured latencies of one layer's attention, every point a step of one rank.

github.com/ai-dynamo/aiconfigurator (Apache-2.0): Parquet files
``systems/data/<system>/<kind>/<framework>/<version>/<table>_perf.parquet`` of the package ``aiconfigurator-core`` 0.12,
or one CSV with the columns ``system``, ``table`` and ``context_len`` added. All requests of a
point have the same context, so the variance of the context length is 0.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise import _files
from equipoise.calibrate.readers.assemble import assemble
from equipoise.calibrate.readers.format import Format, Head, Job
from equipoise.calibrate.readers.frames import MAGIC, csv_blocks, parquet_batches, parquet_columns
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["FORMAT", "aiconfigurator_tables"]

LABELS = (
    *("system", "table", "framework", "version", "op_name", "kernel_source", "model", "architecture"),
    *("mla_dtype", "attn_dtype", "kv_cache_dtype", "gemm_type", "num_heads", "num_key_value_heads"),
    *("head_dim", "beam_width", "tp_size", "compress_ratio"),
)
"""Columns that tell one group from another, in the order of the groups' names."""
WHOLE = ("num_heads", "num_key_value_heads", "head_dim", "beam_width", "tp_size", "compress_ratio")
SUFFIX = "_perf"


def aiconfigurator_tables(system: str | None = None) -> list[Path]:
    """Decode tables of the installed package ``aiconfigurator-core``.

    Parameters
    ----------
    system : str, optional
        Only those of one system, such as ``h200_sxm``.

    Raises
    ------
    CalibrationError
        The package is not installed, or has no tables of this system.
    """
    spec = importlib.util.find_spec("aiconfigurator_core")
    folders = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    if not folders:
        raise CalibrationError(
            "the package aiconfigurator-core is not installed",
            fix="install it (pip install aiconfigurator-core), or give the path of a table",
        )
    found = sorted(
        path
        for folder in folders
        for path in (folder / "systems" / "data").rglob("*.parquet")
        if "generation" in path.name and _is_table(parquet_columns(path))
    )
    kept = [path for path in found if system is None or _system(path) == system]
    if not kept:
        known = ", ".join(sorted({_system(path) for path in found}))
        raise CalibrationError(
            f"aiconfigurator-core has no decode table of {system!r}", fix=f"known: {known}"
        )
    return kept


def _system(path: Path) -> str:
    """The folder below ``data``, as the package lays its tables out."""
    parts = path.resolve().parts
    return parts[parts.index("data") + 1] if "data" in parts[:-2] else ""


def _is_table(names: tuple[str, ...]) -> bool:
    return (
        "batch_size" in names
        and ("latency" in names or "latency_ms" in names)
        and ("step" in names or "context_len" in names)
        and "framework" in names
    )


def _sniff(head: Head) -> bool:
    if head.data[:4] == MAGIC:
        return _is_table(parquet_columns(head.path))
    return _is_table(head.columns)


def _read(job: Job) -> list[StepRecords]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for file, path in enumerate(job.files):
        for line, frame in _frames(path, job.ledger):
            _collect(groups, file, path, line, frame)
    read = []
    for key, pieces in groups.items():
        labels = {name: value for name, value in zip(LABELS, key, strict=True) if value not in (None, "")}
        columns = {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
        columns["step"] = np.arange(len(columns["line"]))
        ledger = Ledger(job.ledger.skip_bad, notes=list(job.ledger.notes))
        files, columns["file"] = np.unique(columns["file"], return_inverse=True)
        one = Job(tuple(job.files[f] for f in files), ledger)
        labels["layer"] = labels.get("op_name", "")
        try:
            read.append(assemble(one, "aic", columns, labels=labels, chained=False))
        except CalibrationError:
            job.ledger.drop("group without a usable latency", len(columns["line"]), str(job.files[0]))
    if not read:
        raise CalibrationError(
            "holds no measured point", where=", ".join(map(str, job.files)), fix="check the table"
        )
    if job.ledger.dropped:  # what belongs to no group stands with the first
        read[0] = replace(read[0], dropped=(*read[0].dropped, *job.ledger.dropped))
    return read


def _frames(path: Path, ledger: Ledger) -> Iterator[tuple[int, pl.DataFrame]]:
    if _files.head(path, 4, error=CalibrationError) == MAGIC:
        names = parquet_columns(path)
        _refuse_other(path, names)
        yield from parquet_batches(path, [n for n in names if n in _WANTED])
    else:
        yield from csv_blocks(path, ledger, _WANTED, check=lambda names: _refuse_other(path, names))


_MEASURES = ("batch_size", "isl", "context_len", "step", "latency_ms", "latency")
_WANTED = frozenset((*LABELS, *_MEASURES))


def _refuse_other(path: Path, names: tuple[str, ...]) -> None:
    if not _is_table(names):
        raise CalibrationError(
            "is not a decode table of AIConfigurator",
            where=str(path),
            fix="expected the columns framework, batch_size, latency and step (or latency_ms and context_len)",
        )


def _collect(
    groups: dict[tuple[Any, ...], list[dict[str, Any]]], file: int, path: Path, line: int, frame: pl.DataFrame
) -> None:
    import polars as pl

    table = path.name.split(".")[0].removesuffix(SUFFIX)
    frame = frame.with_columns(pl.int_range(line, line + frame.height, dtype=pl.Int64).alias("_line"))
    for name, value in (("system", _system(path)), ("table", table)):
        if name not in frame.columns:
            frame = frame.with_columns(pl.lit(value).alias(name))
    present = [name for name in LABELS if name in frame.columns]
    numbers = [name for name in _MEASURES if name in frame.columns]
    frame = frame.with_columns(pl.col(numbers).cast(pl.Float64, strict=False)).with_columns(
        pl.col(n).cast(pl.Float64, strict=False).cast(pl.Int64, strict=False) for n in WHOLE if n in present
    )
    for key, part in frame.partition_by(present, as_dict=True, maintain_order=True).items():
        values = dict(zip(present, key, strict=True))
        whole = tuple(values.get(name) for name in LABELS)
        groups.setdefault(whole, []).append(_columns(part, file, str(values.get("table"))))


def _columns(part: pl.DataFrame, file: int, table: str) -> dict[str, Any]:
    batch = _number(part, "batch_size")
    queries = _number(part, "isl") if "isl" in part.columns else np.ones(part.height)
    if "context_len" in part.columns:
        context = _number(part, "context_len")
    else:  # modules name the whole context a step, single kernels what came before the query tokens
        context = _number(part, "step") + (0 if table.endswith("_module") else queries)
    ms = _number(part, "latency_ms" if "latency_ms" in part.columns else "latency")
    known = np.isfinite(batch) & np.isfinite(context) & np.isfinite(queries)
    with np.errstate(invalid="ignore", over="ignore"):
        whole = {
            "batch": np.where(known, batch, -1),
            "context_tokens": np.where(known, batch * context, -1),
            "query_tokens": np.where(known, batch * queries, -1),
        }
    columns: dict[str, Any] = {name: np.clip(v, -2, 2**62).astype(np.int64) for name, v in whole.items()}
    return columns | {
        "file": np.full(part.height, file, np.int16),
        "line": part["_line"].to_numpy(),
        "time_s": ms / 1e3,
        "context_variance": np.zeros(part.height),
    }


def _number(part: pl.DataFrame, name: str) -> Any:
    return part[name].fill_null(float("nan")).to_numpy().astype(np.float64)


FORMAT = Format(
    name="aic",
    title="AIConfigurator decode tables (Parquet or CSV): measured latency of one layer; many groups a file",
    sniff=_sniff,
    read=_read,
    example="system,table,framework,version,op_name,model,num_heads,batch_size,isl,context_len,latency_ms\n"
    "h200_sxm,dsa_generation_module,VLLM,0.24.0,dsa_generation_module,zai-org/GLM-5,64,32,1,8192,0.31",
)

"""Result folders and files as runs that can be put side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise._files import whole
from equipoise.errors import InputError
from equipoise.study.pairs.columns import Requests, Steps, cells_of, open_requests, open_steps

__all__ = ["CELL", "RunFile", "open_runs"]

CELL = (
    *("trace", "cost", "mode", "ranks", "instances", "groups", "group_policy", "concurrency", "information"),
    *("deployment", "label"),
)
"""What tells one cell of a summary from another."""
FIX = "name a folder written with --output-dir, its summary.json or its requests.parquet"
PERCENTILES = ("mean", "p50", "p99")


@dataclass(frozen=True, slots=True, eq=False)
class RunFile:
    """A finished run, or a cell of a comparison.

    Parameters
    ----------
    source : str
        As the user named it.
    cell : mapping
        What it ran: trace, cost, policy (``label``) and so on, as far as the files say.
    requests : Requests, optional
    steps : Steps, optional
    counted_s : tuple of float, optional
        Start and end of the counted time, in seconds.
    excess_of_seed : mapping of int to float
    rate_of_seed : mapping of int to float
    figures : mapping of (str, str) to float
        Quantity and statistic to a number that the summary holds without its uncertainty.
    slo : mapping of str to float
        Bounds that the run was asked to meet, by option: ``ttft_ms``, ``tpot_ms``.
    """

    source: str
    cell: Mapping[str, Any] = field(default_factory=dict)
    requests: Requests | None = None
    steps: Steps | None = None
    counted_s: tuple[float, float] | None = None
    excess_of_seed: Mapping[int, float] = field(default_factory=dict)
    rate_of_seed: Mapping[int, float] = field(default_factory=dict)
    figures: Mapping[tuple[str, str], float] = field(default_factory=dict)
    slo: Mapping[str, float] = field(default_factory=dict)


def open_runs(source: str) -> list[RunFile]:
    """The runs in a folder or a file: one, or a cell each of a comparison.

    Parameters
    ----------
    source : str
        A result folder, its summary.json or a requests.parquet; ``#LABEL`` behind it picks the cells of one policy.

    Raises
    ------
    InputError
        Nothing there, something else, or cut short.
    """
    path, label = Path(source), None
    if "#" in source and not path.exists():
        name, _, label = source.rpartition("#")
        path = Path(name)
    if not path.exists():
        raise InputError("no such file or folder", where=source, fix=FIX)
    found = _open(path, source)
    if label is None:
        return found
    chosen = [r for r in found if label in (r.cell.get("label"), r.cell.get("policy"))]
    if not chosen:
        known = dict.fromkeys(str(r.cell.get("label")) for r in found if r.cell.get("label"))
        names = f"it has {'; '.join(known)}" if known else "it names no policies"
        raise InputError(f"no policy {label!r} there", where=source, fix=names)
    return chosen


def _open(path: Path, source: str) -> list[RunFile]:
    if path.is_dir():
        if (path / "summary.json").exists():
            return _of_summary(path / "summary.json", source)
        if (path / "requests.parquet").exists():
            return _of_parquet(path / "requests.parquet", source)
        raise InputError("not the folder of a run: no summary.json in it", where=source, fix=FIX)
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"PAR1" or path.suffix == ".parquet":
        return _of_parquet(path, source)
    return _of_summary(path, source, alone=path.name != "summary.json")


def _of_parquet(path: Path, source: str) -> list[RunFile]:
    return [
        RunFile(source, {k: v for k, v in cell.items() if k != "groups" or v != 1}, requests)
        for cell, requests in cells_of(path)
    ]


def _of_summary(path: Path, source: str, *, alone: bool = False) -> list[RunFile]:
    """All runs of a summary, with the files beside it."""
    try:
        summary = json.loads(whole(path))
    except (ValueError, RecursionError) as error:
        raise InputError("not a JSON document", where=str(path), fix=FIX) from error
    kind = summary.get("schema") if isinstance(summary, dict) else None
    requests = None if alone else _beside(path, "requests.parquet")
    steps = None if alone else _beside(path, "steps.parquet")
    try:
        if kind == "equipoise.compare/1":
            return [_compare_cell(c, source, requests, steps) for c in summary["cells"]]
        if kind == "equipoise.run/1":
            return [_single(summary, source, requests, steps)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"the summary lacks what {kind} promises ({type(error).__name__}: {error})",
            where=str(path),
            fix="make it again",
        ) from error
    shown = f"it holds {kind!r}" if isinstance(kind, str) else "it names no schema"
    raise InputError(f"not the summary of a run: {shown}", where=str(path), fix=FIX)


def _beside(path: Path, name: str) -> Path | None:
    found = path.parent / name
    return found if found.exists() else None


def _compare_cell(cell: Mapping[str, Any], source: str, requests: Path | None, steps: Path | None) -> RunFile:
    runs = cell["runs"]
    first = runs[0]
    key = {
        "trace": cell["trace"],
        "cost_model": cell["cost"],
        "groups": cell["groups"],
        "group_policy": cell["group_policy"] or "",
        "policy": cell["label"],
    }
    if cell.get("deployment") is not None:
        key["deployment"] = cell["deployment"]
    figures = {("tokens_per_s", "mean"): float(cell["tokens_per_s"])}
    figures |= _percentiles(cell, ("tpot_ms", "queue_wait_ms"))
    return RunFile(
        source,
        {**{k: cell.get(k) for k in CELL}, "policy": cell["policy"]},
        None if requests is None else open_requests(requests, key),
        None if steps is None else open_steps(steps, key),
        (float(first["first_counted_s"]), float(first["last_counted_s"])),
        {int(r["seed"]): float(r["excess"]) for r in runs},
        {int(r["seed"]): float(r["rate_scale"]) for r in runs},
        figures,
    )


def _single(summary: Mapping[str, Any], source: str, requests: Path | None, steps: Path | None) -> RunFile:
    window, seed = summary["counted_window"], int(summary["seed"])
    params = (f"{k}={v}" for k, v in summary["params"].items())
    figures = {("tokens_per_s", "mean"): float(summary["tokens_per_s"])}
    if summary["requests"] is not None:
        figures |= _percentiles(summary["requests"], ("ttft_ms", "tpot_ms", "end_to_end_ms", "queue_wait_ms"))
    return RunFile(
        source,
        {**{k: summary.get(k) for k in CELL}, "policy": summary["policy"]}
        | {"label": " ".join([summary["policy"], *params])},
        None if requests is None else open_requests(requests),
        None if steps is None else open_steps(steps),
        (float(window["first_s"]), float(window["last_s"])),
        {seed: float(summary["excess"])},
        {seed: float(summary["rate_scale"])},
        figures,
        {k: float(v) for k, v in summary["slo"].items() if v is not None},
    )


def _percentiles(row: Mapping[str, Any], names: Sequence[str]) -> dict[tuple[str, str], float]:
    return {(name, s): float(row[name][s]) for name in names if row[name] for s in PERCENTILES}

"""The folder of one simulated run: all of it or nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from equipoise.cost.files import to_dict
from equipoise.fleet import FleetResult, aiperf_blocks
from equipoise.fleet.classes import By
from equipoise.study.folder import machine, staged
from equipoise.study.run_summary import run_setting, summarize_run
from equipoise.study.summary import to_json

__all__ = ["write_run", "write_run_data"]


def write_run(result: FleetResult, folder: str | Path, *, by: Sequence[By] = ()) -> None:
    """Write a run into a folder: everything beside it first, then moved into place.

    ``summary.json`` (`equipoise.run/1`), ``steps.parquet``, ``config.resolved.toml`` (what was run, and the cost),
    ``deployment.toml`` (can be loaded again) and ``environment.json``; where requests were kept, ``requests.parquet``
    and ``profile_export_aiperf.json``. Files of an earlier run or study in the folder go where this one does not
    replace them.

    Parameters
    ----------
    result : FleetResult
    folder : str or Path
        Made if it is not there.
    by : sequence of {"context", "output", "turn"}
        Measure the requests class by class, too.

    Raises
    ------
    InputError
        The folder cannot be written; classes of requests that were not kept. Nothing has been written then.
    """
    with staged(Path(folder)) as stage:
        write_run_data(result, stage, by=by)


def write_run_data(result: FleetResult, stage: Path, *, by: Sequence[By] = ()) -> None:
    """The files of `write_run`, into a folder that exists; with `study.folder.staged`, beside others."""
    from equipoise.fleet.files import dumps

    (stage / "summary.json").write_text(to_json(summarize_run(result, by=by)), "utf-8")
    (stage / "config.resolved.toml").write_text(tomli_w.dumps(resolved_run(result)), "utf-8")
    (stage / "deployment.toml").write_text(dumps(result.deployment), "utf-8")
    took = {"wall_s": result.wall_s, "decisions_per_s": result.decisions_per_s if result.wall_s else None}
    (stage / "environment.json").write_text(json.dumps({**machine(), **took}, indent=2) + "\n", "utf-8")
    result.to_polars().write_parquet(stage / "steps.parquet")
    if result.requests_kept:
        result.requests_frame().write_parquet(stage / "requests.parquet")
        (stage / "profile_export_aiperf.json").write_text(to_json(aiperf_blocks(result)), "utf-8")


def resolved_run(result: FleetResult) -> dict[str, Any]:
    """What was run, the deployment apart, as TOML can hold it (what is not set is left out)."""
    setting = {**run_setting(result), "cost": to_dict(result.cost)}
    left_out = ("information", "instances", "ranks", "groups", "cost_unit", "us_per_unit")  # said elsewhere
    return {k: v for k, v in setting.items() if v is not None and k not in left_out}

"""The result folder: everything written beside it first, then moved into place, so nothing is ever half there."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tomli_w

from equipoise._interrupts import held_back
from equipoise.cost.files import to_dict
from equipoise.errors import InputError
from equipoise.fleet.files import to_dict as deployment_to_dict
from equipoise.policies import Policy
from equipoise.study.compare import Comparison
from equipoise.study.plan import ComparePlan
from equipoise.study.summary import summarize, to_json

__all__ = ["environment", "machine", "resolved_config", "staged", "write_data"]

OURS = (
    *("summary.json", "steps.parquet", "requests.parquet", "config.resolved.toml", "environment.json"),
    *("report.html", "timeline.json", "excess*.png", "*_curve*.png", "balance_over_time*.png"),
    *("ranks*.png", "groups*.png"),
    *("deployment.toml", "profile_export_aiperf.json"),
)
"""Names a study or a run writes; in a folder that holds an earlier one, those that the new one does not replace go."""

LIBRARIES = ("equipoise", "numpy", "numba", "scipy", "polars", "plotly", "matplotlib")


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A temporary folder beside the target, whose files replace those of the target if the block succeeds.

    Ctrl-C, and SIGTERM and SIGHUP where they raise (`equipoise._interrupts`), leave nothing of it behind, or everything
    moved.

    Raises
    ------
    InputError
        The folder cannot be made or written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{str(folder)!r} is a file", where="--output-dir", fix="name a folder")
        stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise InputError(
            f"cannot write {str(folder)!r}: {error.strerror}", where="--output-dir", fix="choose another"
        ) from error
    try:
        yield stage
        with held_back():  # a signal in between would leave files of two studies
            _move(stage, folder)
    finally:
        with held_back():
            shutil.rmtree(stage, ignore_errors=True)


def _move(stage: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if (folder / "config.resolved.toml").exists() and (folder / "summary.json").exists():
        for pattern in OURS:
            for old in folder.glob(pattern):
                if not (stage / old.name).exists():
                    old.unlink()  # an earlier study's plot beside this one's numbers would lie
    for made in sorted(stage.iterdir()):
        os.replace(made, folder / made.name)


def write_data(comparison: Comparison, stage: Path) -> None:
    """Summary, series, requests, configuration and environment of a comparison, as files."""
    import polars as pl

    (stage / "summary.json").write_text(to_json(summarize(comparison)), "utf-8")
    (stage / "config.resolved.toml").write_text(tomli_w.dumps(resolved_config(comparison.plan)), "utf-8")
    (stage / "environment.json").write_text(json.dumps(environment(comparison), indent=2) + "\n", "utf-8")
    steps, requests = [], []
    for cell in comparison.cells:
        result = cell.runs[0].result
        if result is None:
            continue
        pool = cell.setting.pool
        label = {
            "trace": cell.setting.trace,
            "cost_model": cell.setting.cost.name,  # "cost" is the price of the step
            "groups": pool.groups,
            "group_policy": cell.setting.group_policy if cell.setting.grouped else "",
            "policy": cell.policy.label,
        }
        if cell.setting.deployment_name is not None:
            label["deployment"] = cell.setting.deployment_name
        keys = [pl.lit(v).alias(k) for k, v in label.items()]
        steps.append(result.to_polars().select(*keys, pl.all()))
        if len(result.outcome.start_s):
            requests.append(result.requests_frame().select(*keys, pl.all()))
    pl.concat(steps).write_parquet(stage / "steps.parquet")
    if requests:
        pl.concat(requests).write_parquet(stage / "requests.parquet")


def resolved_config(plan: ComparePlan) -> dict[str, Any]:
    """The plan with every default filled in, as TOML can hold it (an unset limit is left out)."""
    pool = {
        "instances": plan.pool.instances,
        "ranks": plan.pool.ranks,
        "kv_capacity_tokens": plan.pool.kv_capacity_tokens,
        "max_batch": plan.pool.max_batch,
        "growth_reserve_tokens": plan.pool.growth_reserve_tokens,
    }
    config = {
        "traces": list(plan.traces),
        "mode": plan.mode,
        "concurrency": _load(plan),
        "requests": plan.requests,
        "seeds": plan.seeds,
        "first_seed": plan.first_seed,
        "rate_scale": plan.rate_scale,
        "rate_per_s": plan.rate_per_s,
        "warmup_turnovers": plan.warmup_turnovers,
        "groups": list(plan.groups),
        "group_policies": list(plan.group_policies),
        "information": asdict(plan.information),
        "baseline": plan.baseline_policy().label,
        "pool": {k: v for k, v in pool.items() if v is not None},
        "policies": [_plain_policy(p) for p in plan.policies],
        "costs": [to_dict(c) for c in plan.costs],
    }
    if plan.deployments:
        for name in ("pool", "groups", "information"):
            del config[name]  # each deployment has its own
        config["deployments"] = {name: deployment_to_dict(d) for name, d in plan.deployments.items()}
    return {k: v for k, v in config.items() if v is not None}


def _load(plan: ComparePlan) -> int | list[int] | None:
    """Requests in the pool; of several deployments or traces one number each, in the order of the settings."""
    found = list(dict.fromkeys(s.concurrency for s in plan.settings()))
    known = [n for n in found if n is not None]
    return known[0] if len(known) == 1 else known or None


def _plain_policy(policy: Policy) -> dict[str, Any]:
    """A policy as a table; where it comes from a file, with the digest of that file."""
    digest = {"digest": policy.digest} if policy.digest else {}
    return {"name": policy.name, **policy.params, "text": policy.text, **digest}


def environment(comparison: Comparison) -> dict[str, Any]:
    """Where and with what a study ran, and how long its replays took."""
    return {**machine(), "replay_s": sum(r.wall_s for c in comparison.cells for r in c.runs)}


def machine() -> dict[str, Any]:
    """Where and with what this process runs."""
    libraries = {}
    for name in LIBRARIES:
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "libraries": libraries,
        "arguments": sys.argv[1:],
    }

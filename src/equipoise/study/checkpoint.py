"""Runs kept on disk as they are made, so that an interrupted sweep goes on where it was.

One JSON file a run, named by a digest of everything the run depends on, and an npz file of its arrays where the whole
result is kept. Change a policy file, a cost, a trace or the package, and the name is another.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np

from equipoise._replacing import replacing
from equipoise.cost.files import to_dict
from equipoise.fleet import FleetResult
from equipoise.fleet.files import to_dict as deployment_to_dict
from equipoise.fleet.kernel.layout import FleetOutcome
from equipoise.policies import Policy
from equipoise.replay import Percentiles, ReplayResult
from equipoise.replay.layout import Outcome
from equipoise.study.jobs import Batch, Job, Measures, Run
from equipoise.study.kept import file_stamps, made_folder, package_digest
from equipoise.study.statistics import Interval

__all__ = ["Checkpoint"]

PERCENTILES = ("queue_wait_ms", "tpot_ms")
PAIRS = ("counted_range", "counted_s")
OTHERS = ("arrival_s", "context_tokens", "output_tokens")
"""Arrays of a result that are not in its outcome."""
MORE = "more."
"""What the names of arrays begin with that only a simulated deployment has."""


class Checkpoint:
    """A folder of finished runs.

    Parameters
    ----------
    folder : Path
        Made if it is not there.

    Raises
    ------
    InputError
        The folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = made_folder(folder)

    def load(self, batch: Batch, job: Job) -> Run | None:
        """The run of a job, if it was kept whole; a damaged or half-written one is as good as none.

        A policy made in code has no name to be found by; its runs are not kept.
        """
        if not job.policy.origin:
            return None
        stem = self._stem(batch, job)
        try:
            kept = msgspec.json.decode(stem.with_suffix(".json").read_bytes(), type=dict[str, Any])
            interval: dict[str, Any] = {
                k: math.nan if v is None else v for k, v in kept["block_excess"].items()
            }
            return Run(
                **_measures(kept["measures"]),
                seed=job.seed,
                rate_scale=kept["rate_scale"],
                block_excess=Interval(**interval),
                result=_result(job, kept, stem.with_suffix(".npz")) if job.keep else None,
            )
        except (OSError, EOFError, msgspec.DecodeError, KeyError, TypeError, ValueError, BadZipFile):
            return None

    def save(self, batch: Batch, job: Job, run: Run) -> None:
        """Keep a run; the JSON file comes last and vouches for the other."""
        if not job.policy.origin:
            return
        stem = self._stem(batch, job)
        result = run.result
        if result is not None:
            arrays = {**result.outcome._asdict(), **{name: getattr(result, name) for name in OTHERS}}
            if isinstance(result, FleetResult):
                arrays |= {MORE + name: values for name, values in result.more._asdict().items()}
                arrays[MORE + "turn"] = result.turn
            with replacing(stem.with_suffix(".npz")) as file:
                np.savez(file, **arrays)
        kept = {
            "job": _description(batch, job),
            "trace_name": result.trace_name if result is not None else None,
            "measures": {f.name: msgspec.to_builtins(getattr(run, f.name)) for f in fields(Measures)},
            "rate_scale": run.rate_scale,
            "block_excess": asdict(run.block_excess),
        }
        with replacing(stem.with_suffix(".json")) as file:
            file.write(msgspec.json.encode(kept))

    def _stem(self, batch: Batch, job: Job) -> Path:
        text = json.dumps(_description(batch, job), sort_keys=True)
        return self.folder / sha256(text.encode()).hexdigest()[:32]


def _description(batch: Batch, job: Job) -> dict[str, Any]:
    """Everything a run depends on, as plain data."""
    setting = job.setting
    return {
        "version": version("equipoise"),
        "package": package_digest(),
        "trace": batch.trace,
        "trace_files": file_stamps(Path(batch.trace)),
        "seed": job.seed,
        "target_concurrency": batch.concurrency,
        "requests": batch.requests,
        "as_recorded": batch.as_recorded,
        "mode": setting.mode,
        "cost": to_dict(setting.cost),
        "pool": asdict(setting.pool),
        "group_policy": setting.group_policy,
        "information": asdict(setting.information),
        "deployment": None if setting.deployment is None else deployment_to_dict(setting.deployment),
        "concurrency": setting.concurrency,
        "rate_scale": job.rate_scale,
        "rate_per_s": job.rate_per_s,
        "warmup_turnovers": job.warmup_turnovers,
        "policy": job.policy.text,
        "policy_source": _source_digest(job.policy),
        "keep": job.keep,
    }


def _source_digest(policy: Policy) -> str:
    """Digest of the file that a policy's function stands in: its own, or that of the package it comes with."""
    place = getattr(policy.spec.place, "py_func", policy.spec.place)
    path = Path(getattr(getattr(place, "__code__", None), "co_filename", ""))
    own = path.read_bytes() if path.is_file() else b""
    return sha256(own + (policy.digest or "").encode()).hexdigest()


def _measures(kept: dict[str, Any]) -> dict[str, Any]:
    """Figures as a `Run` holds them: JSON knows no NaN, no tuple and no percentiles."""
    found = {f.name: kept[f.name] for f in fields(Measures)}
    for name in PERCENTILES:
        found[name] = None if found[name] is None else Percentiles(**found[name])
    for name in PAIRS:
        found[name] = tuple(found[name])
    return {k: math.nan if v is None and k not in PERCENTILES else v for k, v in found.items()}


def _result(job: Job, kept: dict[str, Any], path: Path) -> ReplayResult:
    setting, deployment = job.setting, job.setting.simulated
    more: dict[str, Any] = {}
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        outcome = Outcome(**{name: arrays[name] for name in Outcome._fields})
        others = {name: arrays[name] for name in OTHERS}
        if deployment is not None:
            more = {
                "deployment": deployment,
                "more": FleetOutcome(**{name: arrays[MORE + name] for name in FleetOutcome._fields}),
                "turn": arrays[MORE + "turn"],
            }
    return (FleetResult if more else ReplayResult)(
        trace_name=kept["trace_name"],
        policy_name=job.policy.name,
        params=job.policy.params,
        mode=setting.mode,
        pool=setting.pool,
        cost=setting.cost,
        concurrency=setting.concurrency if setting.mode == "saturated" else None,
        seed=job.seed,
        wall_s=kept["measures"]["wall_s"],
        outcome=outcome,
        information=setting.information,
        group_policy=setting.group_policy,
        rate_scale=kept["rate_scale"],
        warmup_turnovers=job.warmup_turnovers,
        **others,
        **more,
    )

"""From a plan to ``run.json``, and back where a run is resumed."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from equipoise.engines import WorkerSpec
from equipoise.engines.workers import parse_line
from equipoise.live.about import SCHEMA, About, EngineAbout, Machine, RunAbout, TraceAbout, read_about
from equipoise.live.plan import LivePlan, digest
from equipoise.live.preflight import Found
from equipoise.traces.trace import Trace

__all__ = ["PLANNED", "describe", "plan_of"]

PLANNED = "planned.parquet"
"""The trace as it was planned, in the package's own lossless form: what a resumed run reads."""

SAME = (
    *("policies", "repeats", "first_seed", "mode", "scale", "concurrency", "prefixes", "token_ids", "route"),
    *("dp_size", "cost", "kv_capacity_tokens", "max_batch", "warmup_requests", "probe", "step_logs"),
    *("timeout_s", "drain_timeout_s", "scrape_period_s", "on_failure", "ttft_slo_ms", "tpot_slo_ms"),
    *("ca_file", "insecure"),
)
"""Fields that a plan and its description share."""


def describe(plan: LivePlan, trace: Trace, found: Found) -> About:
    """What is about to be run, nothing of it done."""
    from importlib.metadata import version

    return About(
        schema=SCHEMA,
        equipoise=version("equipoise"),
        state="running",
        started_at=now(),
        engine=EngineAbout(
            kind=plan.engine,
            model=found.model,
            version=found.version,
            instances=found.instances,
            prompts=plan.prompts,
        ),
        trace=TraceAbout(
            name=trace.name, source=trace.source, digest=digest(trace), cut=plan.cut, requests=len(trace)
        ),
        machine=machine(),
        runs=[
            RunAbout(order=i, policy=policy, repeat=repeat, seed=plan.first_seed + repeat)
            for i, (policy, repeat) in enumerate(plan.runs)
        ],
        notes=list(found.notes),
        workers=tuple(_line(worker) for worker in plan.workers),
        **{name: getattr(plan, name) for name in SAME},
    )


def plan_of(folder: Path, **changes: Any) -> tuple[LivePlan, About]:
    """The plan that a folder was written for, with a key, addresses or patience of today.

    Raises
    ------
    InputError
        There is no such run, or what it says cannot be.
    """
    from equipoise.traces.readers import read

    about = read_about(folder)
    plan = LivePlan(
        trace=read(folder / PLANNED),
        cut=about.trace.cut,
        engine=about.engine.kind,
        model=about.engine.model,
        prompts="text" if about.engine.prompts == "text" else "ids",
        workers=tuple(parse_line(line, str(folder)) for line in about.workers),
        **{name: getattr(about, name) for name in SAME},
    )
    return replace(plan, **{k: v for k, v in changes.items() if v is not None}), about


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def machine() -> Machine:
    """Where this process runs."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    return Machine(
        cores=os.cpu_count() or 1, cpu=cpu, platform=platform.platform(), python=platform.python_version()
    )


def _line(worker: WorkerSpec) -> str:
    options = ("engine", "ranks", "instance", "first_rank", "worker_id", "metrics_url")
    said = [f"{name}={getattr(worker, name)}" for name in options if getattr(worker, name)]
    return " ".join([worker.url, *said])

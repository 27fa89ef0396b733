"""Folders of live runs made from simulated ones: the truth is known, and no engine is needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from equipoise import Pool
from equipoise.cost import StepCost, Term
from equipoise.fleet import Deployment, FleetResult, simulate
from equipoise.live.about import About, EngineAbout, InstanceAbout, Machine, RunAbout, TraceAbout
from equipoise.live.rows import empty, table_path, write_table
from equipoise.traces import Trace

POLICIES = ("least_batch", "least_tokens", "dualpath,z=1.05")

STEP = StepCost(
    "planted",
    (Term("decode", per_request=60.0, per_100k_context=2500.0),),
    constant=5000.0,
    unit="us",
    barrier="step",
)
"""5 ms a step, 60 us a request, 2.5 ms for 100k context tokens."""


def mixture(requests: int = 400, *, gap_s: float = 0.03, long: int = 8000, seed: int = 3) -> Trace:
    """Long and short prompts at even gaps."""
    rng = np.random.default_rng(seed)
    context = np.where(rng.random(requests) < 0.25, long, 300) + rng.integers(0, 200, requests)
    return Trace.from_columns(
        "mixture", np.arange(requests) * gap_s, context, rng.integers(40, 120, requests), source="made"
    )


def about(
    policies: Sequence[str],
    repeats: int,
    trace: Trace,
    *,
    ranks: int = 4,
    instances: int = 1,
    mode: str = "open",
    concurrency: int | None = None,
    **more: object,
) -> About:
    """A description of runs that are all done, policies in turn."""
    runs = [
        RunAbout(
            order=k * len(policies) + i, policy=p, repeat=k, seed=k, state="done", wall_s=1.0, drained=True
        )
        for k in range(repeats)
        for i, p in enumerate(policies)
    ]
    found = About(
        schema="equipoise.live/1",
        equipoise="0.1.0",
        state="complete",
        started_at="2026-11-30T08:00:00Z",
        engine=EngineAbout(
            kind="vllm",
            model="tiny",
            version="0.33",
            instances=tuple(
                InstanceAbout(name=f"i{i}", url=f"http://127.0.0.1:{8000 + i}", ranks=ranks)
                for i in range(instances)
            ),
            prompts="ids",
        ),
        trace=TraceAbout(name=trace.name, source="made", digest="0" * 64, cut="whole", requests=len(trace)),
        mode=mode,  # type: ignore[arg-type]
        scale=1.0,
        concurrency=concurrency,
        policies=tuple(policies),
        repeats=repeats,
        first_seed=0,
        prefixes=False,
        ttft_slo_ms=None,
        tpot_slo_ms=None,
        cost=None,
        warmup_requests=0,
        drain_timeout_s=10.0,
        timeout_s=60.0,
        scrape_period_s=0.5,
        on_failure="stop",
        machine=Machine(cores=2, cpu="none", platform="Linux", python="3.11"),
        runs=runs,
    )
    for name, value in more.items():
        setattr(found, name, value)
    return found


def trace_frame(trace: Trace) -> pl.DataFrame:
    n = len(trace)
    return pl.DataFrame(
        {
            "request": np.arange(n),
            "arrival_s": trace.arrival_s,
            "session": np.asarray(trace.session),
            "turn": np.asarray(trace.turn),
            "think_s": np.asarray(trace.think_s),
            "prompt_tokens": trace.context_tokens,
            "output_tokens": trace.output_tokens,
            "class": np.where(trace.context_tokens > 2000, "long", "short"),
        }
    )


def rows_of(result: FleetResult, told: RunAbout, *, slower: float = 1.0, name: str = "i") -> pl.DataFrame:
    """Rows of ``requests.parquet``; every token comes as evenly as the first and the last one say."""
    frame = result.requests_frame()
    ranks = result.pool.ranks
    tokens = frame["tokens"].to_numpy().astype(np.int64)
    arrived, first, last = (slower * frame[c].to_numpy() for c in ("arrived_s", "first_token_s", "ended_s"))
    arrived = frame["arrived_s"].to_numpy()
    rank = frame["rank"].to_numpy()
    gaps = [
        np.full(max(n - 1, 0), 1000.0 * (b - a) / max(n - 1, 1))
        for n, a, b in zip(tokens, first, last, strict=True)
    ]
    return pl.DataFrame(
        {
            "policy": [told.policy] * len(tokens),
            "repeat": [told.repeat] * len(tokens),
            "order": [told.order] * len(tokens),
            "request": np.arange(len(tokens)),
            "intended_s": arrived,
            "sent_s": arrived,
            "first_token_s": first,
            "finished_s": last,
            "prompt_tokens": frame["context_tokens"],
            "output_tokens": tokens,
            "rank": rank % ranks,
            "instance": [f"{name}{r // ranks}" for r in rank],
            "outcome": np.where(frame["status"].to_numpy() == "finished", "ok", "timeout"),
            "message": pl.Series([None] * len(tokens), dtype=pl.String),
            "itl_ms": gaps,
        }
    )


def write_folder(
    folder: Path,
    *,
    policies: Sequence[str] = POLICIES,
    repeats: int = 4,
    trace: Trace | None = None,
    cost: StepCost = STEP,
    deployment: Deployment | None = None,
    noise: float = 0.01,
    mode: str = "open",
    concurrency: int | None = None,
    seed: int = 0,
) -> About:
    """A folder as `equipoise live` writes it; each run's engine is faster or slower by `noise`."""
    trace = mixture() if trace is None else trace
    deployment = deployment or Deployment(Pool(ranks=4))
    told = about(
        policies,
        repeats,
        trace,
        ranks=deployment.pool.ranks,
        instances=deployment.pool.instances,
        mode=mode,
        concurrency=concurrency,
    )
    rng = np.random.default_rng(seed)
    tables = []
    for run in told.runs:
        factor = float(np.exp(noise * rng.standard_normal()))
        result = simulate(
            trace,
            deployment,
            run.policy,
            cost.scaled(factor),
            mode={"open": "timed", "closed": "saturated"}.get(mode, mode),  # type: ignore[arg-type]
            concurrency=concurrency,
            seed=run.seed,
        )
        tables.append(rows_of(result, run))
    told.write(folder)
    write_table(table_path(folder, "trace"), "trace", trace_frame(trace))
    write_table(table_path(folder, "requests"), "requests", pl.concat(tables))
    write_table(table_path(folder, "scrapes"), "scrapes", empty("scrapes"))
    return told

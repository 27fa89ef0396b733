"""`equipoise compare`: find the policy for this model and this traffic."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import (
    Json,
    Many,
    OracleBudget,
    Quiet,
    check_folder,
    costs_from,
    default_jobs,
    split,
    whole_numbers,
)
from equipoise.cli.progress import progress
from equipoise.errors import InputError

if TYPE_CHECKING:
    from equipoise.study import Comparison
    from equipoise.study.runner import Runner

__all__ = ["app"]

app = App(name="compare")


@app.default
def compare(
    *,
    trace: Many = ("agentic-coding",),
    cost: Many = ("v1", "v2"),
    policy: Many = (),
    deployment: Many = (),
    ranks: Whole | None = None,
    instances: Whole | None = None,
    concurrency: Whole | None = None,
    requests: Whole | None = None,
    load_per_rank: float | None = None,
    mode: Literal["saturated", "timed", "sessions"] | None = None,
    rate_scale: float = 1.0,
    kv_capacity_tokens: Whole | None = None,
    max_batch: Whole | None = None,
    growth_reserve_tokens: Whole = 0,
    groups: Many = ("1",),
    group_policy: Many = ("least_batch",),
    knows: Literal["exact", "ledger", "extrapolated", "acknowledged", "erased"] = "exact",
    replicas: Whole = 1,
    report_period_steps: Whole = 1,
    report_delay_steps: Whole = 0,
    report_delay_ms: float = 0.0,
    report_period_ms: float = 0.0,
    split_: Annotated[Literal["request", "instance"], Parameter(name="--split")] = "request",
    seeds: Whole = 5,
    seed: Whole = 0,
    baseline: str | None = None,
    us_per_unit: float | None = None,
    warmup_turnovers: float = 1.0,
    oracle: bool = False,
    oracle_budget: OracleBudget = "2000000",
    output_dir: Path | None = None,
    report: bool = True,
    jobs: Whole | None = None,
    runner: Literal["threads", "ray"] = "threads",
    ray_address: str | None = None,
    checkpoint_dir: Path | None = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replay the same requests under several policies and price every step.

    Without options: the embedded agentic-coding workload on one instance of 64 ranks with 2,048 requests
    in it, priced by the article's V1 and V2 for GLM-5.3, under the article's policies.

    Parameters
    ----------
    trace
        A trace file or folder, or a preset ('equipoise trace formats' lists both). Repeatable.
    cost
        Step costs: v1, v2, a measured preset (equipoise cost list), MODEL:v1 or MODEL:v2 for a model preset, or a
        file. Commas or repeated.
    policy
        A policy with its parameters, such as dualpath,z=1.2 or ./mine.py:place. Repeatable; the article's
        eleven by default.
    deployment
        Whole deployments in place of a pool: presets ('equipoise simulate --list') or TOML files. Repeatable; each has
        its own pool and information.
    ranks
        DP ranks of an instance; 64 by default.
    instances
        Instances, each with its own step clock; 1 by default.
    concurrency
        Requests in the pool; 32 a rank by default. With arrivals, if given, their rate is scaled so that about so many
        run. Of a deployment: by default what its KV caches hold, 32 a rank at most, and arrivals are scaled to it.
    load_per_rank
        The same, a rank.
    requests
        Requests of a run; a short trace is cycled. Default: enough to turn the pool over 20 times.
    mode
        saturated keeps the pool full; timed follows the arrival times; sessions sends the later turns of a
        conversation when the one before has ended. Default: saturated, of deployments timed.
    rate_scale
        With arrivals: they come this many times as fast.
    kv_capacity_tokens
        KV cache of a rank, in tokens; unlimited by default.
    max_batch
        Running requests a rank may hold; unlimited by default.
    growth_reserve_tokens
        Tokens the capacity filter keeps free on a rank for growth.
    groups
        Cut the instances into so many groups; several values, such as 1,2,4,10, are compared.
    group_policy
        How a group is chosen: least_batch, least_tokens or both.
    knows
        What a router knows of the ranks: exact, the true state; ledger, its own requests exactly and the rest by
        reports; extrapolated, the same, its own by their age from report to report; acknowledged, reports and its own
        dispatches they have not seen; erased, reports that overwrite it.
    replicas
        Routers that place requests side by side, each with a picture of its own.
    report_period_steps
        Steps from one report of an instance to the next.
    report_delay_steps
        Steps of the instance until a report comes in.
    report_delay_ms
        Milliseconds until it comes in, on top.
    report_period_ms
        Reports come by the clock, every so many milliseconds, instead of every so many steps.
    split_
        What replicas share: request, each places its own anywhere; instance, each owns some instances and chooses
        the ranks inside them on exact knowledge.
    seeds
        Runs a cell, each with other requests; all policies see the same ones.
    seed
        The first seed.
    baseline
        The policy others are compared with; the first one by default.
    us_per_unit
        Microseconds per unit of the costs, the clock of timed mode.
    warmup_turnovers
        Steps count once finished requests reach this many times the peak of running ones.
    oracle
        Also search what one who knows the future would reach, and say what share of it each policy wins. A pool alone.
    output_dir
        Write summary.json, steps.parquet, report.html, plots and timeline.json there.
    report
        With --no-report only the data files are written.
    jobs
        Replays at a time; one a processor by default.
    runner
        Who runs the replays: threads here, or a Ray cluster (needs 'equipoise[ray]').
    ray_address
        host:port of the cluster's head node, or auto.
    checkpoint_dir
        Keep every finished run there; the same command goes on where it was stopped.
    """
    if output_dir is not None:
        check_folder(output_dir)
    if deployment:
        _alone(ranks, instances, kv_capacity_tokens, max_batch, growth_reserve_tokens)
    mode = mode or ("timed" if deployment else "saturated")
    from equipoise import study
    from equipoise.fleet.files import load as load_deployment
    from equipoise.policies import parse
    from equipoise.replay import Information, Pool
    from equipoise.study import ComparePlan
    from equipoise.study.bounds import budget_of, check_plan, with_oracle

    plan = ComparePlan(
        traces=trace,
        costs=costs_from(cost, us_per_unit),
        policies=[parse(text) for text in policy] or study.default_policies(),
        pool=Pool(
            1 if instances is None else instances,
            64 if ranks is None else ranks,
            kv_capacity_tokens,
            max_batch,
            growth_reserve_tokens,
        ),
        groups=whole_numbers(groups, "--groups"),
        group_policies=split(group_policy, "--group-policy"),  # type: ignore[arg-type]
        mode=mode,
        concurrency=concurrency,
        requests=requests,
        seeds=seeds,
        first_seed=seed,
        rate_scale=rate_scale,
        warmup_turnovers=warmup_turnovers,
        information=Information(
            knows,
            replicas,
            report_period_steps,
            report_delay_steps,
            report_delay_ms / 1000,
            report_period_ms / 1000,
            split_,
        ),
        baseline=baseline,
        load_per_rank=load_per_rank,
        deployments={name: load_deployment(name) for name in _once(deployment)},
    )
    budget = budget_of(oracle_budget)
    if oracle:
        check_plan(plan)
    if mode != "saturated" and not deployment and (concurrency is not None or load_per_rank is not None):
        for c in plan.costs:
            if c.constant == 0 and not any(t.batch_floor or t.batch_table for t in c.terms):
                print(
                    f"note: cost {c.name} has no fixed part, so no arrival rate belongs to {plan.target_concurrency()} "
                    "requests: the pool runs at its capacity and its load wanders",
                    file=sys.stderr,
                )
    with progress("compare", "runs", quiet=quiet or as_json) as tick:
        comparison = study.compare(
            plan, progress=tick, runner=_runner(runner, jobs, ray_address, checkpoint_dir)
        )
    if oracle:
        with progress("oracle", "searches", quiet=quiet or as_json) as tick:
            comparison = with_oracle(comparison, budget, jobs=default_jobs(jobs), progress=tick)
    if output_dir is not None:
        _write(comparison, output_dir, report)
    if as_json:
        print(study.to_json(study.summarize(comparison, timing=True)), end="")
    else:
        from rich.console import Console

        from equipoise.report.tables import print_tables

        print_tables(comparison, Console())


def _once(names: tuple[str, ...]) -> list[str]:
    found = split(names, "--deployment")
    for name in found:
        if found.count(name) > 1:
            raise InputError(f"{name!r} is given twice", where="--deployment", fix="name each once")
    return found


def _alone(
    ranks: int | None,
    instances: int | None,
    kv_capacity_tokens: int | None,
    max_batch: int | None,
    growth_reserve_tokens: int,
) -> None:
    """A deployment says what its pool is; options beside it would be silently lost."""
    given = {
        "--ranks": ranks,
        "--instances": instances,
        "--kv-capacity-tokens": kv_capacity_tokens,
        "--max-batch": max_batch,
        "--growth-reserve-tokens": growth_reserve_tokens or None,
    }
    for option, value in given.items():
        if value is not None:
            raise InputError(
                f"{option} {value} beside --deployment", fix="change the pool in the deployment's file"
            )


def _runner(kind: str, jobs: int | None, ray_address: str | None, checkpoint_dir: Path | None) -> Runner:
    from equipoise.study.checkpoint import Checkpoint
    from equipoise.study.runner import threads

    if ray_address is not None and kind != "ray":
        raise InputError(f"{ray_address!r} without a cluster", where="--ray-address", fix="add --runner ray")
    checkpoint = None if checkpoint_dir is None else Checkpoint(checkpoint_dir)
    if kind == "threads":
        return threads(default_jobs(jobs), checkpoint)
    from equipoise.study.ray_runner import on_ray

    return on_ray(ray_address, checkpoint)


def _write(comparison: Comparison, folder: Path, report: bool) -> None:
    from equipoise.study.folder import staged, write_data

    with staged(folder) as stage:
        write_data(comparison, stage)
        if report:
            from equipoise.report import write_report

            write_report(comparison, stage)
        written = sorted(p.name for p in stage.iterdir())
    print(f"wrote {folder}/: {', '.join(written)}", file=sys.stderr)

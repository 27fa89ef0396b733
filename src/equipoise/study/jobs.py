"""One replay of a comparison as plain data, and what is kept of it: it can run in a thread, a process or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from equipoise.fleet import Deployment, FleetResult, simulate
from equipoise.policies import Policy
from equipoise.replay import Percentiles, ReplayResult, SnapshotPlan, replay
from equipoise.study import loads
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.statistics import Interval, block_ratio
from equipoise.study.workloads import rate_for, workload
from equipoise.traces.resolve import preset_of
from equipoise.traces.trace import Trace

__all__ = ["Batch", "Job", "Measures", "Run", "batches", "common_window", "replay_job", "run_job", "run_of"]


@dataclass(frozen=True, slots=True)
class Job:
    """A policy in a setting, for one seed.

    Parameters
    ----------
    setting : Setting
    policy : Policy
    seed : int
    rate_scale : float
    warmup_turnovers : float
    keep : bool
        Keep the whole result: series, requests.
    rate_per_s : float, optional
        Arrivals a second, before `rate_scale`.
    """

    setting: Setting
    policy: Policy
    seed: int
    rate_scale: float
    warmup_turnovers: float
    keep: bool
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The jobs that see the same requests.

    Parameters
    ----------
    trace : str
    seed : int
    concurrency : int
        What the pool is to hold, for the length of a drawn trace and its start in the steady state.
    requests : int, optional
    timed, as_recorded : bool
    jobs : sequence of Job
    """

    trace: str
    seed: int
    concurrency: int
    requests: int | None
    timed: bool
    as_recorded: bool
    jobs: tuple[Job, ...]

    def draw(self, source: Trace | None) -> Trace:
        """The requests of this batch; `source` is the trace file as read, None for a preset."""
        return workload(
            self.trace,
            source,
            seed=self.seed,
            concurrency=self.concurrency,
            requests=self.requests,
            timed=self.timed,
            as_recorded=self.as_recorded,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """What one replay showed over its counted steps; each field is the property of `ReplayResult` of that name."""

    excess: float
    balance: float
    bubble_share: float
    max_over_mean_batch: float
    max_over_mean_context: float
    mean_step_ms: float
    mean_batch: float
    mean_context_tokens: float
    batch_growth: float
    tokens_per_s: float
    arrived: int
    rejected: int
    blocked_requests: int
    blocked_rounds: int
    over_capacity_rank_steps: int
    steps: int
    counted_steps: int
    counted_range: tuple[int, int]
    counted_s: tuple[float, float]
    queue_wait_ms: Percentiles | None
    tpot_ms: Percentiles | None
    wall_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Run(Measures):
    """What is kept of one replay."""

    seed: int
    rate_scale: float
    block_excess: Interval
    result: ReplayResult | None
    """The whole replay, where it was asked for."""

    def without_result(self) -> Run:
        """The figures alone."""
        return replace(self, result=None)


def run_of(result: ReplayResult, job: Job, rate_scale: float) -> Run:
    """What is kept of a result."""
    measured: dict[str, Any] = {f.name: getattr(result, f.name) for f in fields(Measures)}
    return Run(
        **measured,
        seed=job.seed,
        rate_scale=rate_scale,
        block_excess=block_ratio(*result.block_excess),
        result=result if job.keep else None,
    )


def batches(plan: ComparePlan) -> list[Batch]:
    """All jobs of a plan: trace by trace, deployment by deployment, seed by seed; then settings and policies."""
    timed = plan.mode != "saturated"
    settings = plan.settings()
    found = []
    for trace in plan.traces:
        for name in plan.deployments or (None,):
            chosen = [s for s in settings if s.trace == trace and s.deployment_name == name]
            concurrency = chosen[0].concurrency or plan.target_concurrency(chosen[0].pool)
            for seed in range(plan.first_seed, plan.first_seed + plan.seeds):
                keep = timed or seed == plan.first_seed
                jobs = tuple(
                    Job(setting, policy, seed, plan.rate_scale, plan.warmup_turnovers, keep, plan.rate_per_s)
                    for setting in chosen
                    for policy in plan.policies
                )
                found.append(Batch(trace, seed, concurrency, plan.requests, timed, plan.seeds == 1, jobs))
    return found


def replay_job(
    job: Job, trace: Trace, *, rate_scale: float | None = None, snapshots: SnapshotPlan | None = None
) -> tuple[ReplayResult, float]:
    """Run a job on its requests; the result, and the factor on the arrival rate that was used."""
    setting = job.setting
    timed = setting.mode != "saturated"
    deployment = setting.simulated
    if rate_scale is None:
        rate_scale = job.rate_scale
        if job.rate_per_s is not None:
            rate_scale *= job.rate_per_s / loads.recorded_rate_per_s(trace)
        if timed and setting.concurrency is not None:
            if deployment is None:
                rate_scale *= rate_for(trace, setting.cost, setting.pool, setting.concurrency)
            else:
                rate_scale *= loads.rate_for(trace, setting.cost, deployment, setting.concurrency)
    if deployment is not None:
        return _simulated(job, deployment, trace, rate_scale, snapshots), rate_scale
    assert setting.mode != "sessions"
    result = replay(
        trace,
        setting.pool,
        job.policy,
        setting.cost,
        mode=setting.mode,
        concurrency=None if timed else setting.concurrency,
        seed=job.seed,
        rate_scale=rate_scale,
        group_policy=setting.group_policy,
        warmup_turnovers=job.warmup_turnovers,
        drain=timed,  # the last requests' latencies count, the last steps do not
        snapshots=snapshots,
    )
    return result, rate_scale


def _simulated(
    job: Job, deployment: Deployment, trace: Trace, rate_scale: float, snapshots: SnapshotPlan | None
) -> FleetResult:
    setting = job.setting
    timed = setting.mode != "saturated"
    scale = rate_scale
    if setting.mode == "sessions" and scale != 1.0 and preset_of(setting.trace):
        trace, scale = loads.redrawn(trace, setting.trace, job.seed, scale), 1.0
    result = simulate(
        trace,
        deployment,
        job.policy,
        setting.cost,
        mode=setting.mode,
        concurrency=None if timed else setting.concurrency,
        seed=job.seed,
        rate_scale=scale,
        group_policy=setting.group_policy,
        warmup_turnovers=job.warmup_turnovers,
        drain=timed,
        snapshots=snapshots,
    )
    return replace(result, rate_scale=rate_scale)


def run_job(job: Job, trace: Trace) -> Run:
    """Run a job on its requests and keep its figures."""
    result, rate_scale = replay_job(job, trace)
    return run_of(result, job, rate_scale)


def common_window(jobs: Sequence[Job], runs: Sequence[Run]) -> list[Run]:
    """Count the same stretch of time in every run of a setting: of runs with arrivals, which kept their results.

    Each run begins to count when its own pool has turned over. Arrivals differ along a trace, so the policies of a
    setting would otherwise be averaged over different traffic. The stretch is the one that all of them counted; where
    there is none, each run keeps its own.
    """
    by_setting: dict[Setting, list[int]] = {}
    for i, job in enumerate(jobs):
        by_setting.setdefault(job.setting, []).append(i)
    found = list(runs)
    for members in by_setting.values():
        first_s = max(runs[i].counted_s[0] for i in members)
        last_s = min(runs[i].counted_s[1] for i in members)
        if not first_s < last_s:
            continue
        for i in members:
            result = runs[i].result
            if result is not None and (first_s, last_s) != runs[i].counted_s:
                found[i] = run_of(result.counted_between(first_s, last_s), jobs[i], runs[i].rate_scale)
    return found

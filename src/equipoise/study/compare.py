"""`compare`: run the grid, gather every cell over its seeds, and say which differences are real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from equipoise.policies import Policy
from equipoise.replay import Percentiles, ReplayResult, SnapshotPlan, replay
from equipoise.replay.layout import SERIES
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.statistics import Interval, block_ratio, over_seeds, paired, simultaneous, unpaired
from equipoise.study.workloads import load_source, rate_for, workload
from equipoise.traces.trace import Trace
from equipoise.types import Floats

__all__ = ["Cell", "Comparison", "Difference", "Run", "compare", "rerun"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What is kept of one replay."""

    seed: int
    excess: float
    balance: float
    bubble_share: float
    max_over_mean_batch: float
    max_over_mean_context: float
    mean_step_ms: float
    mean_batch: float
    mean_context_tokens: float
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
    rate_scale: float
    queue_wait_ms: Percentiles | None
    tpot_ms: Percentiles | None
    wall_s: float
    block_excess: Interval
    result: ReplayResult | None
    """The whole replay, kept for the first seed: series, requests."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """One policy in one setting, over all seeds."""

    setting: Setting
    policy: Policy
    runs: tuple[Run, ...]

    @property
    def replicated(self) -> bool:
        """Whether the seeds really gave different runs; a trace of one session cannot be mixed anew."""
        return len({r.excess for r in self.runs}) > 1

    @property
    def excess(self) -> Interval:
        """Excess over ideal: over seeds if there are several different runs, over blocks of the first otherwise."""
        if self.replicated:
            return over_seeds([r.excess for r in self.runs])
        return self.runs[0].block_excess

    def mean(self, field: str) -> float:
        """Mean of a field of `Run` over seeds."""
        return float(np.mean([getattr(r, field) for r in self.runs]))

    def percentiles(self, field: str) -> Mapping[str, float] | None:
        """Mean over seeds of each percentile of ``queue_wait_ms`` or ``tpot_ms``."""
        found = [getattr(r, field) for r in self.runs]
        if any(p is None for p in found):
            return None
        return {
            k: float(np.mean([getattr(p, k) for p in found])) for k in ("mean", "p50", "p90", "p95", "p99")
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """Excess of one policy minus that of another in the same setting, on the same requests."""

    setting: Setting
    policy: Policy
    against: Policy
    excess: Interval


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All cells of a plan, grouped by setting in the order of the plan."""

    plan: ComparePlan
    cells: tuple[Cell, ...]

    def settings(self) -> list[Setting]:
        """Settings in order."""
        seen: dict[int, Setting] = {}
        for cell in self.cells:
            seen.setdefault(id(cell.setting), cell.setting)
        return list(seen.values())

    def of(self, setting: Setting) -> list[Cell]:
        """Cells of one setting, in the order of the policies."""
        return [c for c in self.cells if c.setting is setting]

    def best(self, setting: Setting) -> Cell:
        """The cell with the least mean excess; ties: the first."""
        return min(self.of(setting), key=lambda c: c.excess.mean)

    def baseline(self, setting: Setting) -> Cell:
        """The cell that differences are taken against."""
        label = self.plan.baseline_label()
        return next(c for c in self.of(setting) if c.policy.label == label)

    def difference(self, cell: Cell, against: Cell) -> Difference:
        """Paired over seeds; over blocks where the seeds gave one run.

        Against the best of the setting, which was picked by these very runs, the interval holds for all pairs at once.
        """
        if cell.replicated or against.replicated:
            excess = paired([r.excess for r in cell.runs], [r.excess for r in against.runs])
        else:
            excess = unpaired(cell.runs[0].block_excess, against.runs[0].block_excess)
        if against is self.best(cell.setting):
            excess = simultaneous(excess, len(self.of(cell.setting)))
        return Difference(cell.setting, cell.policy, against.policy, excess)


def compare(plan: ComparePlan, *, jobs: int = 2, progress: Progress | None = None) -> Comparison:
    """Run every cell of a plan.

    Parameters
    ----------
    plan : ComparePlan
    jobs : int
        Replays at a time; the kernel releases the interpreter lock. Results do not depend on it.
    progress : function, optional
        Called with (runs done, runs in all).

    Raises
    ------
    EquipoiseError
        The first error of any run; the others are cancelled.
    """
    settings = plan.settings()
    seeds = range(plan.first_seed, plan.first_seed + plan.seeds)
    runs: dict[tuple[int, int, int], Run] = {}
    total = len(settings) * len(plan.policies) * plan.seeds
    lock, stop = threading.Lock(), threading.Event()

    def one(
        key: tuple[int, int, int], setting: Setting, policy: Policy, trace: Trace, seed: int, scale: float
    ) -> None:
        if stop.is_set():
            return
        run = _run(setting, policy, trace, seed, scale, plan.warmup_turnovers, keep=seed == plan.first_seed)
        with lock:
            runs[key] = run
            if progress is not None:
                progress(len(runs), total)

    executor = ThreadPoolExecutor(max_workers=max(1, jobs))
    try:
        for spec in plan.traces:
            source = load_source(spec)
            for seed in seeds:
                trace = workload(
                    spec,
                    source,
                    seed=seed,
                    concurrency=plan.target_concurrency(),
                    requests=plan.requests,
                    timed=plan.mode == "timed",
                    as_recorded=plan.seeds == 1,
                )
                futures = []
                for s, setting in enumerate(settings):
                    if setting.trace != spec:
                        continue
                    scale = plan.rate_scale
                    if plan.mode == "timed" and plan.concurrency is not None:
                        scale *= rate_for(trace, setting.cost, setting.pool, plan.concurrency)
                    for p, policy in enumerate(plan.policies):
                        futures.append(
                            executor.submit(one, (s, p, seed), setting, policy, trace, seed, scale)
                        )
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
    except BaseException as error:
        stop.set()
        # A replay under way cannot be stopped from outside; whoever pressed Ctrl-C shall not wait for it.
        executor.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
        raise
    executor.shutdown()
    cells = tuple(
        Cell(setting, policy, tuple(runs[s, p, seed] for seed in seeds))
        for s, setting in enumerate(settings)
        for p, policy in enumerate(plan.policies)
    )
    return Comparison(plan, cells)


def rerun(plan: ComparePlan, cell: Cell, snapshots: SnapshotPlan) -> ReplayResult:
    """Run the first seed of a cell again and keep the ranks of chosen steps; replays are deterministic."""
    source = load_source(cell.setting.trace)
    trace = workload(
        cell.setting.trace,
        source,
        seed=plan.first_seed,
        concurrency=plan.target_concurrency(),
        requests=plan.requests,
        timed=plan.mode == "timed",
        as_recorded=plan.seeds == 1,
    )
    return _replay(
        cell.setting,
        cell.policy,
        trace,
        plan.first_seed,
        cell.runs[0].rate_scale,
        plan.warmup_turnovers,
        snapshots,
    )


def _replay(
    setting: Setting,
    policy: Policy,
    trace: Trace,
    seed: int,
    rate_scale: float,
    warmup_turnovers: float,
    snapshots: SnapshotPlan | None,
) -> ReplayResult:
    return replay(
        trace,
        setting.pool,
        policy,
        setting.cost,
        mode=setting.mode,
        concurrency=setting.concurrency if setting.mode == "saturated" else None,
        seed=seed,
        rate_scale=rate_scale,
        group_policy=setting.group_policy,
        warmup_turnovers=warmup_turnovers,
        drain=setting.mode == "timed",  # the last requests' latencies count, the last steps do not
        snapshots=snapshots,
    )


def _run(
    setting: Setting,
    policy: Policy,
    trace: Trace,
    seed: int,
    rate_scale: float,
    warmup_turnovers: float,
    *,
    keep: bool,
) -> Run:
    result = _replay(setting, policy, trace, seed, rate_scale, warmup_turnovers, None)
    rows: Floats = result.counted_series
    return Run(
        seed=seed,
        excess=result.excess,
        balance=result.balance,
        bubble_share=result.bubble_share,
        max_over_mean_batch=result.max_over_mean_batch,
        max_over_mean_context=result.max_over_mean_context,
        mean_step_ms=result.mean_step_ms,
        mean_batch=result.mean_batch,
        mean_context_tokens=result.mean_context_tokens,
        tokens_per_s=result.tokens_per_s,
        arrived=result.arrived,
        rejected=result.rejected,
        blocked_requests=result.blocked_requests,
        blocked_rounds=result.blocked_rounds,
        over_capacity_rank_steps=result.over_capacity_rank_steps,
        steps=result.steps,
        counted_steps=result.counted_steps,
        counted_range=result.counted_range,
        counted_s=result.counted_s,
        rate_scale=rate_scale,
        queue_wait_ms=result.queue_wait_ms,
        tpot_ms=result.tpot_ms,
        wall_s=result.wall_s,
        block_excess=block_ratio(rows[:, SERIES.COST], rows[:, SERIES.IDEAL], rows[:, SERIES.STEPS]),
        result=result if keep else None,
    )

"""`compare`: run the grid, gather every cell over its seeds, and say which differences are real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.policies import Policy
from equipoise.replay import ReplayResult, SnapshotPlan
from equipoise.study.jobs import Run, batches, common_window, replay_job
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.runner import Runner, threads
from equipoise.study.statistics import Interval, over_seeds, paired, simultaneous, unpaired
from equipoise.study.workloads import load_source

if TYPE_CHECKING:
    from equipoise.study.bounds import Bound

__all__ = ["Cell", "Comparison", "Difference", "between", "compare", "rerun"]

Progress = Callable[[int, int], None]


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
        """Excess over ideal: over seeds if there are several different runs, over blocks of the first otherwise.

        No step costs less than its ideal, so neither end is below 0.
        """
        found = over_seeds([r.excess for r in self.runs]) if self.replicated else self.runs[0].block_excess
        return found.never_below(0.0)

    def values(self, field: str) -> list[float]:
        """A field of `Run` for each seed; of ``queue_wait_ms`` and ``tpot_ms`` the mean, NaN where there is none."""
        found = [getattr(r, field) for r in self.runs]
        if field in ("queue_wait_ms", "tpot_ms"):
            return [float("nan") if p is None else p.mean for p in found]
        return [float(v) for v in found]

    def mean(self, field: str) -> float:
        """Mean of a field of `Run` over seeds."""
        return float(np.mean(self.values(field)))

    def percentiles(self, field: str) -> Mapping[str, float] | None:
        """Mean over seeds of each percentile of ``queue_wait_ms`` or ``tpot_ms``."""
        found = [getattr(r, field) for r in self.runs]
        if any(p is None for p in found):
            return None
        return {
            k: float(np.mean([getattr(p, k) for p in found])) for k in ("mean", "p50", "p90", "p95", "p99")
        }


def between(cell: Cell, against: Cell, measure: str = "excess") -> Interval:
    """A measure of one cell minus that of another of its setting.

    Paired over seeds; where the seeds gave one run, over its blocks, which only the excess has.
    """
    if cell.replicated or against.replicated or measure != "excess":
        return paired(cell.values(measure), against.values(measure))
    return unpaired(cell.runs[0].block_excess, against.runs[0].block_excess)


@dataclass(frozen=True, slots=True)
class Difference:
    """One policy against another in the same setting, on the same requests.

    Parameters
    ----------
    setting : Setting
    policy, against : Policy
    values : Interval
        The measure of `policy` minus that of `against`.
    measure : str
        ``excess``, or another field of `Run`; ``tpot_ms`` and ``queue_wait_ms`` by their means.
    """

    setting: Setting
    policy: Policy
    against: Policy
    values: Interval
    measure: str = "excess"

    @property
    def excess(self) -> Interval:
        """The values, where the measure is the excess."""
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All cells of a plan, grouped by setting in the order of the plan."""

    plan: ComparePlan
    cells: tuple[Cell, ...]
    bounds: tuple[Bound, ...] = ()
    """What the oracle reached, setting by setting; empty unless asked for (`equipoise.study.bounds.with_oracle`)."""

    def bound(self, setting: Setting) -> Bound | None:
        """What the oracle reached in a setting."""
        return next((b for b in self.bounds if b.setting == setting), None)

    def settings(self) -> list[Setting]:
        """Settings in order."""
        return list(dict.fromkeys(cell.setting for cell in self.cells))

    def of(self, setting: Setting) -> list[Cell]:
        """Cells of one setting, in the order of the policies."""
        return [c for c in self.cells if c.setting == setting]

    def best(self, setting: Setting, measure: str = "excess") -> Cell:
        """The cell with the least mean of a measure; ties: the first."""
        return min(self.of(setting), key=lambda c: c.mean(measure))

    def baseline(self, setting: Setting) -> Cell:
        """The cell that differences are taken against."""
        text = self.plan.baseline_policy().text
        return next(c for c in self.of(setting) if c.policy.text == text)

    def difference(self, cell: Cell, against: Cell, measure: str = "excess") -> Difference:
        """As `between` has it, and for all pairs at once against the best of the setting: these very runs picked it."""
        values = between(cell, against, measure)
        if against is self.best(cell.setting, measure):
            values = simultaneous(values, len(self.of(cell.setting)))
        return Difference(cell.setting, cell.policy, against.policy, values, measure)


def compare(
    plan: ComparePlan, *, jobs: int = 2, progress: Progress | None = None, runner: Runner | None = None
) -> Comparison:
    """Run every cell of a plan.

    Parameters
    ----------
    plan : ComparePlan
    jobs : int
        Replays at a time. Results do not depend on it.
    progress : function, optional
        Called with (runs done, runs in all).
    runner : Runner, optional
        Who runs the jobs; `equipoise.study.runner.threads` by default.

    Raises
    ------
    EquipoiseError
        The first error of any run; the others are cancelled.
    """
    work = batches(plan)
    total = sum(len(batch.jobs) for batch in work)
    lock, count = threading.Lock(), 0

    def done() -> None:
        nonlocal count
        with lock:
            count += 1
            if progress is not None:
                progress(count, total)

    found: dict[tuple[Setting, str], list[Run]] = {}
    for batch, runs in zip(work, (runner or threads(jobs))(work, done), strict=True):
        if batch.timed:
            runs = common_window(batch.jobs, runs)
        for job, run in zip(batch.jobs, runs, strict=True):
            kept = run if job.seed == plan.first_seed else run.without_result()
            found.setdefault((job.setting, job.policy.text), []).append(kept)
    return Comparison(
        plan,
        tuple(
            Cell(setting, policy, tuple(found[setting, policy.text]))
            for setting in plan.settings()
            for policy in plan.policies
        ),
    )


def rerun(plan: ComparePlan, cell: Cell, snapshots: SnapshotPlan) -> ReplayResult:
    """Run the first seed of a cell again and keep the ranks of chosen steps; replays are deterministic."""
    batch, job = next(
        (b, j)
        for b in batches(plan)
        for j in b.jobs
        if j.setting == cell.setting and j.policy.text == cell.policy.text
    )
    trace = batch.draw(load_source(batch.trace))
    return replay_job(job, trace, rate_scale=cell.runs[0].rate_scale, snapshots=snapshots)[0]

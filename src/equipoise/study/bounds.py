"""A comparison with its oracle: what was there to win in each setting, and what share of it each policy won."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.replay import ReplayResult
from equipoise.study.compare import Cell, Comparison, Progress
from equipoise.study.jobs import Batch, Job, Run, batches, replay_job, run_of
from equipoise.study.oracle import Budget
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.share import share
from equipoise.study.statistics import Interval, over_seeds
from equipoise.study.workloads import load_source

if TYPE_CHECKING:
    from equipoise.study.oracle import OracleResult

__all__ = ["BASELINE", "DEFAULT_BUDGET", "Bound", "budget_of", "share_of", "with_oracle"]

BASELINE = "round_robin"
"""What shares are counted from: the router that looks at nothing. It has no parameter and no luck, as `random` has, and
every load balancer can do it, so what it loses is what routing by load is about."""
DEFAULT_BUDGET = Budget(candidates=2_000_000)


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """What the oracle and the baseline came to in one setting, seed by seed.

    Parameters
    ----------
    setting : Setting
    runs : sequence of Run
        The oracle's, played back.
    baseline : sequence of Run
        Those of `BASELINE`.
    starts : sequence of str
        Label of the policy each search started from.
    candidates : int
        Exchanges looked at, all seeds together.
    """

    setting: Setting
    runs: tuple[Run, ...]
    baseline: tuple[Run, ...]
    starts: tuple[str, ...]
    candidates: int

    @property
    def excess(self) -> Interval:
        """The oracle's excess over ideal."""
        return _excess(self.runs)

    @property
    def baseline_excess(self) -> Interval:
        """That of the baseline."""
        return _excess(self.baseline)


def _excess(runs: Sequence[Run]) -> Interval:
    several = len({r.excess for r in runs}) > 1
    return (over_seeds([r.excess for r in runs]) if several else runs[0].block_excess).never_below(0.0)


def budget_of(text: str, where: str = "--oracle-budget") -> Budget:
    """Read a budget: seconds such as ``30s``, or a number of candidates.

    Raises
    ------
    InputError
        Neither.
    """
    number = text.strip().lower().replace("_", "")
    try:
        if number.endswith("s"):
            return Budget(seconds=float(number[:-1]))
        return Budget(candidates=int(number))
    except InputError as error:
        raise InputError(error.what, where=where, fix=error.fix) from None
    except ValueError:
        raise InputError(
            f"{text!r} is no budget",
            where=where,
            fix="give seconds such as 30s, or candidates such as 2000000",
        ) from None


def share_of(cell: Cell, bound: Bound) -> Interval:
    """Share of what any router could win that a policy won, over paired seeds."""
    return share(
        [r.excess for r in bound.baseline], [r.excess for r in cell.runs], [r.excess for r in bound.runs]
    )


def check_plan(plan: ComparePlan) -> None:
    """Refuse what the oracle cannot play back."""
    if plan.deployments or plan.mode == "sessions":
        what = "a deployment" if plan.deployments else "sessions mode"
        raise InputError(
            f"the oracle cannot play back {what}",
            where="oracle",
            fix="study the pool alone, in saturated or timed mode",
        )


def with_oracle(
    comparison: Comparison,
    budget: Budget = DEFAULT_BUDGET,
    *,
    jobs: int = 2,
    progress: Progress | None = None,
) -> Comparison:
    """The comparison with `bounds` filled in: an oracle for every setting and seed.

    Parameters
    ----------
    comparison : Comparison
    budget : Budget
        Of each search: one a setting and seed.
    jobs : int
        Searches at a time. With a budget of candidates results do not depend on it.
    progress : function, optional
        Called with (searches done, searches in all).

    Raises
    ------
    InputError
        Deployments or sessions, or runs larger than the oracle looks at.
    """
    plan = comparison.plan
    check_plan(plan)
    work = batches(plan)
    settings = comparison.settings()
    total = sum(len(_settings(batch)) for batch in work)
    lock, count = threading.Lock(), 0
    found: dict[Setting, list[tuple[Run, Run, OracleResult]]] = {s: [] for s in settings}

    def one(batch: Batch, setting: Setting, cells: list[Cell]) -> tuple[Run, Run, OracleResult]:
        nonlocal count
        job = next(j for j in batch.jobs if j.setting == setting)
        result = _bound_run(batch, job, cells, budget)
        with lock:
            count += 1
            if progress is not None:
                progress(count, total)
        return result

    executor = ThreadPoolExecutor(max_workers=max(1, jobs))
    try:
        futures = [
            (setting, executor.submit(one, batch, setting, comparison.of(setting)))
            for batch in work
            for setting in _settings(batch)
        ]
        for setting, future in futures:
            found[setting].append(future.result())
    except BaseException as error:
        executor.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
        raise
    executor.shutdown()
    bounds = tuple(
        Bound(
            setting,
            tuple(run for run, _, _ in rows),
            tuple(run for _, run, _ in rows),
            tuple(o.start_policy.label for _, _, o in rows),
            sum(o.candidates for _, _, o in rows),
        )
        for setting, rows in found.items()
    )
    return replace(comparison, bounds=bounds)


def _settings(batch: Batch) -> list[Setting]:
    return list(dict.fromkeys(job.setting for job in batch.jobs))


def _bound_run(
    batch: Batch, job: Job, cells: Sequence[Cell], budget: Budget
) -> tuple[Run, Run, OracleResult]:
    """The oracle's run and the baseline's for one setting and seed."""
    from equipoise.study.oracle import oracle  # compiled code: loaded only where it is asked for

    setting = job.setting
    trace = batch.draw(load_source(batch.trace))
    seen = next(r for r in cells[0].runs if r.seed == job.seed)
    timed = setting.mode != "saturated"
    found = oracle(
        trace,
        setting.pool,
        setting.cost,
        budget=budget,
        policies=[c.policy for c in cells],
        seed=job.seed,
        mode=setting.mode,
        concurrency=None if timed else setting.concurrency,
        rate_scale=seen.rate_scale if timed else 1.0,
        warmup_turnovers=job.warmup_turnovers,
        drain=timed,
    )
    plain, _ = replay_job(replace(job, policy=parse(BASELINE)), trace, rate_scale=seen.rate_scale)
    small = replace(job, keep=False)
    window = seen.counted_s if timed else None
    return (
        run_of(_inside(found.result, window), small, seen.rate_scale),
        run_of(_inside(plain, window), small, seen.rate_scale),
        found,
    )


def _inside(result: ReplayResult, window: tuple[float, float] | None) -> ReplayResult:
    """The stretch of time that the policies were counted over, where this run counted it too."""
    if window is None or not all(map(math.isfinite, window)):
        return result
    try:
        return result.counted_between(*window)
    except InputError:
        return result

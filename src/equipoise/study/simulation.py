"""`simulate_all`: one deployment under several policies, every run kept whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from equipoise.errors import InputError
from equipoise.fleet import FleetResult
from equipoise.policies import Policy
from equipoise.replay import SnapshotPlan
from equipoise.study.jobs import Batch, Job, batches, replay_job
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.runner import Sources
from equipoise.traces.trace import Trace

__all__ = ["Simulated", "again", "simulate_all"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """One policy: a run a seed, all policies on the same requests.

    Parameters
    ----------
    setting : Setting
    policy : Policy
    runs : tuple of FleetResult
        In the order of the seeds.
    """

    setting: Setting
    policy: Policy
    runs: tuple[FleetResult, ...]


def simulate_all(plan: ComparePlan, *, jobs: int = 2, progress: Progress | None = None) -> list[Simulated]:
    """Run a plan of one deployment, trace and cost, in the order of its policies.

    Parameters
    ----------
    plan : ComparePlan
    jobs : int
        Runs at a time. Results do not depend on it.
    progress : function, optional
        Called with (runs done, runs in all).

    Raises
    ------
    InputError
        The plan has several settings, or names no deployment.
    EquipoiseError
        The first error of any run; those that have not begun are not run.
    """
    settings = plan.settings()
    if len(settings) != 1 or settings[0].deployment is None:
        raise InputError(
            f"{len(settings)} settings", fix="simulate one deployment, trace, cost and way to choose a group"
        )
    work = batches(plan)
    total, count, lock, stop = sum(len(b.jobs) for b in work), 0, threading.Lock(), threading.Event()
    found: dict[str, list[FleetResult]] = {p.text: [] for p in plan.policies}
    sources = Sources()

    def one(job: Job, trace: Trace) -> FleetResult | None:
        nonlocal count
        if stop.is_set():
            return None
        result = _run(job, trace)
        with lock:
            count += 1
            if progress is not None:
                progress(count, total)
        return result

    executor = ThreadPoolExecutor(max_workers=max(1, jobs))
    try:
        for batch in work:
            trace = sources.draw(batch)
            futures = [executor.submit(one, job, trace) for job in batch.jobs]
            ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in ended:
                future.result()
            for job, future in zip(batch.jobs, futures, strict=True):
                result = future.result()
                assert result is not None
                found[job.policy.text].append(result)
    except BaseException as error:
        stop.set()
        executor.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
        raise
    executor.shutdown()
    return [Simulated(settings[0], p, tuple(found[p.text])) for p in plan.policies]


def again(plan: ComparePlan, policy: Policy, snapshots: SnapshotPlan) -> FleetResult:
    """Run the first seed of a policy again and keep the ranks of chosen steps; runs are deterministic."""
    batch: Batch = batches(plan)[0]
    job = next(j for j in batch.jobs if j.policy.text == policy.text)
    return _run(job, Sources().draw(batch), snapshots)


def _run(job: Job, trace: Trace, snapshots: SnapshotPlan | None = None) -> FleetResult:
    result, _ = replay_job(job, trace, snapshots=snapshots)
    assert isinstance(result, FleetResult)
    return result

"""`replay`: from a trace, a pool, a policy and a step cost to a `ReplayResult`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError, PolicyError
from equipoise.policies import Policy, parse
from equipoise.replay.layout import ENDED, ORDERLESS_ROUNDS, TOTALS, Outcome, Settings, Work, new_outcome
from equipoise.replay.pool import Pool
from equipoise.replay.result import ReplayResult
from equipoise.traces.trace import Trace

__all__ = ["DEFAULT_BATCH", "SnapshotPlan", "replay"]

DEFAULT_BATCH = 32
"""Requests a rank when no concurrency is given: the source article's 2048 over 64 ranks."""

SERIES_ROWS = 1 << 16
"""Rows of the step series; a longer run merges neighbours, so this bounds memory, not the run."""

Mode = Literal["saturated", "timed"]


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """Which steps to keep rank by rank.

    Parameters
    ----------
    count : int
    first : int
        Index of the first step over all instances.
    every : int
        Keep every so many-th step from there on.
    """

    count: int
    first: int = 0
    every: int = 1


def replay(
    trace: Trace,
    pool: Pool,
    policy: Policy | str,
    cost: StepCost,
    *,
    mode: Mode = "saturated",
    concurrency: int | None = None,
    seed: int = 0,
    rate_scale: float = 1.0,
    group_policy: Literal["least_batch", "least_tokens"] = "least_batch",
    warmup_turnovers: float = 1.0,
    keep_requests: bool | None = None,
    snapshots: SnapshotPlan | None = None,
    engine: Literal["auto", "kernel", "reference"] = "auto",
) -> ReplayResult:
    """Run a trace through a pool.

    Parameters
    ----------
    trace : Trace
        Taken in arrival order.
    pool : Pool
    policy : Policy or str
        A policy, or its command-line form ``dualpath,z=1.2``.
    cost : StepCost
    mode : {"saturated", "timed"}
        ``saturated`` keeps ``concurrency`` requests in the pool; ``timed`` follows the arrival times.
    concurrency : int, optional
        Requests in the pool, waiting ones included; 32 a rank by default. Only for ``saturated``.
    seed : int
        Seeds the policy's random state.
    rate_scale : float
        ``timed``: arrivals come this many times as fast.
    group_policy : {"least_batch", "least_tokens"}
        How a group is chosen where the pool has several.
    warmup_turnovers : float
        Steps count from the moment that finished requests reach this many times the peak of running ones.
    keep_requests : bool, optional
        Keep start, finish and rank of every request; by default in ``timed`` mode only.
    snapshots : SnapshotPlan, optional
    engine : {"auto", "kernel", "reference"}
        The compiled kernel, or its slow twin (also chosen for a policy that does not compile).

    Raises
    ------
    InputError
        A number out of bounds, or a run too short to have a counted step.
    PolicyError
        The policy broke its contract.
    """
    if isinstance(policy, str):
        policy = parse(policy)
    saturated = mode == "saturated"
    if not saturated and mode != "timed":
        raise InputError(f"mode = {mode!r}", fix="use 'saturated' or 'timed'")
    if group_policy not in ("least_batch", "least_tokens"):
        raise InputError(f"group_policy = {group_policy!r}", fix="use 'least_batch' or 'least_tokens'")
    if saturated:
        concurrency = DEFAULT_BATCH * pool.total_ranks if concurrency is None else concurrency
        if not 1 <= concurrency < 2**31:
            raise InputError(f"concurrency = {concurrency}", fix=f"must be from 1 to {2**31 - 1}")
    if not (np.isfinite(rate_scale) and rate_scale > 0):
        raise InputError(f"rate_scale = {rate_scale}", fix="must be a finite number above 0")
    if len(trace) >= 2**31:
        raise InputError(f"{len(trace)} requests", fix=f"one run takes up to {2**31 - 1}; split the trace")
    layout = pool.layout()
    _check_fits(trace, layout.kv_capacity_tokens - layout.growth_reserve_tokens)

    keep = (not saturated) if keep_requests is None else keep_requests
    plan = snapshots or SnapshotPlan(0)
    prices = cost.prices()
    arrival_s = np.zeros(0) if saturated else (trace.arrival_s - trace.arrival_s[0]) / rate_scale
    work = Work(arrival_s, trace.context_tokens, trace.output_tokens, _column(trace.session))
    settings = Settings(
        saturated=int(saturated),
        concurrency=int(concurrency or 0),
        seconds_per_unit=cost.us_per_unit * 1e-6,
        group_by_tokens=int(group_policy == "least_tokens"),
        warmup_turnovers=float(warmup_turnovers),
        keep_requests=int(keep),
        snapshot_first=int(plan.first),
        snapshot_every=max(1, int(plan.every)),
    )
    outcome = new_outcome(
        len(trace),
        layout,
        len(prices.saturation_tokens),
        series_rows=SERIES_ROWS,
        keep_requests=keep,
        snapshots=plan.count,
    )
    memories = [policy.new_memory(seed + g) for g in range(pool.groups)]
    arguments = (
        work,
        layout,
        settings,
        prices,
        policy.spec.place,
        policy.param_array(),
        np.stack([m.ints for m in memories]),
        np.stack([m.floats for m in memories]),
        outcome,
    )
    began = time.perf_counter()
    if engine == "reference" or (engine == "auto" and not policy.compiled):
        from equipoise.replay.reference import run_reference

        _guarded(policy, run_reference, arguments)
    else:
        from equipoise.replay.kernel import run

        run(*arguments)
    wall_s = time.perf_counter() - began
    _check(outcome, policy, trace, pool)
    return ReplayResult(
        trace_name=trace.name,
        policy_name=policy.name,
        params=policy.params,
        mode=mode,
        pool=pool,
        cost=cost,
        concurrency=concurrency if saturated else None,
        seed=seed,
        wall_s=wall_s,
        outcome=outcome,
        arrival_s=arrival_s,
        context_tokens=trace.context_tokens,
        output_tokens=trace.output_tokens,
    )


def _column(values: Any) -> Any:
    """The kernel reads the session column through strides, so a single repeated value may stay one."""
    view = np.asarray(values, dtype=np.int64)
    view = view.view()
    view.flags.writeable = False
    return view


def _guarded(policy: Policy, run: Any, arguments: tuple[Any, ...]) -> None:
    """Run the twin; an exception inside a user's policy becomes an error a person can act on."""
    try:
        run(*arguments)
    except (ArithmeticError, AttributeError, LookupError, NameError, TypeError, ValueError) as error:
        raise PolicyError(
            f"{type(error).__name__}: {error}", where=f"policy {policy.name!r}", fix="it failed inside its own code"
        ) from error


def _check_fits(trace: Trace, largest: int) -> None:
    smallest = int(trace.context_tokens.min())
    if smallest > largest:
        raise InputError(
            f"every request is larger than a rank: the smallest has {smallest} tokens, {largest} fit",
            fix="raise kv_capacity_tokens or lower growth_reserve_tokens",
        )


def _check(outcome: Outcome, policy: Policy, trace: Trace, pool: Pool) -> None:
    """Turn the kernel's error codes, and a run without a counted step, into errors."""
    from equipoise.replay.kernel import BAD_RANK, NO_ROOM, STUCK

    code = outcome.ended[ENDED.ERROR]
    row, rank = int(outcome.ended[ENDED.ERROR_REQUEST]), int(outcome.ended[ENDED.ERROR_RANK])
    where = f"policy {policy.name!r}"
    if code:
        request = f"request {row} ({int(trace.context_tokens[row])} tokens)"
        if code == BAD_RANK:
            raise PolicyError(f"placed {request} on rank {rank}", where=where, fix="use a rank it was shown, or -1")
        if code == NO_ROOM:
            raise PolicyError(f"placed {request} on rank {rank}, which is full", where=where, fix="check fits() first")
        if code == STUCK:
            raise PolicyError(
                f"left {request} queued for {ORDERLESS_ROUNDS} rounds while the pool was idle",
                where=where,
                fix="place what fits",
            )
    if outcome.totals[TOTALS.STEPS] == 0:
        peak = int(outcome.ended[ENDED.PEAK_RUNNING])
        raise InputError(
            f"no step could be counted: {len(trace)} requests do not turn over a pool that held {peak} at its peak "
            "before it drained",
            where=f"trace {trace.name!r}",
            fix=f"use more requests (about {4 * max(peak, 1)} or more), a lower concurrency, or warmup_turnovers=0",
        )

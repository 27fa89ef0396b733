"""`replay`: from a trace, a pool, a policy and a step cost to a `ReplayResult`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError, InternalError, PolicyError
from equipoise.policies import Policy, parse
from equipoise.policies.calling import failed, functions
from equipoise.policies.views import empty_ranks, waiting_requests
from equipoise.replay.information import Information
from equipoise.replay.layout import (
    BAD_RANK,
    ENDED,
    MAX_ROUND,
    NO_ROOM,
    ORDERLESS_ROUNDS,
    STUCK,
    TOTALS,
    Outcome,
    Settings,
    Work,
    new_outcome,
)
from equipoise.replay.pool import Pool, whole_number
from equipoise.replay.result import ReplayResult
from equipoise.replay.setup import arrivals, check_options, column, group_memories
from equipoise.replay.state import new_state
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

    Raises
    ------
    InputError
        A number out of bounds.
    """

    count: int
    first: int = 0
    every: int = 1

    def __post_init__(self) -> None:
        whole_number("snapshots.count", self.count, 0, 2**31 - 1)
        whole_number("snapshots.first", self.first, 0, 2**62)
        whole_number("snapshots.every", self.every, 1, 2**62)


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
    drain: bool = True,
    keep_requests: bool | None = None,
    snapshots: SnapshotPlan | None = None,
    engine: Literal["auto", "kernel", "reference"] = "auto",
    series_rows: int = SERIES_ROWS,
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
        Steps count from the moment that finished requests reach this many times the peak of running ones for good: in
        ``timed`` mode a short first request may be enough for a moment, with the pool still filling.
    drain : bool
        Run on until the last request has finished; its steps are not counted either way.
    keep_requests : bool, optional
        Keep start, finish and rank of every request; by default in ``timed`` mode only.
    snapshots : SnapshotPlan, optional
    engine : {"auto", "kernel", "reference"}
        The compiled kernel, or its slow twin (also chosen for a policy that does not compile).
    series_rows : int
        Rows of the step series, even; a longer run merges neighbours.

    Raises
    ------
    InputError
        A number out of bounds, or a run too short to have a counted step.
    PolicyError
        The policy broke its contract, or failed inside its own code.
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
        whole_number("concurrency", concurrency, 1, 2**31 - 1)
    if engine not in ("auto", "kernel", "reference"):
        raise InputError(f"engine = {engine!r}", fix="use 'auto', 'kernel' or 'reference'")
    whole_number("series_rows", series_rows, 2, 2**31 - 2)
    if series_rows % 2:
        raise InputError(f"series_rows = {series_rows}", fix="must be even")
    check_options(policy, engine=engine, seed=seed, rate_scale=rate_scale, warmup_turnovers=warmup_turnovers)
    if len(trace) >= 2**31:
        raise InputError(f"{len(trace)} requests", fix=f"one run takes up to {2**31 - 1}; split the trace")
    layout = pool.layout()
    _check_fits(trace, layout.kv_capacity_tokens - layout.growth_reserve_tokens)

    keep = (not saturated) if keep_requests is None else keep_requests
    plan = snapshots or SnapshotPlan(0)
    prices = cost.prices()
    seconds_per_unit = cost.us_per_unit * 1e-6
    arrival_s = np.zeros(0) if saturated else arrivals(trace, rate_scale)
    work = Work(
        arrival_s,
        column(trace.context_tokens),
        column(trace.output_tokens),
        column(trace.session, one_for_all=True),
    )
    settings = Settings(
        saturated=int(saturated),
        concurrency=int(concurrency or 0),
        seconds_per_unit=seconds_per_unit,
        group_by_tokens=int(group_policy == "least_tokens"),
        warmup_turnovers=float(warmup_turnovers),
        drain=int(drain),
        keep_requests=int(keep),
        snapshot_first=int(plan.first),
        snapshot_every=int(plan.every),
        tells_finished=int(policy.spec.finished is not None),
    )
    outcome = new_outcome(
        len(trace),
        layout,
        len(prices.saturation_tokens),
        series_rows=series_rows,
        keep_requests=keep,
        snapshots=plan.count,
    )
    ints, floats = group_memories(policy, prices, layout, replicas=1, seed=seed)
    slow = engine == "reference" or not policy.compiled
    common = (
        work,
        layout,
        settings,
        prices,
        *functions(policy, slow=slow),
        policy.param_array(),
        ints,
        floats,
    )
    if slow:
        from equipoise.replay.reference import run_reference

        began = time.perf_counter()
        run_reference(*common, outcome)
    else:
        from equipoise.replay.kernel import run

        saturations = len(prices.saturation_tokens)
        state = new_state(layout, saturations, len(trace), int(work.output_tokens.max()), keep_requests=keep)
        view = empty_ranks(
            pool.total_ranks,
            pool.ranks,
            saturations,
            layout.kv_capacity_tokens - layout.growth_reserve_tokens,
            layout.max_batch,
        )
        asked = waiting_requests(MAX_ROUND)
        began = time.perf_counter()  # compiling is not replaying
        try:
            run(*common, state, view, asked, outcome)
        except TypeError as error:  # the arrays do not have the types the kernel was compiled for
            raise InternalError(str(error)) from error
        except Exception as error:  # the kernel raises nothing by itself
            raise failed(policy, error) from error
    wall_s = time.perf_counter() - began
    check_outcome(outcome, policy, trace, mode=mode, drain=drain)
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
        information=Information(),
        group_policy=group_policy,
        rate_scale=rate_scale,
        warmup_turnovers=warmup_turnovers,
    )


def _check_fits(trace: Trace, largest: int) -> None:
    smallest = int(trace.context_tokens.min())
    if smallest > largest:
        raise InputError(
            f"every request is larger than a rank: the smallest has {smallest} tokens, {largest} fit",
            fix="raise kv_capacity_tokens or lower growth_reserve_tokens",
        )


def check_outcome(
    outcome: Outcome, policy: Policy, trace: Trace, *, mode: str, drain: bool, elsewhere: int = 0
) -> None:
    """Turn the kernel's error codes, lost requests, and a run without a counted step into errors.

    `elsewhere` counts the requests that ended in ways this engine's own runs do not have.
    """
    code = outcome.ended[ENDED.ERROR]
    row, rank = int(outcome.ended[ENDED.ERROR_REQUEST]), int(outcome.ended[ENDED.ERROR_RANK])
    where = f"policy {policy.name!r}"
    if code:
        request = f"request {row} ({int(trace.context_tokens[row])} tokens)"
        if code == BAD_RANK:
            raise PolicyError(
                f"placed {request} on rank {rank}", where=where, fix="use a rank it was shown, or -1"
            )
        if code == NO_ROOM:
            raise PolicyError(
                f"placed {request} on rank {rank}, which is full",
                where=where,
                fix="check fits() first, and book() every choice",
            )
        if code == STUCK:
            raise PolicyError(
                f"left {request} queued for {ORDERLESS_ROUNDS} rounds while the pool was idle",
                where=where,
                fix="place what fits",
            )
    ended = outcome.ended
    known = ended[ENDED.FINISHED] + ended[ENDED.REJECTED] + ended[ENDED.QUEUED] + ended[ENDED.RUNNING]
    known += elsewhere
    left = ended[ENDED.QUEUED] + ended[ENDED.RUNNING] + ended[ENDED.RESIDUE] if drain else 0
    if left or known != len(trace):
        raise InternalError(
            f"requests were lost in replay: {len(trace)} in, {ended[ENDED.FINISHED]} finished, "
            f"{ended[ENDED.REJECTED]} rejected, {ended[ENDED.QUEUED]} queued, {ended[ENDED.RUNNING]} running, "
            f"residue {ended[ENDED.RESIDUE]}"
        )
    if outcome.totals[TOTALS.STEPS] == 0:
        peak, rejected = int(ended[ENDED.PEAK_RUNNING]), int(ended[ENDED.REJECTED])
        lost = f", {rejected} of them larger than a rank's capacity," if rejected else ""
        capacity = "a larger capacity, " if rejected else ""
        concurrency = "a lower concurrency, " if mode == "saturated" else ""
        raise InputError(
            f"no step could be counted: {len(trace)} requests{lost} do not turn over a pool that held {peak} at its "
            "peak before it drained",
            where=f"trace {trace.name!r}",
            fix=f"use more requests (about {4 * max(peak, 1)} or more), {capacity}{concurrency}or a shorter warm-up "
            "(--warmup-turnovers)",
        )

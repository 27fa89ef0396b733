"""`simulate`: from a trace, a deployment, a policy and a step cost to a `FleetResult`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError, InternalError
from equipoise.fleet.arrays import (
    KNOWS,
    changes_of,
    draws_of,
    extras_of,
    life_of,
    prefill_prices_of,
    ranked_of,
)
from equipoise.fleet.config import MOST_ROWS, Deployment
from equipoise.fleet.kernel.layout import (
    COUNTS,
    NOT_ENDED,
    PARTS,
    TOO_MANY,
    FleetOutcome,
    FleetSettings,
    new_fleet_outcome,
)
from equipoise.fleet.result import FleetResult
from equipoise.policies import Policy, parse
from equipoise.policies.calling import failed, functions
from equipoise.policies.views import waiting_requests
from equipoise.replay import Pool, SnapshotPlan
from equipoise.replay.engine import DEFAULT_BATCH, SERIES_ROWS, check_outcome
from equipoise.replay.layout import ENDED, MAX_ROUND, Outcome, Work, new_outcome
from equipoise.replay.pool import whole_number
from equipoise.replay.setup import arrivals, check_options, column, group_memories
from equipoise.traces.trace import Trace

__all__ = ["FleetMode", "simulate"]

FleetMode = Literal["saturated", "timed", "sessions"]
GroupPolicy = Literal["least_batch", "least_tokens"]
Engine = Literal["auto", "kernel", "reference"]


def simulate(
    trace: Trace,
    deployment: Deployment | Pool,
    policy: Policy | str,
    cost: StepCost,
    *,
    mode: FleetMode = "timed",
    concurrency: int | None = None,
    seed: int = 0,
    rate_scale: float = 1.0,
    group_policy: GroupPolicy = "least_batch",
    warmup_turnovers: float = 1.0,
    drain: bool = True,
    keep_requests: bool = True,
    snapshots: SnapshotPlan | None = None,
    engine: Engine = "auto",
) -> FleetResult:
    """Run a trace through a whole deployment.

    Parameters
    ----------
    trace : Trace
    deployment : Deployment or Pool
        A pool alone: everything else is off.
    policy : Policy or str
        A policy, or its command-line form ``dualpath,z=1.2``.
    cost : StepCost
    mode : {"saturated", "timed", "sessions"}
        ``saturated`` keeps ``concurrency`` requests in the pool; ``timed`` follows the arrival times; ``sessions``
        takes only the first turn of a conversation from them, and sends each later turn when the one before has ended
        and the client has thought.
    concurrency : int, optional
        Only for ``saturated``; 32 a rank by default.
    seed : int
        Of the policy and of everything drawn; the draws are the same for every policy.
    rate_scale : float
        Arrivals come this many times as fast; think times stay.
    group_policy : {"least_batch", "least_tokens"}
        How a group (``split = "instance"``: an instance) is chosen.
    warmup_turnovers : float
        As in `equipoise.replay`.
    drain : bool
        Run on until the last request has ended.
    keep_requests : bool
        Keep the times of every request.
    snapshots : SnapshotPlan, optional
    engine : {"auto", "kernel", "reference"}

    Raises
    ------
    InputError
        A number out of bounds, parts that do not go together, or a run too short to have a counted step.
    PolicyError
        The policy broke its contract, or failed inside its own code.
    """
    if isinstance(deployment, Pool):
        deployment = Deployment(deployment)
    if isinstance(policy, str):
        policy = parse(policy)
    for name, value, words in (
        ("mode", mode, FleetMode),
        ("group_policy", group_policy, GroupPolicy),
        ("engine", engine, Engine),
    ):
        if value not in get_args(words):
            raise InputError(f"{name} = {value!r}", fix=f"use one of {', '.join(get_args(words))}")
    information, pool = deployment.information, deployment.pool
    if information.split == "instance":
        pool = replace(pool, groups=pool.instances)
    saturated = mode == "saturated"
    if saturated:
        concurrency = DEFAULT_BATCH * pool.total_ranks if concurrency is None else concurrency
        whole_number("concurrency", concurrency, 1, 2**31 - 1)
    check_options(policy, engine=engine, seed=seed, rate_scale=rate_scale, warmup_turnovers=warmup_turnovers)
    if len(trace) >= 2**30:
        raise InputError(f"{len(trace)} requests", fix=f"one run takes up to {2**30 - 1}; split the trace")

    plan = snapshots or SnapshotPlan(0)
    prices = cost.prices()
    layout = pool.layout()
    arrival_s = np.zeros(0) if saturated else arrivals(trace, rate_scale)
    work = Work(
        arrival_s,
        column(trace.context_tokens),
        column(trace.output_tokens),
        column(trace.session, one_for_all=True),
    )
    life = life_of(deployment, trace, sessions=mode == "sessions", saturated=saturated, seed=seed)
    ranked = ranked_of(deployment, layout, seed)
    extras = extras_of(deployment, cost, ranked, seed)
    prefill_prices = prefill_prices_of(deployment, cost)
    draws = draws_of(deployment, len(trace), seed)
    changes = changes_of(deployment)
    _check_fits(trace, int(ranked.kv_capacity_tokens.max()) - layout.growth_reserve_tokens, life.block_tokens)
    keep = keep_requests or information.knows == "extrapolated"  # it learns from starts
    settings = FleetSettings(
        saturated=int(saturated),
        concurrency=int(concurrency or 0),
        seconds_per_unit=cost.us_per_unit * 1e-6,
        group_by_tokens=int(group_policy == "least_tokens"),
        warmup_turnovers=float(warmup_turnovers),
        drain=int(drain),
        keep_requests=int(keep),
        snapshot_first=int(plan.first),
        snapshot_every=int(plan.every),
        tells_finished=int(policy.spec.finished is not None),
        knows=KNOWS[information.knows],
        replicas=information.replicas,
        report_period_steps=information.period_steps,
        report_delay_steps=information.delay_steps,
        report_delay_s=float(information.delay_s),
    )
    saturations = len(prices.saturation_tokens)
    outcome = new_outcome(
        len(trace),
        layout,
        saturations,
        series_rows=SERIES_ROWS,
        keep_requests=keep,
        snapshots=plan.count,
    )
    more = new_fleet_outcome(len(trace), keep_requests=keep)
    ints, floats = group_memories(policy, prices, layout, replicas=information.replicas, seed=seed)
    slow = engine == "reference" or not policy.compiled
    common = (
        work, layout, settings, life, ranked, extras, draws, changes, prices, prefill_prices,
        *functions(policy, slow=slow), policy.param_array(), ints, floats,
    )  # fmt: skip
    if slow:
        from equipoise.fleet.twin import run_reference

        began = time.perf_counter()
        run_reference(*common, outcome, more)
    else:
        from equipoise.fleet.kernel.routers import new_pictures
        from equipoise.fleet.kernel.run import fleet_run
        from equipoise.fleet.kernel.state import new_state

        state = new_state(
            layout,
            life,
            ranked,
            draws,
            saturations=saturations,
            requests=len(trace),
            prefill_terms=len(prefill_prices.token),
            parts=len(PARTS),
        )
        seen = new_pictures(
            layout, settings, saturations, len(trace), by_instance=information.split == "instance"
        )
        asked = waiting_requests(MAX_ROUND)
        kernel = fleet_run()
        began = time.perf_counter()  # compiling is not simulating
        try:
            kernel(*common, state, seen, asked, outcome, more)
        except TypeError as error:  # the arrays do not have the types the kernel was compiled for
            raise InternalError(str(error)) from error
        except Exception as error:  # the kernel raises nothing by itself
            raise failed(policy, error) from error
    wall_s = time.perf_counter() - began
    _check(outcome, more, policy, trace, mode=mode, drain=drain)
    return FleetResult(
        trace_name=trace.name,
        policy_name=policy.name,
        params=policy.params,
        mode=mode,
        pool=deployment.pool,
        cost=cost,
        concurrency=concurrency if saturated else None,
        seed=seed,
        wall_s=wall_s,
        outcome=outcome,
        arrival_s=arrival_s,
        context_tokens=trace.context_tokens,
        output_tokens=trace.output_tokens,
        information=information,
        group_policy=group_policy,
        rate_scale=rate_scale,
        warmup_turnovers=warmup_turnovers,
        deployment=deployment,
        more=more,
        turn=trace.turn,
    )


def _check_fits(trace: Trace, largest: int, block_tokens: int) -> None:
    smallest = -(-int(trace.context_tokens.min()) // block_tokens) * block_tokens
    if smallest > largest:
        raise InputError(
            f"every request is larger than a rank: the smallest takes {smallest} tokens, {largest} fit",
            fix="raise kv_capacity_tokens or lower growth_reserve_tokens",
        )


def _check(
    outcome: Outcome, more: FleetOutcome, policy: Policy, trace: Trace, *, mode: str, drain: bool
) -> None:
    """Turn error codes, lost requests, and a run without a counted step into errors."""
    ended, counts = outcome.ended, more.counts
    if ended[ENDED.ERROR] == TOO_MANY:
        raise InputError(
            f"rank {int(ended[ENDED.ERROR_RANK])} ran {MOST_ROWS} requests at once",
            fix="set max_batch, as every engine does, or lower the load",
        )
    elsewhere = sum(int(counts[c]) for c in (COUNTS.ABORTED, COUNTS.FAILED, COUNTS.DROPPED))
    if not drain:  # some have not come yet, or wait for prefill
        inside = ended[ENDED.QUEUED] + ended[ENDED.RUNNING]
        elsewhere += int((more.status == NOT_ENDED).sum() - inside)
    check_outcome(outcome, policy, trace, mode=mode, drain=drain, elsewhere=elsewhere)

"""The placement of a run as a problem on paper: intervals of steps to ranks, everything of the future known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.replay import Pool, ReplayResult
from equipoise.replay.layout import SERIES
from equipoise.types import Floats, Floats2D, Ints, Prices

__all__ = ["MOST_LOADS", "Plan", "Problem", "plan_of", "problem_of"]

MOST_LOADS = 64_000_000
"""Ranks x steps of an instance that a search keeps in memory: about 40 bytes each and barrier."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Who goes where, and when: what a run decided, in the order of its trace.

    Parameters
    ----------
    rank : int64[requests]
        Over the whole pool; -1: never placed.
    delay : int64[requests]
        Steps from the first offer of a request until it is placed.
    start : int64[requests]
        Step of its instance that is its first.
    """

    rank: Ints
    delay: Ints
    start: Ints


class Problem(NamedTuple):
    """One instance: requests sorted by their first step, prices of a rank's load for each barrier."""

    row: Ints
    """int64[requests], their places in the trace."""
    start: Ints
    end: Ints
    """int64[requests], first step and the one after the last, cut at the end of the counted time."""
    context: Ints
    """int64[requests], tokens at the first step; one more every step."""
    first_at: Ints
    """int64[steps + 1], first request that starts at a step or later."""
    counted: Floats
    """float64[steps], 1 where the step counts."""
    batch: Floats2D
    """float64[barriers, most + 1], price of 0 ... most requests on a rank."""
    token: Floats
    """float64[barriers], price of one context token."""
    saturated: Floats2D
    """float64[barriers, lengths], price of one saturated token."""
    lengths: Ints
    ranks: int
    largest: int
    """Tokens a rank may hold when a request is placed on it; 0: no limit."""
    max_batch: int
    """Requests a rank may hold; 0: no limit."""
    constant: float
    """Price every step pays."""


def barriers(prices: Prices, most: int) -> tuple[Floats2D, Floats, Floats2D]:
    """Prices of a rank's load, barrier by barrier: one a term, or all terms together where a step has one barrier."""
    last = prices.batch.shape[1] - 1
    more = np.arange(1, max(most - last, 0) + 1)
    batch = np.concatenate([prices.batch, prices.batch[:, -1:] + prices.batch_tail[:, None] * more], axis=1)[
        :, : most + 1
    ]
    token, saturated = prices.context, prices.saturated
    if prices.barrier_step:
        return batch.sum(0)[None].copy(), token.sum(keepdims=True), saturated.sum(0)[None].copy()
    return np.ascontiguousarray(batch), token.copy(), np.ascontiguousarray(saturated)


def plan_of(result: ReplayResult) -> Plan:
    """What a run decided; it must have kept its requests and every step.

    A request's first step is the one of its instance that began when it started: both times come from one clock.

    Raises
    ------
    InputError
        The run has more steps than its series has rows.
    """
    rows = result.series
    if len(rows) and rows[:, SERIES.STEPS].max() > 1:
        raise InputError(
            f"{int(rows[:, SERIES.STEPS].sum())} steps are more than the oracle looks at",
            where=f"trace {result.trace_name!r}",
            fix=f"use fewer requests: up to {len(result.outcome.series)} steps",
        )
    rank = result.outcome.rank.astype(np.int64)
    start = np.full(len(rank), -1, np.int64)
    instance = rank // result.pool.ranks
    for i in range(result.pool.instances):
        began = rows[rows[:, SERIES.INSTANCE] == i, SERIES.START_S]
        own = (rank >= 0) & (instance == i) & ~np.isnan(result.outcome.start_s)
        start[own] = np.searchsorted(began, result.outcome.start_s[own])
    rank[start < 0] = -1  # placed as the run ended: it runs in no step
    return Plan(rank, np.zeros(len(rank), np.int64), start)


def problem_of(result: ReplayResult, plan: Plan, instance: int = 0) -> Problem:
    """The placement problem of one instance of a run, over its steps up to the last one counted.

    Raises
    ------
    InputError
        More ranks x steps than a search keeps.
    """
    pool, cost = result.pool, result.cost
    rows = result.series[result.series[:, SERIES.INSTANCE] == instance]
    counted = (rows[:, SERIES.COUNTED] > 0).astype(np.float64)
    steps = int(np.flatnonzero(counted)[-1]) + 1 if counted.any() else 0
    if pool.ranks * steps > MOST_LOADS:
        raise InputError(
            f"{pool.ranks} ranks x {steps} steps are more than the oracle looks at",
            where=f"trace {result.trace_name!r}",
            fix=f"use fewer requests (--requests): ranks x steps may be {MOST_LOADS}",
        )
    begin = int(np.flatnonzero(counted)[0]) if counted.any() else 0
    limited = pool.kv_capacity_tokens is not None or pool.max_batch is not None
    ends = plan.start + result.output_tokens
    chosen = (plan.rank // pool.ranks == instance) & (plan.rank >= 0) & (plan.start < steps)
    if not limited:  # what ends before anything counts, is free
        chosen &= ends > begin
    row = np.flatnonzero(chosen)
    row = row[np.argsort(plan.start[row], kind="stable")]
    start, end = plan.start[row], np.minimum(ends[row], steps)
    most = int(rows[:steps, SERIES.MEAN_BATCH].max() * pool.ranks + 0.5) + 1 if steps else 1
    return make_problem(
        row, start, end, np.ascontiguousarray(result.context_tokens[row]), counted[:steps], pool, cost, most
    )


def make_problem(
    row: Ints, start: Ints, end: Ints, context: Ints, counted: Floats, pool: Pool, cost: StepCost, most: int
) -> Problem:
    """A problem of one instance from its intervals, sorted by their first steps."""
    prices = cost.prices()
    batch, token, saturated = barriers(prices, most)
    room = (pool.kv_capacity_tokens or 0) - pool.growth_reserve_tokens
    return Problem(
        row=row,
        start=start,
        end=end,
        context=context,
        first_at=np.searchsorted(start, np.arange(len(counted) + 1)),
        counted=counted,
        batch=batch,
        token=token,
        saturated=saturated,
        lengths=prices.saturation_tokens,
        ranks=pool.ranks,
        largest=room if pool.kv_capacity_tokens is not None else 0,
        max_batch=pool.max_batch or 0,
        constant=prices.constant,
    )

"""Strategies of verification side by side: the same requests and drafts for all, intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.control.acceptance import Acceptance
from equipoise.control.pauses import Pauses
from equipoise.control.price import VerifyPrice
from equipoise.control.simulation import ControlRun, simulate_control
from equipoise.control.strategies import STRATEGIES
from equipoise.errors import InputError, nearest
from equipoise.policies import parse
from equipoise.study.statistics import Interval, over_seeds
from equipoise.study.workloads import load_source, workload
from equipoise.traces.trace import Trace

__all__ = ["SCHEMA", "ControlCell", "ControlPlan", "compare_control", "control_to_dict"]

SCHEMA = "equipoise.control/1"
DEFAULT_STRATEGIES = ("argmax", "argmax_own", "argmax_waits", "fixed,2", "fixed,3", "fixed,5", "equipoise")


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """What to compare.

    Parameters
    ----------
    trace : str
        A preset or a file.
    price : VerifyPrice
    policies : sequence of str
        Who places requests.
    strategies : sequence of str
        The first is what the others are held against, policy by policy.
    ranks, per_rank, drafts, horizon : int
        As in `simulate_control`.
    acceptance : Acceptance
    pauses : bool
        Whether `equipoise` may also pause requests.
    steps, warmup_steps : int
    seeds, first_seed : int
    """

    trace: str
    price: VerifyPrice
    policies: Sequence[str] = ("dualpath,z=1.05",)
    strategies: Sequence[str] = DEFAULT_STRATEGIES
    ranks: int = 64
    per_rank: int = 32
    drafts: int = 5
    horizon: int = 1
    acceptance: Acceptance = Acceptance()  # noqa: RUF009 - frozen
    pauses: bool = False
    steps: int = 400
    warmup_steps: int = 200
    seeds: int = 5
    first_seed: int = 0

    def __post_init__(self) -> None:
        if not self.policies or not self.strategies:
            raise InputError("nothing to compare", fix="give at least one policy and one strategy")
        for name in self.strategies:
            if name.partition(",")[0] not in STRATEGIES:
                raise InputError(f"no strategy named {name!r}", fix=nearest(name, STRATEGIES))
        for label, value, high in (
            ("ranks", self.ranks, 4096), ("per_rank", self.per_rank, 4096), ("drafts", self.drafts, 32),
            ("horizon", self.horizon, 64), ("steps", self.steps, 10**6), ("seeds", self.seeds, 1000),
        ):  # fmt: skip
            if not 1 <= value <= high:
                raise InputError(f"{label} = {value}", fix=f"must be from 1 to {high}")


@dataclass(frozen=True, slots=True)
class ControlCell:
    """One policy under one strategy.

    Parameters
    ----------
    policy, strategy : str
    runs : sequence of ControlRun
        One a seed.
    gain : Interval
        Tokens a second above those of the policy's first strategy, as a share, paired by seed.
    """

    policy: str
    strategy: str
    runs: tuple[ControlRun, ...]
    gain: Interval

    def over(self, quantity: Callable[[ControlRun], float]) -> Interval:
        """A quantity's mean and interval over the seeds."""
        return over_seeds([quantity(run) for run in self.runs])


def compare_control(
    plan: ControlPlan, progress: Callable[[int, int], None] | None = None
) -> list[ControlCell]:
    """Run every policy under every strategy."""
    source = load_source(plan.trace)
    traces = [_trace(plan, source, seed) for seed in range(plan.first_seed, plan.first_seed + plan.seeds)]
    policies = [parse(name) for name in plan.policies]
    cells, done, total = list[ControlCell](), 0, len(policies) * len(plan.strategies) * plan.seeds
    for text, policy in zip(plan.policies, policies, strict=True):
        reference: list[float] = []
        for name in plan.strategies:
            runs = []
            for seed, trace in enumerate(traces, plan.first_seed):
                pauses = Pauses() if plan.pauses and name == "equipoise" else None
                runs.append(
                    simulate_control(
                        trace,
                        policy,
                        plan.price,
                        name,
                        ranks=plan.ranks,
                        per_rank=plan.per_rank,
                        drafts=plan.drafts,
                        horizon=plan.horizon,
                        acceptance=plan.acceptance,
                        steps=plan.steps,
                        warmup_steps=plan.warmup_steps,
                        pauses=pauses,
                        seed=seed,
                    )
                )
                done += 1
                if progress is not None:
                    progress(done, total)
            rates = [run.tokens_per_s for run in runs]
            reference = reference or rates
            gain = over_seeds([a / b - 1 for a, b in zip(rates, reference, strict=True)])
            cells.append(ControlCell(text, name, tuple(runs), gain))
    return cells


def _trace(plan: ControlPlan, source: Trace | None, seed: int) -> Trace:
    slots = plan.ranks * plan.per_rank
    return workload(plan.trace, source, seed=seed, concurrency=slots, requests=None, timed=False)


def control_to_dict(plan: ControlPlan, cells: Sequence[ControlCell]) -> dict[str, Any]:
    """The comparison as JSON."""
    requests = plan.ranks * plan.per_rank
    return {
        "schema": SCHEMA,
        "trace": plan.trace,
        "cost": plan.price.cost.name,
        "graph_sizes": list(plan.price.graph_sizes),
        "query_reads": plan.price.query_reads,
        "ep_per_query": plan.price.ep_per_query,
        "ep_free_queries": plan.price.ep_free_queries,
        "ranks": plan.ranks,
        "per_rank": plan.per_rank,
        "drafts": plan.drafts,
        "horizon": plan.horizon,
        "acceptance": asdict(plan.acceptance),
        "pauses": plan.pauses,
        "steps": plan.steps,
        "seeds": plan.seeds,
        "cells": [
            {
                "policy": cell.policy,
                "strategy": cell.strategy,
                "tokens_per_s": _interval(cell.over(lambda r: r.tokens_per_s)),
                "gain": _interval(cell.gain),
                "verified_per_request": _interval(
                    cell.over(lambda r: r.drafts_verified / r.steps / requests)
                ),
                "accepted_per_request": _interval(
                    cell.over(lambda r: r.drafts_accepted / r.steps / requests)
                ),
                "bubble_share": _interval(cell.over(lambda r: r.bubble_share)),
                "slack_turned": _interval(cell.over(lambda r: r.slack_turned)),
                "longest_pause_steps": max(run.longest_pause_steps for run in cell.runs),
            }
            for cell in cells
        ],
    }


def _interval(found: Interval) -> dict[str, float | None]:
    def number(value: float) -> float | None:
        return float(np.format_float_scientific(value, 8)) if math.isfinite(value) else None

    return {"mean": number(found.mean), "low": number(found.low), "high": number(found.high)}

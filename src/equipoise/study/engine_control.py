"""Strategies of verification side by side: the same requests and drafts for all, intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from equipoise.control.acceptance import Acceptance
from equipoise.control.freezes import Freezes
from equipoise.control.pauses import Pauses
from equipoise.control.price import VerifyPrice
from equipoise.control.run import ControlRun
from equipoise.control.simulation import simulate_control
from equipoise.control.skewed import placement
from equipoise.control.strategies import parse_strategy
from equipoise.cost.files import to_dict
from equipoise.errors import InputError
from equipoise.study.control_runs import KeptRuns
from equipoise.study.statistics import Interval, over_seeds
from equipoise.study.workloads import load_source, workload
from equipoise.traces.trace import Trace

__all__ = ["SCHEMA", "ControlCell", "ControlPlan", "compare_control", "control_to_dict"]

SCHEMA = "equipoise.control/1"
DEFAULT_STRATEGIES = (
    "argmax", "argmax_own", "argmax_waits", "padded", "fixed,2", "fixed,3", "fixed,5", "equipoise",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ControlPlan:
    """What to compare.

    Parameters
    ----------
    trace : str
        A preset or a file.
    price : VerifyPrice
    policies : sequence of str
        Who places requests; also ``skewed,spread=0.3``.
    strategies : sequence of str
        The first is what the others are held against, policy by policy; ``+pauses``, ``+freezes`` and ``+detours``
        behind one give it a second means.
    ranks, per_rank, drafts, horizon : int
        As in `simulate_control`.
    acceptance : Acceptance
    pause_steps, rest_steps, freeze_steps : int
        Bounds of `Pauses` and `Freezes`.
    slack_against : str
        The strategy whose waiting is looked for under the others.
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
    acceptance: Acceptance = field(default_factory=Acceptance)
    pause_steps: int = 4
    rest_steps: int = 12
    freeze_steps: int = 16
    slack_against: str = "argmax_own"
    steps: int = 400
    warmup_steps: int = 200
    seeds: int = 5
    first_seed: int = 0

    def __post_init__(self) -> None:
        if not self.policies or not self.strategies:
            raise InputError("nothing to compare", fix="give at least one policy and one strategy")
        for given, what in ((self.policies, "policy"), (self.strategies, "strategy")):
            double = next((name for i, name in enumerate(given) if name in given[:i]), None)
            if double is not None:
                raise InputError(f"{what} {double!r} twice", fix="name each once")
        for name in (*self.strategies, self.slack_against):
            parse_strategy(name)
        for name in self.policies:
            placement(name)
        for label, value, low, high in (
            ("ranks", self.ranks, 1, 4096), ("per_rank", self.per_rank, 1, 4096), ("drafts", self.drafts, 1, 32),
            ("horizon", self.horizon, 1, 64), ("steps", self.steps, 1, 10**6), ("seeds", self.seeds, 1, 1000),
            ("warmup_steps", self.warmup_steps, 0, 10**6), ("seed", self.first_seed, 0, 10**6 - 1000),
            ("requests in all", self.ranks * self.per_rank, 1, 10**5),
        ):  # fmt: skip
            if not low <= value <= high:
                raise InputError(f"{label} = {value}", fix=f"must be from {low} to {high}")
        Pauses(self.pause_steps, self.rest_steps)
        Freezes(self.freeze_steps)

    def settings(self) -> dict[str, Any]:
        """All that every run depends on, whoever places and decides, as JSON can hold it."""
        price = self.price
        return {
            "trace": self.trace,
            "cost": to_dict(price.cost),
            "graph_sizes": list(price.graph_sizes),
            "query_reads": price.query_reads,
            "ep_per_query": price.ep_per_query,
            "ep_free_queries": price.ep_free_queries,
            "ranks": self.ranks,
            "per_rank": self.per_rank,
            "drafts": self.drafts,
            "horizon": self.horizon,
            "acceptance": asdict(self.acceptance),
            "pause_steps": self.pause_steps,
            "rest_steps": self.rest_steps,
            "freeze_steps": self.freeze_steps,
            "slack_against": self.slack_against,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
        }


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

    def worst(self, quantity: Callable[[ControlRun], float]) -> float:
        """The largest of a quantity over the seeds; NaN where no seed has one."""
        return max((v for run in self.runs if not math.isnan(v := quantity(run))), default=math.nan)


def compare_control(
    plan: ControlPlan, progress: Callable[[int, int], None] | None = None, kept: KeptRuns | None = None
) -> list[ControlCell]:
    """Run every policy under every strategy.

    Parameters
    ----------
    plan : ControlPlan
    progress : function, optional
        Called with (done, in all).
    kept : KeptRuns, optional
        Runs made before are taken from it, new ones put there.
    """
    source = load_source(plan.trace)
    cells, done, total = list[ControlCell](), 0, len(plan.policies) * len(plan.strategies) * plan.seeds
    for policy in plan.policies:
        reference: list[float] = []
        for name in plan.strategies:
            runs = []
            for seed in range(plan.first_seed, plan.first_seed + plan.seeds):
                settings = plan.settings() | {"policy": policy, "strategy": name, "seed": seed}
                run = kept.find(settings) if kept else None
                if run is None:
                    run = _run(plan, source, policy, name, seed)
                    if kept:
                        kept.keep(settings, run)
                runs.append(run)
                done += 1
                if progress is not None:
                    progress(done, total)
            rates = [run.tokens_per_s for run in runs]
            reference = reference or rates
            gain = over_seeds([a / b - 1 for a, b in zip(rates, reference, strict=True)])
            cells.append(ControlCell(policy, name, tuple(runs), gain))
    return cells


def _run(plan: ControlPlan, source: Trace | None, policy: str, name: str, seed: int) -> ControlRun:
    slots, means = plan.ranks * plan.per_rank, parse_strategy(name).actuators
    return simulate_control(
        workload(plan.trace, source, seed=seed, concurrency=slots, requests=None, timed=False),
        placement(policy),
        plan.price,
        name,
        ranks=plan.ranks,
        per_rank=plan.per_rank,
        drafts=plan.drafts,
        horizon=plan.horizon,
        acceptance=plan.acceptance,
        steps=plan.steps,
        warmup_steps=plan.warmup_steps,
        pauses=Pauses(plan.pause_steps, plan.rest_steps) if "pauses" in means else None,
        freezes=Freezes(plan.freeze_steps) if means & {"freezes", "detours"} else None,
        detours="detours" in means,
        slack_against=plan.slack_against,
        seed=seed,
    )


def control_to_dict(plan: ControlPlan, cells: Sequence[ControlCell]) -> dict[str, Any]:
    """The comparison as JSON."""
    requests = plan.ranks * plan.per_rank
    return {
        "schema": SCHEMA,
        **plan.settings(),
        "cost": plan.price.cost.name,
        "seeds": plan.seeds,
        "first_seed": plan.first_seed,
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
                "accepted_drafts_per_s": _interval(cell.over(lambda r: r.drafts_accepted / r.time_us * 1e6)),
                "bubble_share": _interval(cell.over(lambda r: r.bubble_share)),
                "slack_turned": _interval(cell.over(lambda r: r.slack_turned)),
                "slack_filled": _interval(cell.over(lambda r: r.slack_filled)),
                "turnovers": _interval(cell.over(lambda r: r.finished / requests)),
                "sat_out_share": _interval(cell.over(lambda r: r.sat_out_share)),
                "longest_pause_steps": max(run.longest_pause_steps for run in cell.runs),
                "longest_wait_steps": max(run.longest_wait_steps for run in cell.runs),
                "least_share_run": _number(-cell.worst(lambda r: -r.least_share_run)),
            }
            for cell in cells
        ],
    }


def _number(value: float) -> float | None:
    return float(f"{value:.9g}") if math.isfinite(value) else None


def _interval(found: Interval) -> dict[str, float | None]:
    return {"mean": _number(found.mean), "low": _number(found.low), "high": _number(found.high)}

"""The prediction: a step cost fitted to the probe's steps, and the very trace replayed with it, policy by policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import EquipoiseError, InputError
from equipoise.fleet import Deployment, FleetResult, KvMemory, Prefill, simulate
from equipoise.live.findings.loads import Lives
from equipoise.live.findings.measured import Measured
from equipoise.live.findings.numbers import lives_of, numbers, whole_numbers
from equipoise.live.findings.runs import LiveRuns, Run
from equipoise.replay import Pool

if TYPE_CHECKING:
    from equipoise.calibrate.calibration import Calibration

__all__ = ["CHUNK_TOKENS", "ENGINE", "Predicted", "Prediction", "fit_probe", "predict"]

ENGINE = "engine"
"""The policy under which nothing is pinned and the engine's own router chooses."""
CHUNK_TOKENS = 8192
REPLAYS = 3
"""Of each repeat; their mean is the prediction."""
PHASE = 0.001
"""Spread of the replays' clocks. Which arrivals meet which step is chance, and now and then much hangs on it; without
this the replays of all repeats would be one."""
MODES = {"open": "timed", "closed": "saturated", "sessions": "sessions"}


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """One policy and repeat in the simulator.

    Parameters
    ----------
    values : mapping of str to float
        By measure, as measured runs have them.
    lives : sequence of Lives
        The requests as they held their ranks, replay by replay.
    wait_ms : float
        Mean time in queues, of router and engine together.
    """

    values: Mapping[str, float]
    lives: tuple[Lives, ...]
    wait_ms: float


@dataclass(frozen=True, eq=False)
class Prediction:
    """What the simulator says of the runs.

    Parameters
    ----------
    cost : StepCost
    calibration : Calibration or None
        How the cost was fitted; None where it was given.
    source : str
        Where the cost comes from, in words.
    by_policy : mapping of str to mapping of int to Predicted
        Policy, then repeat.
    prefill : bool
        Whether prompts have a price; else first tokens are predicted without them.
    unpredicted : mapping of str to str
        Policies that cannot be simulated, and why.
    notes : tuple of str
    """

    cost: StepCost
    calibration: Calibration | None
    source: str
    by_policy: Mapping[str, Mapping[int, Predicted]]
    prefill: bool
    unpredicted: Mapping[str, str]
    notes: tuple[str, ...]


def fit_probe(steps: Path) -> Calibration:
    """Fit the cost of a step to what a probe measured.

    Raises
    ------
    CalibrationError
        The file cannot be read, or holds too little for a fit.
    """
    from equipoise.calibrate import complete, fit
    from equipoise.calibrate.readers import read

    return complete(fit(read(steps, "columns"), name="probe"))


def predict(measured: Measured, cost: StepCost | None = None) -> Prediction:
    """Replay the trace of a live run in the simulator, with its policies, arrivals and seeds.

    Parameters
    ----------
    measured : Measured
    cost : StepCost, optional
        What a step costs; fitted to the probe's steps where it is not given.

    Raises
    ------
    InputError
        There are no steps and no cost, or the engine cannot be told in the simulator's words.
    """
    runs = measured.runs
    calibration = None
    if cost is None:
        if runs.steps is None:
            raise InputError("there are no step data", fix="run the probe, or name a step cost with --cost")
        calibration = fit_probe(runs.steps)
        cost = calibration.cost
        source = f"fitted to {calibration.result.steps:,} steps of the probe"
    else:
        source = f"the step cost {cost.name}, as given"
    deployment, notes = _deployment(runs, cost)
    found: dict[str, dict[int, Predicted]] = {}
    unpredicted: dict[str, str] = {}
    for policy in runs.policies:
        if policy == ENGINE:
            unpredicted[policy] = "the engine's own router is not simulated"
            continue
        try:
            found[policy] = {
                k: _replayed(measured, run, deployment, cost) for k, run in sorted(runs.of(policy).items())
            }
        except EquipoiseError as error:
            unpredicted[policy] = str(error)
    decided = runs.about.cost
    if decided is not None and decided != cost.name and found:
        notes.append(
            f"The live router decided by the cost {decided}; the simulated one decides by the cost it is charged, "
            f"{cost.name}."
        )
    return Prediction(cost, calibration, source, found, cost.prefill is not None, unpredicted, tuple(notes))


def _deployment(runs: LiveRuns, cost: StepCost) -> tuple[Deployment, list[str]]:
    instances = runs.about.engine.instances
    ranks = {i.ranks for i in instances}
    if len(ranks) != 1:
        raise InputError(
            f"instances of {', '.join(str(r) for r in sorted(ranks))} ranks",
            fix="the simulator has instances of one size",
        )
    notes = []
    capacities = [i.kv_capacity_tokens for i in instances if i.kv_capacity_tokens is not None]
    batches = [i.max_batch for i in instances if i.max_batch is not None]
    known = {}
    if len(capacities) == len(instances):
        known["kv_capacity_tokens"] = min(capacities)
    else:
        notes.append("How many tokens fit into a rank is not known: the simulated ranks have no limit.")
    if len(batches) == len(instances):
        known["max_batch"] = min(batches)
    prefill = Prefill()
    if cost.prefill is not None:
        prefill = Prefill(where="ranks", chunk_tokens=CHUNK_TOKENS, prefix_cache=runs.about.prefixes)
        notes.append(
            f"Prompts are computed by the rank that decodes, in chunks of up to {CHUNK_TOKENS:,} tokens."
        )
    else:
        notes.append(
            "Prompts have no price: first tokens and end-to-end times are predicted without computing them, and steps "
            "without what prompts add to them."
        )
    return Deployment(
        Pool(instances=len(instances), ranks=ranks.pop(), **known), prefill=prefill, memory=KvMemory()
    ), notes


def _replayed(measured: Measured, run: Run, deployment: Deployment, cost: StepCost) -> Predicted:
    runs = measured.runs
    about = runs.about
    trace, order = runs.planned(run)
    rng = np.random.default_rng(run.seed)
    values: list[dict[str, float]] = []
    lives, waits = [], []
    for i in range(REPLAYS):
        result = simulate(
            trace,
            deployment,
            run.policy,
            cost.scaled(float(np.exp(PHASE * rng.standard_normal()))),
            mode=MODES[about.mode],  # type: ignore[arg-type]
            concurrency=about.concurrency if about.mode == "closed" else None,
            seed=run.seed + 1000 * i,
            warmup_turnovers=0.0,
        )
        twin = _as_run(result, run, order)
        one = numbers(twin, twin.answered, measured.unit, measured.units)
        one |= whole_numbers(twin, measured.slo, runs.ranks, measured.unit, measured.units)
        values.append({n: x.value for n, x in one.items()})
        if (steps := result.running_step_ms) is not None:
            values[-1] |= {"itl_ms.p50": steps.p50, "itl_ms.p90": steps.p90, "itl_ms.p99": steps.p99}
        lives.append(lives_of(twin))
        waits.append(math.nan if (wait := result.queue_wait_ms) is None else wait.mean)
    means = {n: float(np.mean([v.get(n, math.nan) for v in values])) for n in values[0]}
    return Predicted(means, tuple(lives), float(np.mean(waits)))


def _as_run(result: FleetResult, run: Run, order: np.ndarray) -> Run:
    """The simulated run in the arrays of a measured one, requests in the order of the table ``trace``."""
    frame = result.requests_frame()
    n = len(order)

    def column(name: str) -> np.ndarray:
        values = np.empty(n)
        values[order] = frame[name].cast(float).to_numpy()
        return values

    outcome = np.full(n, "dropped", dtype=object)
    outcome[order[(frame["status"].cast(str) == "finished").to_numpy()]] = "ok"
    arrived = column("arrived_s")
    return replace(
        run,
        policy=f"predicted {run.policy}",
        intended_s=arrived,
        sent_s=arrived,
        first_s=column("first_token_s"),
        finished_s=column("ended_s"),
        prompt_tokens=column("context_tokens").astype(np.int64),
        output_tokens=column("tokens").astype(np.int64),
        rank=column("rank").astype(np.int64),
        outcome=outcome,
        gap_ms=np.zeros(0),
        gap_of=np.zeros(0, dtype=np.int64),
    )

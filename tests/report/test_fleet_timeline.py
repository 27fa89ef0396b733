"""The timeline of a simulated deployment against the rules of its format, and against the prices of the simulation."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.fleet import (
    Change,
    Deployment,
    FleetResult,
    Hardware,
    KvMemory,
    Speculation,
    StepExtras,
    simulate,
    window_plan,
)
from equipoise.replay import Pool, SnapshotPlan
from equipoise.replay.layout import SERIES
from equipoise.report.fleet_timeline import fleet_timeline, write_fleet_timeline
from equipoise.traces import Trace

ROUNDING_US = 0.0021
POOL = Pool(2, 3, kv_capacity_tokens=90_000, max_batch=12)
UNEVEN = Deployment(
    POOL,
    hardware=(Hardware(1, 1, speed=0.5),),
    step=StepExtras(graph_sizes=(4, 8), rank_speed_sigma=0.2),
    speculation=Speculation(2, 0.6, query_reads=0.5),
)
DEPLOYMENTS = {
    "plain": (Deployment(POOL), "h200"),
    "uneven": (UNEVEN, "h200"),
    "by_step": (UNEVEN, "by_step"),
    "saturated_reads": (replace(UNEVEN, speculation=Speculation(1, 0.5)), "v1"),
    "extras": (
        Deployment(
            POOL,
            step=StepExtras(overhead_us=150.0, comm_us=50.0),
            memory=KvMemory(64, "swap", swap_s_per_token=0.0),
            changes=(
                Change(0.20, "drain", 0, 2, notice_s=0.01),
                Change(0.25, "die", 1, stall_s=0.02),
                Change(0.30, "return", 1),
                Change(9.0, "drain", 0),
            ),
        ),
        "h200",
    ),
}


@cache
def run(name: str, window: tuple[float, float] = (0.1, 0.4), **how: Any) -> FleetResult:
    deployment, price = DEPLOYMENTS[name]
    cost = replace(load("h200"), barrier="step") if price == "by_step" else load(price)
    rng = np.random.default_rng(2)
    n = 150
    trace = Trace.from_columns(
        "small",
        np.sort(rng.uniform(0, 0.5, n)),
        rng.integers(1, 20_000, n),
        rng.integers(1, 25, n),
    )
    if price == "v1":
        window = (0.0, 0.05)

    def again(plan: SnapshotPlan | None) -> FleetResult:
        return simulate(
            trace, deployment, "dualpath", cost, engine="reference", warmup_turnovers=0.3, snapshots=plan
        )

    return again(window_plan(again(None), *window))


def slices(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[e["pid"], e["tid"]].append(e)
    return found


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_rules_of_the_format(name: str) -> None:
    drawn = fleet_timeline(run(name))
    json.dumps(drawn, allow_nan=False)
    events = drawn["traceEvents"]
    assert {e["ph"] for e in events} <= {"M", "X", "C", "i"}
    names = [e["ph"] for e in events].count("M")
    assert all(e["ph"] == "M" for e in events[:names])
    stamps = [e["ts"] for e in events[names:]]
    assert stamps == sorted(stamps)
    assert stamps[0] >= 0
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events} == named
    assert all(e["dur"] > 0 for e in events if e["ph"] == "X")
    for mine in slices(events).values():
        for a, b in pairwise(mine):
            assert b["ts"] >= round(a["ts"] + a["dur"], 3)


@pytest.mark.parametrize("name", ["plain", "uneven", "by_step", "saturated_reads"])
def test_work_and_bubbles_are_what_the_simulation_paid(name: str) -> None:
    """Speed, speculation and padding are in the work: nothing is left over, and no step is longer than its slices."""
    result = run(name)
    events = fleet_timeline(result)["traceEvents"]
    left = [e["dur"] for e in events if e["name"] == "beyond attention"]
    assert max(left, default=0.0) <= ROUNDING_US
    threads = slices(events)
    steps = [s for (_, tid), mine in threads.items() if tid == 1 for s in mine]
    assert len(steps) == len(result.snapshots.step) > 10
    for (pid, tid), mine in threads.items():
        if tid == 1:
            continue
        for step in threads[pid, 1]:
            low, high = step["ts"], step["ts"] + step["dur"]
            inside = [s["dur"] for s in mine if low - ROUNDING_US <= s["ts"] < high - ROUNDING_US]
            assert sum(inside) == pytest.approx(step["dur"], abs=ROUNDING_US)


def test_uneven_ranks_are_not_all_drawn_alike() -> None:
    """Or the test above would not know whether speed and padding were drawn."""
    result = run("uneven")
    parts = result.parts
    assert parts["padding"] > 0
    assert parts["spread"] > 0


def test_steps_are_those_of_the_run() -> None:
    result = run("uneven")
    seen = result.snapshots
    steps = [
        s
        for (_, tid), mine in slices(fleet_timeline(result)["traceEvents"]).items()
        if tid == 1
        for s in mine
    ]
    steps.sort(key=lambda s: int(s["name"].removeprefix("step ")))
    assert [s["name"] for s in steps] == [f"step {i}" for i in seen.step]
    assert [s["dur"] for s in steps] == pytest.approx(seen.length_s * 1e6, abs=ROUNDING_US)
    rows = result.series[seen.step]
    assert [s["args"]["cost"] for s in steps] == pytest.approx(rows[:, SERIES.COST], abs=1e-5)
    assert [s["args"]["ideal"] for s in steps] == pytest.approx(rows[:, SERIES.IDEAL], abs=1e-5)


def test_what_is_beyond_attention_comes_last() -> None:
    result = run("extras")
    events = fleet_timeline(result)["traceEvents"]
    beyond = [e for e in events if e["name"] == "beyond attention"]
    drawn = sum(1 for e in events if e["ph"] == "X" and e["tid"] == 1)
    assert len(beyond) >= drawn * (POOL.ranks - 1)
    whole = sorted(e["dur"] for e in beyond)[len(beyond) // 2]
    assert whole == pytest.approx(200.0, abs=ROUNDING_US)


def test_changes_are_instants() -> None:
    result = run("extras")
    drawn = fleet_timeline(result)
    origin = drawn["otherData"]["start_s"]
    marks = [e for e in drawn["traceEvents"] if e["ph"] == "i"]
    found = {(e["name"], e["s"], e["pid"] - 100_001, e["tid"]): e["ts"] / 1e6 + origin for e in marks}
    assert found == {
        ("drain rank 2", "t", 0, 4): pytest.approx(0.20),
        ("noticed: drain rank 2", "t", 0, 4): pytest.approx(0.21),
        ("die", "p", 1, 1): pytest.approx(0.25),
        ("noticed: die", "p", 1, 1): pytest.approx(0.25),
        ("return", "p", 1, 1): pytest.approx(0.30),
        ("noticed: return", "p", 1, 1): pytest.approx(0.30),
    }


def test_waiting_requests_are_a_counter() -> None:
    result = run("plain")
    events = fleet_timeline(result)["traceEvents"]
    seen = sorted((e["ts"], e["args"]["requests"]) for e in events if e["name"] == "waiting at routers")
    assert [q for _, q in seen] == result.series[result.snapshots.step, SERIES.QUEUED].tolist()


def test_instances_can_be_chosen() -> None:
    result = run("plain")
    drawn = fleet_timeline(result, title="mine", instances=[1])
    titles = [e["args"]["name"] for e in drawn["traceEvents"] if e["name"] == "process_name"]
    assert titles == ["mine, instance 1"]
    with pytest.raises(InputError, match="no step of instance 7"):
        fleet_timeline(result, instances=[7])


def test_a_run_without_snapshots() -> None:
    result = run("plain")
    none = result.outcome.ended.copy()
    none[17] = 0
    with pytest.raises(InputError, match="window_plan"):
        fleet_timeline(replace(result, outcome=result.outcome._replace(ended=none)))


def test_the_file_is_the_timeline(tmp_path: Path) -> None:
    result = run("extras")
    write_fleet_timeline(result, tmp_path / "timeline.json")
    assert json.loads((tmp_path / "timeline.json").read_text("utf-8")) == fleet_timeline(result)

"""The timeline against the rules of its format, and against the replay it shows."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import small_comparisons as small

from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.replay import SnapshotPlan
from equipoise.report.timeline import timeline, write_timeline
from equipoise.study import Comparison, rerun

ALLOWED = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "C": {"ph", "name", "pid", "tid", "ts", "args"},
}
ROUNDING_US = 0.0021


def by_thread(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            found[e["pid"], e["tid"]].append(e)
    return found


def by_step() -> Comparison:
    return small.run(costs=[replace(load("v2"), barrier="step")], policies=[parse("least_batch")], seeds=1)


@pytest.mark.parametrize("name", ["usual", "single", "brief", "grouped", "timed", "by_step"])
def test_the_rules_of_the_format(name: str, request: pytest.FixtureRequest) -> None:
    comparison = by_step() if name == "by_step" else request.getfixturevalue(name)
    drawn = timeline(comparison)
    events = drawn["traceEvents"]
    json.dumps(drawn, allow_nan=False)
    for e in events:
        assert set(e) == ALLOWED[e["ph"]]
        assert e["pid"] > 0
        assert e["tid"] > 0
        assert e["pid"] != e["tid"]
    kinds = [e["ph"] for e in events]
    names = kinds.count("M")
    assert kinds[:names] == ["M"] * names, "names come first"
    stamps = [e["ts"] for e in events[names:]]
    assert stamps == sorted(stamps)
    assert stamps[0] == 0
    assert all(e["dur"] > 0 for e in events if e["ph"] == "X")
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(by_thread(events)) == named
    assert {e["pid"] for e in events if e["name"] == "process_name"} == {pid for pid, _ in named}


@pytest.mark.parametrize("name", ["usual", "single", "grouped", "timed", "by_step"])
def test_work_and_bubble_fill_every_step_without_a_gap(name: str, request: pytest.FixtureRequest) -> None:
    comparison = by_step() if name == "by_step" else request.getfixturevalue(name)
    threads = by_thread(timeline(comparison)["traceEvents"])
    for (pid, tid), slices in threads.items():
        for a, b in pairwise(slices):
            assert b["ts"] >= round(a["ts"] + a["dur"], 3), "slices of a thread must not overlap"
        if tid == 1:
            continue
        steps = threads[pid, 1]
        assert {s["name"] for s in slices} <= {"work", "bubble"}
        for step in steps:
            low, high = step["ts"], step["ts"] + step["dur"]
            inside = [s for s in slices if low - ROUNDING_US <= s["ts"] < high - ROUNDING_US]
            assert sum(s["dur"] for s in inside) == pytest.approx(step["dur"], abs=ROUNDING_US)
            assert inside[0]["ts"] == pytest.approx(low, abs=ROUNDING_US)
            assert inside[-1]["ts"] + inside[-1]["dur"] == pytest.approx(high, abs=ROUNDING_US)


def test_every_barrier_has_a_rank_that_does_not_wait(usual: Comparison) -> None:
    threads = by_thread(timeline(usual, steps=5)["traceEvents"])
    pid = min(p for p, _ in threads)
    for step in threads[pid, 1]:
        for term, rank in step["args"]["slowest"].items():
            mine = threads[pid, int(rank.removeprefix("rank ")) + 2]
            waits = [
                s
                for s in mine
                if s["name"] == "bubble"
                and s["args"]["term"] == term
                and step["ts"] <= s["ts"] < step["ts"] + step["dur"]
            ]
            assert waits == []


def test_steps_are_those_of_the_replay(usual: Comparison) -> None:
    cell = usual.baseline(usual.settings()[0])
    first = cell.runs[0].counted_range[0]
    events = timeline(usual, steps=12, first=first)["traceEvents"]
    seen = rerun(usual.plan, cell, SnapshotPlan(12, first)).snapshots
    pid = min(e["pid"] for e in events)
    steps = by_thread(events)[pid, 1]
    assert [s["name"] for s in steps] == [f"step {i}" for i in seen.step]
    assert [s["dur"] for s in steps] == pytest.approx(seen.length_s * 1e6, abs=ROUNDING_US)
    batch = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "batch" and e["pid"] == pid]
    assert [b["max"] for b in batch] == seen.batch.max(axis=1).tolist()
    tokens = [
        e["args"] for e in events if e["ph"] == "C" and e["name"] == "context tokens" and e["pid"] == pid
    ]
    assert [t["mean"] for t in tokens] == pytest.approx(seen.context_tokens.mean(axis=1), rel=1e-4)


def test_policies_and_instances_are_processes(usual: Comparison, grouped: Comparison) -> None:
    def titles(comparison: Comparison) -> list[str]:
        events = timeline(comparison, steps=3)["traceEvents"]
        return [e["args"]["name"] for e in events if e["name"] == "process_name"]

    best = usual.best(usual.settings()[0]).policy.label
    assert titles(usual) == ["baseline: least_batch", f"best: {best}"]
    assert len(titles(grouped)) == 8
    assert titles(grouped)[0] == "baseline: least_batch, instance 0"


def test_the_file_is_the_timeline(single: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    write_timeline(single, path, steps=4)
    assert json.loads(path.read_text("utf-8")) == timeline(single, steps=4)


def test_a_window_that_is_not_there(single: Comparison) -> None:
    steps = single.cells[0].runs[0].steps
    with pytest.raises(InputError, match=f"from 0 to {steps - 1}"):
        timeline(single, first=steps)
    with pytest.raises(InputError, match="at least 1"):
        timeline(single, steps=0)
    assert timeline(single, first=steps - 1)["traceEvents"]

"""Steps from tokens: of a barrier whose steps are known, those that are found are its steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from equipoise.cost import load
from equipoise.live.rows import TABLES
from equipoise.live.steps import steps_of
from equipoise.testing.mock_engine.core import Job, LockStep

RANKS = 3
"""Of the barrier."""


def barrier(jitter_ms: float, seed: int = 0) -> tuple[pl.DataFrame, dict[float, tuple[list[int], list[int]]]]:
    """Rows of requests that ran in lock-step, and the true loads of every step by the time it ended."""
    rng = np.random.default_rng(seed)
    core = LockStep(RANKS, load("h200"), kv_capacity_tokens=1 << 20)
    made: dict[int, list[float]] = {}
    rows: list[dict[str, Any]] = []
    jobs: list[Job] = []
    truth = {}
    due = np.cumsum(rng.exponential(0.05, 40)).tolist()
    while due or core.busy:
        while due and due[0] <= core.now_s:
            due.pop(0)
            rank, prompt = int(rng.integers(RANKS)), int(rng.integers(10, 5000))
            times: list[float] = []
            job = Job(rank, prompt, int(rng.integers(1, 60)))
            job.on_token = lambda job, times=times: times.append(core.now_s)  # type: ignore[misc]
            core.submit(job)
            made[job.number] = times
            jobs.append(job)
        if not core.busy:
            core.now_s = due[0]
            continue
        core.begin()
        loads = core.batch, core.held_tokens.tolist()
        core.end()
        truth[core.now_s] = loads
    for number, job in enumerate(jobs):
        times_s = np.array(made[job.number]) + rng.uniform(0, jitter_ms / 1e3, job.output_tokens)
        rows.append(
            {
                "policy": "p",
                "repeat": 0,
                "order": 0,
                "request": number,
                "intended_s": job.submitted_s,
                "sent_s": job.submitted_s,
                "first_token_s": times_s[0],
                "finished_s": times_s[-1],
                "prompt_tokens": job.prompt_tokens,
                "output_tokens": job.output_tokens,
                "rank": job.rank,
                "instance": "i",
                "outcome": "ok",
                "message": None,
                "itl_ms": (np.diff(times_s) * 1e3).tolist(),
            }
        )
    return pl.DataFrame(rows, schema=dict(TABLES["requests"])), truth


@pytest.mark.parametrize("jitter_ms", [0.0, 1.0, 4.0])
def test_steps_are_those_of_the_barrier(jitter_ms: float) -> None:
    requests, truth = barrier(jitter_ms)
    steps = steps_of(requests, [("other", 2), ("i", RANKS)], "test")
    assert steps.schema == dict(TABLES["steps"])
    assert steps["instance"].unique().to_list() == [1]
    ends = np.array(sorted(truth))
    wrong = plain = 0
    ratios = []
    for (_,), one in steps.group_by("step", maintain_order=True):
        assert one["rank"].to_list() == list(range(RANKS))
        if one["prefill_tokens"].sum():
            continue
        plain += 1
        at_s = one["clock_s"][0]
        true = int(np.abs(ends - at_s).argmin())
        wrong += truth[ends[true]] != (one["batch"].to_list(), one["context_tokens"].to_list())
        ratios.append(one["time_ms"][0] / 1e3 / (ends[true] - ends[true - 1]))
    assert plain > 0.3 * len(truth)
    assert wrong == 0
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.002 if jitter_ms < 2 else 0.01)
    if not jitter_ms:
        assert np.abs(np.array(ratios) - 1).max() < 1e-3


def test_prices_are_those_the_steps_were_made_with() -> None:
    """Every step that is found has the price it was made with."""
    requests, _ = barrier(0.5)
    steps = steps_of(requests, [("i", RANKS)], "test").filter(
        pl.col("prefill_tokens").sum().over("step") == 0
    )
    cost = load("h200").in_us()
    for (_,), one in steps.group_by("step", maintain_order=True):
        want = float(cost.cost(one["batch"].to_numpy(), one["context_tokens"].to_numpy())) / 1e3
        assert one["time_ms"][0] == pytest.approx(want, rel=0.12)  # half a millisecond of jitter at both ends


def test_what_hides_its_tokens_is_left_out() -> None:
    requests, _ = barrier(0.0)
    bundled = requests.with_columns(output_tokens=pl.col("output_tokens") * 2)
    assert steps_of(bundled, [("i", RANKS)], "test").is_empty()
    assert steps_of(requests.clear(), [("i", RANKS)], "test").is_empty()
    failed = requests.with_columns(outcome=pl.lit("reset"))
    assert steps_of(failed, [("i", RANKS)], "test").is_empty()

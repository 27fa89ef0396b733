"""Jobs are plain data, runs of a setting count the same time, and a rate is set for the load that was asked for."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from equipoise.cost import Saturation, StepCost, Term, load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.replay import Pool, ReplayResult, replay
from equipoise.replay.layout import TOTALS
from equipoise.study import ComparePlan, compare, summarize, to_json, verdicts
from equipoise.study.jobs import Batch, Measures, Run, batches, run_job
from equipoise.study.workloads import decode_mean_of_least, load_source, rate_for
from equipoise.testing.strategies import traces
from equipoise.traces.synthetic import synth

TIMED = ComparePlan(
    traces=["chat-short"],
    costs=[load("h200")],
    policies=[parse(p) for p in ("least_batch", "random")],
    pool=Pool(ranks=8),
    mode="timed",
    concurrency=64,
    requests=2000,
    seeds=3,
)


def _elsewhere(data: bytes) -> bytes:
    """A whole batch in another process, given and answered as bytes."""
    batch: Batch = pickle.loads(data)
    trace = batch.draw(load_source(batch.trace))
    return pickle.dumps([run_job(job, trace) for job in batch.jobs])


def _processes(work: Sequence[Batch], done: Callable[[], None]) -> Iterator[list[Run]]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for batch, answer in zip(work, pool.map(_elsewhere, map(pickle.dumps, work)), strict=True):
            for _ in batch.jobs:
                done()
            yield pickle.loads(answer)


def test_another_runner_gives_the_same_summary() -> None:
    plan = replace(TIMED, seeds=2, requests=800)
    counted: list[tuple[int, int]] = []
    here = compare(plan, jobs=1)
    there = compare(plan, runner=_processes, progress=lambda n, of: counted.append((n, of)))
    assert to_json(summarize(here)) == to_json(summarize(there))
    assert counted == [(n, 4) for n in (1, 2, 3, 4)]
    kept = pickle.loads(pickle.dumps(here))
    assert to_json(summarize(kept)) == to_json(summarize(here))


def test_measures_are_properties_of_a_result() -> None:
    for field in fields(Measures):
        assert hasattr(ReplayResult, field.name) or field.name in {f.name for f in fields(ReplayResult)}


def test_batches_hold_every_cell_of_every_seed_once() -> None:
    plan = replace(TIMED, traces=["chat-short", "reasoning"], groups=(1,), seeds=2)
    work = batches(plan)
    assert [(b.trace, b.seed) for b in work] == [
        ("chat-short", 0), ("chat-short", 1), ("reasoning", 0), ("reasoning", 1)
    ]  # fmt: skip
    assert all([j.policy.label for j in b.jobs] == [p.label for p in plan.policies] for b in work)


def test_timed_runs_of_a_setting_count_the_same_time() -> None:
    comparison = compare(TIMED)
    for setting in comparison.settings():
        for seed in range(TIMED.seeds):
            assert len({c.runs[seed].counted_s for c in comparison.of(setting)}) == 1
    assert {run.result is None for c in comparison.cells for run in c.runs[1:]} == {True}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(traces(min_requests=10), st.sampled_from([1, 3]), st.floats(0, 1), st.floats(0, 1))
def test_a_window_is_the_sum_of_its_steps(trace, instances, low, high) -> None:
    """Against the totals, where the window is all that was counted; against the series, where it is a part."""
    cost = StepCost("c", (Term("all", per_100k_context=100.0),), constant=1.0)
    try:
        run = replay(
            trace, Pool(instances=instances, ranks=2), "least_batch", cost, mode="timed", warmup_turnovers=0
        )
    except InputError:  # the trace arrives all at once: the drain is all there is
        assume(False)
    whole = run.counted_between(*run.counted_s)
    assert np.allclose(whole.outcome.totals, run.outcome.totals, rtol=1e-12)
    first, last = sorted((low, high))
    span = run.counted_s[1] - run.counted_s[0]
    window = run.counted_s[0] + first * span, run.counted_s[0] + last * span
    frame = run.to_polars()
    inside = frame.filter(
        (frame["start_s"] >= window[0]) & (frame["start_s"] < window[1]) & (frame["counted_steps"] > 0)
    )
    if len(inside) == 0:
        with pytest.raises(InputError, match="no counted step starts"):
            run.counted_between(*window)
        return
    part = run.counted_between(*window)
    assert part.outcome.totals[TOTALS.STEPS] == len(inside)
    assert part.mean_cost == pytest.approx(inside["cost"].mean(), rel=1e-12)
    assert part.excess == pytest.approx(inside["cost"].sum() / inside["ideal"].sum() - 1, rel=1e-9, abs=1e-12)
    assert len(part.counted_series) == len(inside)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(traces(), st.integers(1, 300))
def test_mean_saturated_context_of_a_step_is_counted_step_by_step(trace, length) -> None:
    seen = [
        min(c + k, length)
        for c, n in zip(trace.context_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
        for k in range(n)
    ]
    assert decode_mean_of_least(trace, length) == pytest.approx(np.mean(seen), rel=1e-12)


def test_a_rate_knows_loads_that_do_not_divide_and_what_saturates() -> None:
    trace = synth("chat-short", requests=3000, seed=1)
    plain = load("h200")
    rates = [rate_for(trace, plain, Pool(ranks=64), n) for n in (96, 97, 128)]
    assert rates[0] < rates[1] < rates[2]  # a batch of 1.5 a rank is not one of 2
    dear = replace(plain, terms=(Term("k", saturations=(Saturation(512, 900.0),)),))
    dearer = replace(plain, terms=(Term("k", saturations=(Saturation(512, 1800.0),)),))
    assert rate_for(trace, dearer, Pool(ranks=8), 256) < rate_for(trace, dear, Pool(ranks=8), 256)


def test_a_timed_verdict_speaks_of_latency_first_and_warns_of_overload() -> None:
    comparison = compare(TIMED)
    (words,) = verdicts(comparison)
    assert "least mean TPOT" in words
    assert "tokens/s" in words
    assert "kept filling" not in words
    flood = replace(TIMED, costs=[load("v1")], requests=4000)
    (words,) = verdicts(compare(flood))
    assert "requests come faster than it serves them" in words
    (words,) = verdicts(compare(replace(TIMED, seeds=1)))
    assert "use more seeds" in words

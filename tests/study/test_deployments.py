"""Whole deployments in studies: the same runner, checkpoint and figures; what fails is tried again, the rest kept."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.cost import load
from equipoise.errors import EngineError, InputError, PolicyError
from equipoise.fleet import Deployment, FleetResult, KvMemory, Prefill, Speculation, StepExtras, simulate
from equipoise.fleet.files import load as deployment
from equipoise.policies import parse
from equipoise.replay import Information, Pool
from equipoise.study import ComparePlan, Setting, compare, runner, schema, summarize, to_json, workloads
from equipoise.study.checkpoint import Checkpoint
from equipoise.study.folder import resolved_config, write_data
from equipoise.study.jobs import batches, replay_job
from equipoise.study.loads import rate_for, usual_concurrency
from equipoise.study.runner import TRIES, threads
from equipoise.traces import synth

SMALL = Deployment(
    Pool(ranks=4, kv_capacity_tokens=2_000_000, max_batch=64),
    prefill=Prefill("pool", instances=1, ranks=2, s_per_token=1e-6),
    memory=KvMemory(64, "recompute"),
    speculation=Speculation(2, 0.6),
    step=StepExtras(overhead_us=500.0, graph_sizes=(8, 16, 32)),
)
OTHER = replace(SMALL, pool=replace(SMALL.pool, ranks=8), speculation=Speculation())
PLAN = ComparePlan(
    traces=["chat-short"],
    costs=[load("h200")],
    policies=[parse(p) for p in ("least_batch", "dualpath,z=1.2")],
    mode="timed",
    load_per_rank=6.0,
    requests=600,
    seeds=2,
    deployments={"small": SMALL, "other": OTHER},
)
JOBS = 8


def test_every_deployment_is_a_setting_of_its_own_under_the_same_requests() -> None:
    found = compare(PLAN)
    assert [s.deployment_name for s in found.settings()] == ["small", "other"]
    assert [s.concurrency for s in found.settings()] == [24, 48]
    for cell in found.cells:
        assert isinstance(cell.runs[0].result, FleetResult)
        assert cell.runs[0].result.deployment == cell.setting.deployment
        running = cell.mean("mean_batch") * cell.setting.pool.total_ranks
        assert running == pytest.approx(cell.setting.concurrency, rel=0.35)
    a, b = (c.runs[0].result for c in found.cells[:2])
    assert np.array_equal(a.context_tokens, b.context_tokens)


def test_a_cell_is_the_simulation_itself() -> None:
    batch = batches(PLAN)[0]
    trace = batch.draw(None)
    result, rate = replay_job(batch.jobs[1], trace)
    alone = simulate(trace, SMALL, "dualpath,z=1.2", load("h200"), rate_scale=rate)
    assert np.array_equal(result.outcome.start_s, alone.outcome.start_s)
    assert result.excess == alone.excess


def test_the_summary_keeps_its_schema_and_names_the_deployment() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    summary = summarize(compare(PLAN))
    jsonschema.validate(summary, schema())
    assert [c["deployment"] for c in summary["cells"]] == ["small", "small", "other", "other"]
    assert [c["ranks"] for c in summary["cells"]] == [4, 4, 8, 8]
    assert set(resolved_config(PLAN)["deployments"]) == {"small", "other"}


@pytest.mark.parametrize("mode", ["timed", "sessions"])
def test_what_is_kept_is_not_run_again_and_gives_the_same_bytes(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, mode=mode, traces=["agentic-coding"], requests=900)
    runs: list[int] = []
    run_job = runner.run_job
    monkeypatch.setattr(runner, "run_job", lambda job, trace: (runs.append(job.seed), run_job(job, trace))[1])
    fresh = compare(plan)
    kept = [compare(plan, runner=threads(2, Checkpoint(tmp_path / "kept"))) for _ in range(2)]
    assert len(runs) == 2 * JOBS
    assert {to_json(summarize(c)) for c in kept} == {to_json(summarize(fresh))}
    for name, comparison in (("a", fresh), ("b", kept[1])):
        (tmp_path / name).mkdir()
        write_data(comparison, tmp_path / name)
    for file in ("steps.parquet", "requests.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_deployment_is_part_of_the_key(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)

    def stems(plan: ComparePlan) -> set[Path]:
        return {checkpoint._stem(b, j) for b in batches(plan) for j in b.jobs}

    plain = stems(PLAN)
    assert len(plain) == JOBS
    for changed in (
        {"deployments": {"small": replace(SMALL, speculation=Speculation(2, 0.61))}},
        {"deployments": {"small": replace(SMALL, information=Information("exact", 2))}},
        {"load_per_rank": 7.0}, {"load_per_rank": None, "rate_per_s": 3.0}, {"mode": "sessions"},
    ):  # fmt: skip
        assert plain.isdisjoint(stems(replace(PLAN, **changed)))


@pytest.mark.parametrize(
    "information",
    [
        Information("extrapolated", period_steps=64, delay_steps=64),
        Information("ledger", 2, split="instance"),
        Information("acknowledged", 2, period_s=0.05),
    ],
    ids=["extrapolated", "split", "period"],
)
def test_what_only_the_fleet_knows_is_simulated(information: Information) -> None:
    plan = ComparePlan(
        ["chat-short"],
        [load("h200")],
        [parse("least_tokens")],
        Pool(2, 4),
        information=information,
        mode="timed",  # a pool kept full leaves little choice: the rank that lost a request takes the next
        concurrency=48,
        requests=1200,
        seeds=1,
    )
    cell = compare(plan).cells[0]
    assert isinstance(cell.runs[0].result, FleetResult)
    exact = compare(replace(plan, information=Information())).cells[0]
    assert not isinstance(exact.runs[0].result, FleetResult)
    assert cell.mean("excess") != exact.mean("excess")


def test_a_deployment_with_all_off_is_the_offline_study_bit_for_bit() -> None:
    pool = Pool(ranks=4, max_batch=64)
    plain = replace(PLAN, deployments={}, pool=pool)
    whole = replace(PLAN, deployments={"plain": Deployment(pool)})
    for mode in ("timed", "saturated"):
        a, b = (compare(replace(p, mode=mode)) for p in (plain, whole))
        for one, other in zip(a.cells, b.cells, strict=True):
            assert one.values("excess") == other.values("excess")
            assert one.values("rate_scale") == other.values("rate_scale")


@pytest.mark.parametrize("name", ["dp8", "dp64"])
def test_the_rate_is_that_of_the_offline_study_where_nothing_is_on(name: str) -> None:
    trace, pool = synth("agentic-coding", requests=5000), deployment(name).pool
    for cost in (load("h200"), load("v2")):
        plain = workloads.rate_for(trace, cost, pool, 100)
        assert rate_for(trace, cost, Deployment(pool), 100) == plain


def test_the_usual_load_fits_the_caches() -> None:
    assert usual_concurrency("agentic-coding", Deployment(Pool(ranks=4))) == 128
    assert usual_concurrency("chat-short", deployment("dp8")) == 256
    assert 30 < usual_concurrency("agentic-coding", deployment("dp8")) < 8 * 1_400_000 / 100_000


def test_ranks_that_cannot_compute_the_prompts() -> None:
    narrow = replace(deployment("colocated"), prefill=Prefill("ranks", chunk_tokens=8, s_per_token=1e-6))
    with pytest.raises(InputError, match="chunks a rank and step"):
        rate_for(synth("agentic-coding", requests=5000), load("h200"), narrow, 80)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pool": Pool(ranks=3)}, "a pool, groups or information beside a deployment"),
        ({"information": Information("ledger")}, "beside a deployment"),
        ({"concurrency": 3}, "give one of them"),
        ({"rate_per_s": 3.0}, "give one of them"),
        ({"load_per_rank": float("nan")}, "load_per_rank = nan"),
        (
            {"mode": "saturated", "load_per_rank": None, "rate_per_s": 2.0},
            "an arrival rate in saturated mode",
        ),
    ],
)
def test_plans_that_contradict_themselves(changes: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(PLAN, **changes)


# -- failures --------------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, times: int) -> Counter[tuple[int, str]]:
    """Let dualpath of seed 0 fail so many times; the calls of every job."""
    calls: Counter[tuple[int, str]] = Counter()
    run_job = runner.run_job

    def sometimes(job, trace):  # type: ignore[no-untyped-def]
        key = job.seed, job.policy.name
        calls[key] += 1
        if key == (0, "dualpath") and calls[key] <= times:
            raise error
        return run_job(job, trace)

    monkeypatch.setattr(runner, "run_job", sometimes)
    return calls


ONE = replace(PLAN, deployments={"small": SMALL})


def test_what_may_not_come_again_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = failing(monkeypatch, MemoryError("full"), TRIES - 1)
    found = compare(ONE)
    assert calls[0, "dualpath"] == TRIES
    assert sum(calls.values()) == TRIES + 3
    monkeypatch.undo()
    assert to_json(summarize(found)) == to_json(summarize(compare(ONE)))


@pytest.mark.parametrize(
    ("error", "calls_of_it"),
    [(MemoryError("full"), TRIES), (PolicyError("broke"), 1)],
    ids=["memory", "policy"],
)
def test_the_others_are_finished_kept_and_the_failed_named(
    error: Exception, calls_of_it: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        calls = failing(patch, error, 10)
        with pytest.raises(EngineError) as caught:
            compare(ONE, runner=threads(1, Checkpoint(tmp_path)))
    words = str(caught.value)
    assert words.startswith("1 runs failed, the others are kept in")
    assert f"dualpath z=1.2 on chat-short, h200, small, seed 0: {error}" in words
    assert "run the same command again to retry" in words
    assert calls[0, "dualpath"] == calls_of_it
    assert len(list(tmp_path.glob("*.json"))) == 3
    calls = failing(monkeypatch, error, 0)
    resumed = compare(ONE, runner=threads(1, Checkpoint(tmp_path)))
    assert calls == {(0, "dualpath"): 1}
    assert to_json(summarize(resumed)) == to_json(summarize(compare(ONE)))


def test_without_a_checkpoint_the_first_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, PolicyError("broke"), 1)
    with pytest.raises(PolicyError, match="broke"):
        compare(ONE, jobs=1)


def test_input_that_no_run_can_use_is_the_inputs_fault(tmp_path: Path) -> None:
    tiny = replace(SMALL, pool=replace(SMALL.pool, kv_capacity_tokens=1))
    plan = replace(ONE, deployments={"tiny": tiny})
    with pytest.raises(InputError, match="larger than a rank"):
        compare(plan, runner=threads(1, Checkpoint(tmp_path)))


def test_settings_are_hashable() -> None:
    assert len(set(PLAN.settings())) == 2
    assert isinstance(PLAN.settings()[0], Setting)

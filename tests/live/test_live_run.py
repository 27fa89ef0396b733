"""Whole live runs against a mock engine: nothing is lost, everything is exact, and it can be read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from live_cases import run_live, some_trace

from equipoise.live.about import read_about
from equipoise.live.describe import plan_of
from equipoise.live.parts import read_folder
from equipoise.traces import Trace


def rows_of(folder: Path) -> pl.DataFrame:
    return read_folder(folder).requests


@pytest.mark.parametrize("kind", ["vllm", "sglang", "dynamo"])
def test_every_request_is_answered_where_it_was_pinned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = some_trace()
    about, engine = run_live(
        tmp_path, monkeypatch, trace, kind=kind, policies=("least_batch", "least_tokens", "engine"), repeats=2
    )
    assert about.state == "complete"
    assert read_about(tmp_path) == about
    assert about.engine.instances[0].ranks == 3
    rows = rows_of(tmp_path)
    assert len(rows) == 6 * len(trace)
    assert set(rows["outcome"]) == {"ok"}
    one = rows.sort("order", "request")
    assert one["prompt_tokens"].to_list() == trace.context_tokens.tolist() * 6
    assert one["output_tokens"].to_list() == trace.output_tokens.tolist() * 6
    assert (one["itl_ms"].list.len() + 1 == one["output_tokens"]).all()
    # What the mock saw is what the rows say: pins were sent and kept, and nothing else was.
    pinned = rows.filter(pl.col("policy") != "engine")
    seen = engine.seen()["ranks"]
    warm_up = 3
    assert sum(rank["pinned"] for rank in seen) == len(pinned) + warm_up
    for rank, one_rank in enumerate(seen):
        assert one_rank["pinned"] == len(pinned.filter(pl.col("rank") == rank)) + 1
    free = rows.filter(pl.col("policy") == "engine")
    assert (free["rank"] >= 0).all() == (kind == "dynamo")  # Dynamo says who served
    assert set(engine.answers) == {200}


def test_times_are_in_order_and_start_when_a_request_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = some_trace(60)
    about, _ = run_live(tmp_path, monkeypatch, trace, scale=0.5)
    rows = rows_of(tmp_path).sort("request")
    due = (trace.arrival_s - trace.arrival_s[0]) * 0.5
    assert rows["intended_s"].to_numpy() == pytest.approx(due, abs=1e-6)
    for a, b in (("intended_s", "sent_s"), ("sent_s", "first_token_s"), ("first_token_s", "finished_s")):
        assert (rows[a] <= rows[b]).all()
    total = rows["first_token_s"] + rows["itl_ms"].list.sum().fill_null(0.0).cast(pl.Float64) / 1e3
    assert total.to_numpy() == pytest.approx(rows["finished_s"].to_numpy(), abs=1e-4)
    assert about.runs[0].late_p99_ms is not None
    assert about.runs[0].late_p99_ms < 1.0
    assert rows["sent_s"].to_numpy() == pytest.approx(due, abs=2e-3)


def test_a_queue_of_the_router_counts_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One place a rank: requests wait for it in the router, and the clock runs from when they were due."""
    trace = some_trace(40, gap_s=0.001)
    run_live(tmp_path, monkeypatch, trace, max_batch=1, timeout_s=600.0)
    rows = rows_of(tmp_path).sort("request")
    assert set(rows["outcome"]) == {"ok"}
    assert (rows["sent_s"] - rows["intended_s"]).max() > 0.2  # type: ignore[operator]
    assert rows["intended_s"].max() < 0.2  # type: ignore[operator]
    # nobody ever had two at once
    for _, own in rows.group_by("rank"):
        ends = own.sort("sent_s")
        assert (ends["sent_s"].to_numpy()[1:] >= ends["finished_s"].to_numpy()[:-1]).all()


def under_way(rows: pl.DataFrame) -> int:
    """Most requests that were under way at once."""
    times = [(t, 1) for t in rows["intended_s"]] + [(t, -1) for t in rows["finished_s"]]
    return int(np.cumsum([n for _, n in sorted(times)]).max())


def test_closed_loop_keeps_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_live(tmp_path, monkeypatch, some_trace(40), mode="closed", concurrency=5)
    rows = rows_of(tmp_path)
    assert len(rows) == 40
    assert under_way(rows) == 5


def test_turns_follow_the_answer_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 12
    trace = Trace.from_columns(
        "talks",
        np.arange(n) * 0.01,
        np.full(n, 30),
        np.full(n, 4),
        session=np.array([0, 1, 2, -1] * 3),
        turn=np.array([0, 0, 0, 0, 1, 1, 1, 0, 2, 2, 2, 0], dtype=np.int32),
        think_s=np.array([0.0] * 4 + [0.5] * 8),
    )
    run_live(tmp_path, monkeypatch, trace, mode="sessions", scale=2.0)
    rows = rows_of(tmp_path).sort("request")
    intended, finished = rows["intended_s"].to_list(), rows["finished_s"].to_list()
    for row in range(4, n):
        if row % 4 == 3:
            assert intended[row] == pytest.approx(row * 0.02, abs=1e-6)
        else:
            assert intended[row] == pytest.approx(finished[row - 4] + 1.0, abs=2e-3)


def test_the_ledger_is_the_engine_s_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_live(
        tmp_path, monkeypatch, some_trace(80, gap_s=0.02, most_tokens=40), policies=("least_tokens", "engine"),
        scrape_period_s=0.05,
    )  # fmt: skip
    scrapes = read_folder(tmp_path).scrapes
    own = scrapes.filter(pl.col("policy") == "least_tokens")
    assert set(own["rank"]) == {0, 1, 2}
    assert own["running"].max() > 3  # type: ignore[operator]
    # the mock publishes every step: what is running there is what the ledger has, but for what is on its way
    assert (own["running"] + own["waiting"] - own["own_requests"]).abs().mean() < 0.5  # type: ignore[operator]
    assert scrapes.filter(pl.col("policy") == "engine")["own_requests"].max() == 0


def test_the_probe_finds_the_price_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.cost import load

    run_live(tmp_path, monkeypatch, some_trace(6), probe=True, mode="closed", concurrency=12)
    folder = read_folder(tmp_path)
    steps = folder.steps.filter(pl.col("prefill_tokens").sum().over("step") == 0)
    assert set(steps["source"]) == {"probe"}
    assert len(folder.requests) == 6  # those of the probe are not among them
    cost = load("h200").in_us()
    for (_,), one in steps.group_by("step"):
        want = float(cost.cost(one["batch"].to_numpy(), one["context_tokens"].to_numpy())) / 1e3
        assert one["time_ms"][0] == pytest.approx(want, abs=0.15)
    grouped = steps.group_by("step").agg(pl.col("batch").max(), pl.col("batch").min().alias("least"))
    assert grouped["batch"].n_unique() >= 3
    assert (grouped["batch"] > 2 * grouped["least"]).any()  # uneven loads, too


def test_a_probe_separates_requests_from_tokens() -> None:
    """Nearly all of the variation of B is at few tokens, and of C at few requests; it ends as it began, mirrored."""
    from equipoise.engines import WorkerSpec
    from equipoise.live.about import InstanceAbout
    from equipoise.live.plan import LivePlan
    from equipoise.live.probe import TWICE_TOKENS, stages

    trace = Trace.from_columns("t", np.arange(40.0), np.tile([300, 300, 300, 4000], 10), np.full(40, 50))
    plan = LivePlan(trace=trace, workers=(WorkerSpec("http://127.0.0.1:1"),), policies=("random",))
    found = stages(plan, InstanceAbout(name="i", url="", ranks=4, max_batch=64), 1 << 20)
    alike = [s.loads[0] for s in found if len(set(s.loads)) == 1]
    of_short = {b for b, n in alike if n == 16}
    assert min(of_short) == 1
    assert max(of_short) == 64
    assert len(of_short) >= 6
    of_one = {n for b, n in alike if b == 1}
    assert min(of_one) == 16
    assert max(of_one) == 4000
    weights = np.array([(b, b * n) for b, n in alike], float)
    design = np.column_stack([np.ones(len(weights)), weights])
    scaled = design / np.linalg.norm(design, axis=0)
    assert np.linalg.cond(scaled) < 6  # no price hides in another one
    quick = [s for s in found if s.prompt_tokens < TWICE_TOKENS]
    assert quick == quick[::-1]


def test_a_run_is_resumed_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = some_trace(30)

    async def stop_in_the_second(engine: Any, runner: Any) -> None:
        import asyncio

        while not (runner.about and runner.about.runs[1].started_at):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.4)
        runner.stop("enough")

    policies = ("least_batch", "least_tokens")
    about, _ = run_live(
        tmp_path, monkeypatch, trace, policies=policies, repeats=2, meanwhile=stop_in_the_second
    )
    assert about.state == "stopped"
    assert [one.state for one in about.runs] == ["done", "stopped", "planned", "planned"]
    rows = rows_of(tmp_path)
    kept = rows.filter(pl.col("order") == 1)
    assert len(rows) == 30 + len(kept)
    assert 0 < len(kept.filter(pl.col("outcome") == "ok")) < 30
    assert len(kept.filter(pl.col("outcome") == "stopped")) > 0
    first = rows.filter(pl.col("order") == 0)

    plan, before = plan_of(tmp_path)
    assert plan.trace.context_tokens.tolist() == trace.context_tokens.tolist()
    assert before.runs[0].state == "done"
    again, _ = run_live(tmp_path, monkeypatch, plan.trace, policies=policies, repeats=2, about=before)
    assert again.state == "complete"
    rows = rows_of(tmp_path)
    assert rows.filter(pl.col("order") == 0).equals(first)
    assert rows.group_by("order").len().sort("order")["len"].to_list() == [30] * 4
    assert set(rows["outcome"]) == {"ok"}
    assert again.runs[1].attempts == 2
    assert about.notes == ["Stopped: enough."]
    assert again.notes == []


def test_a_killed_run_keeps_every_finished_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the files of the parts are there, the last line torn, and no table yet."""
    run_live(tmp_path, monkeypatch, some_trace(10))
    whole = read_folder(tmp_path)
    lines = b"".join(
        b'{"policy":"least_batch","repeat":0,"order":0,"request":%d,"intended_s":0.5,"outcome":"ok","itl_ms":[1.5]}\n'
        % i
        for i in range(3)
    )
    (tmp_path / "parts" / "000-requests.parquet").unlink()
    (tmp_path / "parts" / "000-requests.jsonl").write_bytes(lines + b'{"policy":"least_ba')
    (tmp_path / "requests.parquet").unlink()
    killed = read_folder(tmp_path)
    assert killed.requests["request"].to_list() == [0, 1, 2]
    assert killed.requests["itl_ms"].to_list() == [[1.5]] * 3
    assert killed.requests.schema == whole.requests.schema
    assert killed.scrapes.equals(whole.scrapes)


@pytest.mark.parametrize("prompts", ["ids", "text"])
def test_sglang_s_own_route_names_the_rank_in_the_body(
    prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = some_trace()
    _, engine = run_live(tmp_path, monkeypatch, trace, kind="sglang", route="/generate", prompts=prompts)
    rows = rows_of(tmp_path).sort("request")
    assert set(rows["outcome"]) == {"ok"}
    assert rows["prompt_tokens"].to_list() == trace.context_tokens.tolist()
    assert rows["output_tokens"].to_list() == trace.output_tokens.tolist()
    assert {body["routed_dp_rank"] for body in engine.bodies_seen} == {0, 1, 2}
    assert all(("text" in body) == (prompts == "text") for body in engine.bodies_seen)


def test_words_where_an_engine_takes_no_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer that makes two tokens of a word and adds one: learnt, and odd lengths are as near as can be."""
    from equipoise.testing.mock_engine import requests

    inner = requests._prompt_tokens
    monkeypatch.setattr(requests, "_prompt_tokens", lambda *what: 1 + 2 * inner(*what))
    trace = some_trace(40)
    trace.context_tokens[::2] += 1
    about, _ = run_live(tmp_path, monkeypatch, trace, prompts="text")
    rows = rows_of(tmp_path).sort("request")
    planned = trace.context_tokens
    assert (np.abs(rows["prompt_tokens"].to_numpy() - planned) <= 1).all()
    assert (rows["outcome"].to_numpy() == np.where(planned % 2 == 1, "ok", "wrong_length")).all()
    assert any("1 + 2 n tokens" in note for note in about.notes)


def test_several_instances_are_one_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from live_cases import plan_for
    from virtual_time import run_virtually

    from equipoise.engines import WorkerSpec
    from equipoise.live.run import LiveRun
    from equipoise.testing.mock_engine import MockEngine

    trace = some_trace(80, gap_s=0.01)

    async def main() -> Any:
        async with MockEngine("vllm", ranks=2) as a, MockEngine("vllm", ranks=3, ports="per-rank") as b:
            workers = (
                WorkerSpec(a.url),
                *(WorkerSpec(url, instance="b", ranks=1, first_rank=i) for i, url in enumerate(b.urls)),
            )
            plan = plan_for(
                a,
                trace,
                workers=workers,
                policies=("least_batch", "engine"),
                probe=True,
                mode="closed",
                concurrency=10,
            )
            await asyncio.sleep(0)
            return await LiveRun(plan, tmp_path).run()

    about = run_virtually(main(), monkeypatch)
    assert [(one.ranks, one.name) for one in about.engine.instances] == [
        (2, about.engine.instances[0].url),
        (3, "b"),
    ]
    found = read_folder(tmp_path)
    assert set(found.requests["outcome"]) == {"ok"}
    pinned = found.requests.filter(pl.col("policy") == "least_batch")
    assert set(pinned.select("instance", "rank").unique().iter_rows()) == {
        (about.engine.instances[0].name, 0),
        (about.engine.instances[0].name, 1),
        ("b", 0),
        ("b", 1),
        ("b", 2),
    }
    assert set(found.scrapes.filter(pl.col("instance") == "b")["rank"]) == {0, 1, 2}
    assert set(found.steps["instance"]) == {0, 1}
    assert set(found.steps.filter(pl.col("instance") == 1)["rank"]) == {0, 1, 2}


def test_step_logs_are_read_beside_the_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "steps.csv"
    lines = "\n".join(f"{i},0,4,{1000 + i},9.5" for i in range(5))
    log.write_text(f"step,rank,batch,context_tokens,time_ms\n{lines}\n")
    folder = tmp_path / "live"
    run_live(folder, monkeypatch, some_trace(6), step_logs=(str(log),))
    steps = read_folder(folder).steps
    assert steps["source"].to_list() == ["log"] * 5
    assert steps["time_ms"].to_list() == pytest.approx([9.5] * 5)
    log.write_text("nothing of the kind")
    about, _ = run_live(tmp_path / "bad", monkeypatch, some_trace(6), step_logs=(str(log),))
    assert about.state == "complete"
    assert any("step logs cannot be used" in note for note in about.notes)

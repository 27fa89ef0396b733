"""What goes wrong: the run stops or goes on as asked, says so in a sentence, and keeps every row."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_cases import run_live, some_trace

from equipoise.errors import EngineError, InputError
from equipoise.live.about import read_about
from equipoise.live.describe import plan_of
from equipoise.live.parts import read_folder
from equipoise.testing.mock_engine import MockEngine
from equipoise.testing.mock_engine.core import Job
from equipoise.testing.mock_engine.shapes import RefusedError


def outcomes(folder: Path) -> dict[str, int]:
    counts = read_folder(folder).requests["outcome"].value_counts()
    return dict(zip(counts["outcome"].to_list(), counts["count"].to_list(), strict=True))


FAULTS = [
    ("status", {"status": 429, "seconds": 0.0}, "refused_429"),
    ("status", {"status": 503}, "refused"),
    ("reset", {}, "reset"),
    ("cut", {}, "cut_short"),
    ("error_event", {}, "cut_short"),
    ("bad_chunk", {}, "unreadable"),
    ("hang", {}, "timeout"),
]


@pytest.mark.parametrize(("kind", "options", "outcome"), FAULTS, ids=[f"{k}-{o}" for k, _, o in FAULTS])
@pytest.mark.parametrize("on_failure", ["stop", "degrade"])
def test_requests_that_fail(
    kind: str,
    options: dict[str, Any],
    outcome: str,
    on_failure: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = some_trace(30, most_tokens=30)
    trace.output_tokens[:] = np.maximum(trace.output_tokens, 5)

    async def meanwhile(engine: MockEngine, runner: Any) -> None:
        while not (runner.about and runner.about.runs[0].started_at):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        engine.faults.add(kind, count=3, **options)

    about, _ = run_live(
        tmp_path, monkeypatch, trace, meanwhile=meanwhile, on_failure=on_failure, timeout_s=5.0
    )
    found = outcomes(tmp_path)
    run = about.runs[0]
    assert run.failed == sum(n for o, n in found.items() if o != "ok")
    if on_failure == "degrade":
        assert (about.state, run.state) == ("complete", "done")
        assert found == {"ok": 27, outcome: 3}
    else:
        assert (about.state, run.state) == ("stopped", "stopped")
        assert found[outcome] >= 1
        assert set(found) <= {"ok", outcome, "stopped"}
        assert outcome in about.notes[-1]
        assert "\n" not in about.notes[-1]
    assert read_about(tmp_path) == about


def test_another_number_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match=r"shows 3 ranks, and 5 were said.*--dp-size 3"):
        run_live(tmp_path / "new", monkeypatch, some_trace(), dp_size=5)
    assert not (tmp_path / "new").exists()


def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.engines import WorkerSpec

    with pytest.raises(EngineError, match="did not answer"):
        run_live(tmp_path / "new", monkeypatch, some_trace(), workers=(WorkerSpec("http://127.0.0.1:9"),))
    assert not (tmp_path / "new").exists()


def refuse_pins(engine: MockEngine) -> None:
    inner = engine._shape.pinned

    def pinned(*what: Any) -> int | None:
        if inner(*what) is not None:
            error = {"message": "data_parallel_rank 0 is out of range [0, 0).", "code": 400}
            raise RefusedError(400, {"error": error})
        return None

    engine._shape.pinned = pinned  # type: ignore[method-assign]


def test_an_engine_that_refuses_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("least_batch", "engine")
    with pytest.raises(EngineError, match=r"refuses the pin to rank 0.*--policies engine"):
        run_live(tmp_path / "a", monkeypatch, some_trace(), before=refuse_pins, policies=both)
    assert read_about(tmp_path / "a").state == "stopped"
    about, _ = run_live(
        tmp_path / "b", monkeypatch, some_trace(), before=refuse_pins, policies=both, on_failure="degrade"
    )
    assert {one.policy: one.state for one in about.runs} == {"least_batch": "failed", "engine": "done"}
    assert any("Only the engine's own choice" in note for note in about.notes)
    assert outcomes(tmp_path / "b") == {"ok": 24}


def test_an_engine_that_ignores_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ignore(engine: MockEngine) -> None:
        engine._shape.pinned = lambda *what: 0  # type: ignore[method-assign]

    about, _ = run_live(
        tmp_path,
        monkeypatch,
        some_trace(300, gap_s=0.003, most_tokens=60),
        before=ignore,
        scrape_period_s=0.1,
    )
    assert any("may not honour pins" in note for note in about.runs[0].notes)


def test_an_engine_that_dies_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def kill(engine: MockEngine, runner: Any) -> None:
        while not (runner.about and runner.about.runs[0].started_at):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        await engine.stop()

    about, _ = run_live(tmp_path, monkeypatch, some_trace(60), meanwhile=kill, repeats=2)
    assert about.state == "stopped"
    found = outcomes(tmp_path)
    assert found["ok"] > 0
    assert found.get("reset", 0) + found.get("unreachable", 0) > 0
    plan, before = plan_of(tmp_path)
    again, _ = run_live(tmp_path, monkeypatch, plan.trace, about=before, repeats=2)
    assert again.state == "complete"
    assert outcomes(tmp_path) == {"ok": 120}


def test_an_engine_that_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def restart(engine: MockEngine, runner: Any) -> None:
        while not (runner.about and runner.about.runs[0].started_at):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        engine._port = int(engine.url.rpartition(":")[2])
        await engine.stop()
        await asyncio.sleep(3.0)
        await engine.start()

    said: list[str] = []
    about, _ = run_live(
        tmp_path,
        monkeypatch,
        some_trace(200),
        meanwhile=restart,
        repeats=2,
        on_failure="degrade",
        drain_timeout_s=30.0,
        said=said,
    )
    assert about.state == "complete"
    assert [one.state for one in about.runs] == ["failed", "done"]
    rows = read_folder(tmp_path).requests
    assert rows.filter(order=1)["outcome"].unique().to_list() == ["ok"]
    assert any("waiting up to 30 s" in line for line in said)
    assert any("ended early" in line for line in said)


@pytest.mark.parametrize("on_failure", ["stop", pytest.param("degrade", marks=pytest.mark.proof)])
def test_an_engine_that_dies_during_the_probe(
    on_failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it said before is not taken for a probe: a resumed run begins it anew."""

    async def kill(engine: MockEngine, runner: Any) -> None:
        while not (tmp_path / "parts").exists():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await engine.stop()

    options: dict[str, Any] = {"probe": True, "on_failure": on_failure}
    trace = some_trace(6)
    with pytest.raises(EngineError, match=r"gone during the probe: [1-9].* of .* requests ended as"):
        run_live(tmp_path, monkeypatch, trace, meanwhile=kill, **options)
    about = read_about(tmp_path)
    assert about.state == "stopped"
    assert "gone during the probe" in about.notes[-1]
    assert read_folder(tmp_path).steps.is_empty()
    again, _ = run_live(tmp_path, monkeypatch, trace, about=about, **options)
    assert again.state == "complete"
    assert not read_folder(tmp_path).steps.is_empty()


def test_an_engine_that_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def kill(engine: MockEngine, runner: Any) -> None:
        while not (runner.about and runner.about.runs[0].started_at):
            await asyncio.sleep(0.01)
        await engine.stop()

    about, _ = run_live(
        tmp_path, monkeypatch, some_trace(100), meanwhile=kill, repeats=2, on_failure="degrade"
    )
    assert about.state == "stopped"
    assert [one.state for one in about.runs] == ["failed", "planned"]
    assert "did not come back" in about.notes[-1]


def test_requests_longer_than_the_engine_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = some_trace(40)
    small = {"kv_capacity_tokens": 500}
    with pytest.raises(InputError, match=r"longer than the 500 tokens.*--prompt-scale 0\.5"):
        run_live(tmp_path / "a", monkeypatch, trace, engine_options=small)
    assert not (tmp_path / "a").exists()
    about, _ = run_live(tmp_path / "b", monkeypatch, trace, engine_options=small, on_failure="degrade")
    short = int((trace.context_tokens + trace.output_tokens <= 500).sum())
    assert about.trace.requests == short
    assert outcomes(tmp_path / "b") == {"ok": short}
    assert any("were left out" in note for note in about.notes)


def test_somebody_else_s_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def occupy(engine: MockEngine) -> None:
        engine.core.submit(Job(1, 10, 1_000_000))

    with pytest.raises(EngineError, match="still has 1 requests 5 s after"):
        run_live(tmp_path / "a", monkeypatch, some_trace(), before=occupy)
    about, _ = run_live(tmp_path / "b", monkeypatch, some_trace(), before=occupy, on_failure="degrade")
    assert about.runs[0].drained is False
    assert outcomes(tmp_path / "b") == {"ok": 24}


def test_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system clock jumps by an hour: it is said, and no time is wrong."""
    start = time.time()

    def wall() -> float:
        now_s = time.monotonic() - 1000.0
        return start + now_s + (3600.0 if now_s > 1.5 else 0.0)

    monkeypatch.setattr(time, "time", wall)
    about, _ = run_live(tmp_path, monkeypatch, some_trace(60))
    assert about.runs[0].clock_steps == 1
    assert any("system clock" in note for note in about.runs[0].notes)
    rows = read_folder(tmp_path).requests
    assert rows["finished_s"].max() < 60  # type: ignore[operator]


def test_a_run_that_is_done_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_live(tmp_path, monkeypatch, some_trace())
    plan, before = plan_of(tmp_path)

    def nobody(engine: MockEngine) -> None:
        engine.faults.add("status", status=500)
        engine.faults.add("metrics_down")

    again, engine = run_live(tmp_path, monkeypatch, plan.trace, about=before, before=nobody)
    assert again.state == "complete"
    assert not engine.answers


def test_another_engine_is_not_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_live(tmp_path, monkeypatch, some_trace(6))
    plan, before = plan_of(tmp_path)
    before.runs[0].state = "stopped"
    with pytest.raises(EngineError, match=r"another one than before: instances of 3 ranks then, of 2 now"):
        run_live(tmp_path, monkeypatch, plan.trace, about=before, engine_options={"ranks": 2})
    assert outcomes(tmp_path) == {"ok": 6}


def test_nowhere_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        run_live(tmp_path / "file", monkeypatch, some_trace())

"""The folder of one run: its files, its schema, all of it or nothing."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.fleet import Change, Clients, Deployment, FleetResult, Prefill, Slo, aiperf_blocks, simulate
from equipoise.fleet.files import loads
from equipoise.replay import Information, Pool
from equipoise.study import run_folder
from equipoise.study.run_folder import write_run
from equipoise.study.run_summary import run_schema, summarize_run
from equipoise.study.summary import to_json
from equipoise.traces import Trace

jsonschema = pytest.importorskip("jsonschema")

FILES = {
    "summary.json",
    "steps.parquet",
    "requests.parquet",
    "config.resolved.toml",
    "deployment.toml",
    "environment.json",
    "profile_export_aiperf.json",
}


def made(deployment: Deployment, **how: Any) -> FleetResult:
    rng = np.random.default_rng(3)
    n = 120
    trace = Trace.from_columns(
        "small",
        np.sort(rng.uniform(0, 0.5, n)),
        rng.integers(1, 9000, n),
        rng.integers(1, 30, n),
        session=np.arange(n) // 2,
        turn=np.arange(n, dtype=np.int32) % 2,
    )
    how = {"engine": "reference", "warmup_turnovers": 0.5, **how}
    return simulate(trace, deployment, "least_batch", load("h200"), **how)


POOL = Pool(2, 2, kv_capacity_tokens=90_000, max_batch=16)
RUNS: dict[str, tuple[Deployment, dict[str, Any]]] = {
    "plain": (Deployment(POOL), {}),
    "all_on": (
        Deployment(
            POOL,
            prefill=Prefill("delay", s_per_token=1e-6),
            clients=Clients(0.1, 0.5),
            changes=(Change(0.2, "die", 1), Change(0.3, "return", 1)),
            information=Information("acknowledged", replicas=2, period_steps=2),
            slo=Slo(100.0, 15.0),
        ),
        {"mode": "sessions"},
    ),
    "saturated": (Deployment(POOL, slo=Slo(tpot_ms=0.0)), {"mode": "saturated", "concurrency": 12}),
    "not_kept": (Deployment(POOL, slo=Slo(10.0)), {"keep_requests": False}),
}


@pytest.fixture(scope="module")
def runs() -> dict[str, FleetResult]:
    return {name: made(deployment, **how) for name, (deployment, how) in RUNS.items()}


@pytest.mark.parametrize("name", RUNS)
def test_the_summary_fits_its_schema(name: str, runs: dict[str, FleetResult]) -> None:
    result = runs[name]
    by: Any = () if name == "not_kept" else ("context", "output", "turn")
    summary = json.loads(to_json(summarize_run(result, by=by, timing=True)))
    jsonschema.Draft202012Validator.check_schema(run_schema())
    jsonschema.validate(summary, run_schema())
    assert summary["excess"] == result.excess
    assert summary["counts"]["finished"] == result.finished
    assert summary["parts"]["attention"]["mean"] == pytest.approx(result.mean_cost)
    assert set(summary["classes"]) == set(by)
    found = result.requests
    if found is None:
        assert summary["requests"] is None
    else:
        assert found.ttft_ms is not None
        assert summary["requests"]["ttft_ms"]["p99"] == found.ttft_ms.p99
        assert summary["requests"]["counted"] == found.requests > 0
        assert (summary["requests"]["goodput"] is None) == (name == "plain")


def test_the_schema_is_strict(runs: dict[str, FleetResult]) -> None:
    """A renamed or forgotten key must be seen, at every depth."""
    summary = json.loads(to_json(summarize_run(runs["all_on"], by=("turn",))))

    def objects(part: Any) -> Any:
        if isinstance(part, dict):
            yield part
            for value in part.values():
                yield from objects(value)

    free = [id(summary["params"]), id(summary["classes"]), id(summary["classes"]["turn"])]
    for part in objects(summary):
        if id(part) in free:
            continue
        part["surprise"] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(summary, run_schema())
        del part["surprise"]
        name = next(iter(part))
        value = part.pop(name)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(summary, run_schema())
        part[name] = value
    jsonschema.validate(summary, run_schema())


@pytest.mark.parametrize("name", RUNS)
def test_the_files(name: str, runs: dict[str, FleetResult], tmp_path: Path) -> None:
    result = runs[name]
    write_run(result, tmp_path / "out")
    kept = name != "not_kept"
    expected = FILES if kept else FILES - {"requests.parquet", "profile_export_aiperf.json"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == expected
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    folder = tmp_path / "out"
    assert json.loads((folder / "summary.json").read_text()) == json.loads(to_json(summarize_run(result)))
    assert_frame_equal(pl.read_parquet(folder / "steps.parquet"), result.to_polars())
    if kept:
        assert_frame_equal(pl.read_parquet(folder / "requests.parquet"), result.requests_frame())
        assert json.loads((folder / "profile_export_aiperf.json").read_text()) == aiperf_blocks(result)
    assert loads((folder / "deployment.toml").read_text()) == result.deployment
    config = tomllib.loads((folder / "config.resolved.toml").read_text())
    assert (config["mode"], config["seed"], config["cost"]["name"]) == (result.mode, 0, "h200")
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["wall_s"] == result.wall_s
    assert "equipoise" in environment["libraries"]


def test_the_same_run_gives_the_same_bytes(runs: dict[str, FleetResult], tmp_path: Path) -> None:
    deployment, how = RUNS["all_on"]
    write_run(runs["all_on"], tmp_path / "a", by=("turn",))
    write_run(made(deployment, **how), tmp_path / "b", by=("turn",))
    for name in FILES - {"environment.json"}:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_no_times_of_the_clock_on_the_wall(runs: dict[str, FleetResult]) -> None:
    assert not {"wall_s", "decisions_per_s"} & set(summarize_run(runs["plain"]))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("no space left")])
def test_interrupted_it_leaves_what_was_there(
    error: Any, runs: dict[str, FleetResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(runs["plain"], tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}

    def stops(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(run_folder, "aiperf_blocks", stops)  # the last of the files
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        write_run(runs["saturated"], tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        write_run(runs["saturated"], tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_nothing_of_an_earlier_run_stays(runs: dict[str, FleetResult], tmp_path: Path) -> None:
    write_run(runs["plain"], tmp_path)
    (tmp_path / "timeline.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    write_run(runs["not_kept"], tmp_path)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == FILES - {"requests.parquet", "profile_export_aiperf.json"} | {"notes.txt"}


def test_a_folder_that_is_a_file(runs: dict[str, FleetResult], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is a file"):
        write_run(runs["plain"], tmp_path / "out")

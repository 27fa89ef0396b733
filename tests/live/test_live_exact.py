"""The load generator itself: what it reports is what an engine did, by the engine's own record of it.

On a virtual clock, where nothing but the delays of the engine and the turns of the loop takes time.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from live_cases import run_live, some_trace

from equipoise.live.load import Load
from equipoise.live.parts import read_folder
from equipoise.testing.mock_engine.core import Job
from equipoise.testing.mock_engine.streams import Stream
from equipoise.traces import Trace

PERCENTILES = (0.5, 0.9, 0.99)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], list[float]]:
    """When the mock wrote each token, by the lengths of the request."""
    times: dict[tuple[int, int], list[float]] = {}
    inner = Stream.token

    def token(self: Stream, job: Job) -> None:
        times.setdefault((job.prompt_tokens, job.output_tokens), []).append(time.monotonic())
        inner(self, job)

    monkeypatch.setattr(Stream, "token", token)
    return times


def unlike(requests: int, gap_s: float) -> Trace:
    """Requests that can be told apart by their lengths."""
    rng = np.random.default_rng(1)
    return Trace.from_columns(
        "unlike",
        np.cumsum(rng.exponential(gap_s, requests)),
        np.arange(requests) + 17,
        rng.integers(2, 60, requests),
    )


@pytest.mark.parametrize("gap_s", [0.05, 0.004], ids=["light", "heavy"])
def test_percentiles_are_those_of_the_engine(
    gap_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: dict[Any, list[float]]
) -> None:
    trace = unlike(250, gap_s)
    begun = []
    inner = Load.run

    async def run(self: Load) -> None:
        begun.append(self.start_s)
        await inner(self)

    monkeypatch.setattr(Load, "run", run)
    # prefill, or every delay would be a step's
    about, _ = run_live(
        tmp_path,
        monkeypatch,
        trace,
        engine_options={"ranks": 4, "prefill_us_per_token": 20.0},
        policies=("least_tokens",),
    )
    rows = read_folder(tmp_path).requests.sort("request")
    assert set(rows["outcome"]) == {"ok"}
    due = trace.arrival_s - trace.arrival_s[0]
    lengths = zip(trace.context_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    truth = [np.array(written[pair]) for pair in lengths]
    (begin_s,) = begun

    def same(reported: Any, true: Any) -> None:
        for at in PERCENTILES:
            a, b = np.quantile(reported, at), np.quantile(true, at)
            assert abs(a - b) <= max(0.01 * b, 1e-3), (at, a, b)

    same(
        rows["first_token_s"] - rows["intended_s"],
        [t[0] - begin_s - d for t, d in zip(truth, due, strict=True)],
    )
    same(
        rows["finished_s"] - rows["intended_s"],
        [t[-1] - begin_s - d for t, d in zip(truth, due, strict=True)],
    )
    same(rows["itl_ms"].explode().drop_nulls() / 1e3, np.concatenate([np.diff(t) for t in truth]))
    tpot = (rows["finished_s"] - rows["first_token_s"]) / (rows["output_tokens"] - 1)
    same(tpot, [(t[-1] - t[0]) / (len(t) - 1) for t in truth])
    # and token by token: nothing is later than a few turns of the loop, nothing before it was written
    for row, true in zip(rows.iter_rows(named=True), truth, strict=True):
        own = begin_s + row["first_token_s"] + np.concatenate([[0.0], np.cumsum(row["itl_ms"]) / 1e3])
        assert np.abs(own - true).max() < 1e-3
    assert about.runs[0].late_max_ms is not None


@pytest.mark.proof
def test_nothing_is_lost_at_2000_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once, each with all its tokens."""
    streams = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * streams + 200:
        pytest.skip(f"needs {2 * streams + 200} file descriptors, may have {hard} (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * streams + 200), hard))
    trace = some_trace(streams, gap_s=1e-6, most_tokens=20)
    trace.context_tokens[:] = 32
    trace.output_tokens[:] = 20
    try:
        _, engine = run_live(
            tmp_path,
            monkeypatch,
            trace,
            mode="closed",
            concurrency=streams,
            engine_options={"ranks": 8, "max_batch": 256},
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    folder = read_folder(tmp_path)
    rows = folder.requests
    assert len(rows) == streams
    assert set(rows["outcome"]) == {"ok"}
    assert (rows["itl_ms"].list.len() == 19).all()
    assert rows["request"].n_unique() == streams
    begun = rows.select(pl.col("first_token_s").max()).item()
    assert (rows["finished_s"] > begun).all()  # all were under way at the same time
    assert sum(rank["generated_tokens"] for rank in engine.seen()["ranks"]) >= streams * 20

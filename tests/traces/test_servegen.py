"""Draws from a client pool follow its tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from trace_cases import POOL_ARRIVAL, assert_same, pool_lengths, write_pool

from equipoise.errors import TraceError
from equipoise.traces import generate
from equipoise.traces.servegen import draw, load_pool


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pool(tmp_path)


def test_counts_lengths_and_independence(folder: Path) -> None:
    trace = generate(folder, duration_s=1200 * 200, seed=5)
    # client 0: 300 and 150 requests in its two windows; client 1: 60; client 2 has no length tables
    windows = 200
    assert len(trace) == pytest.approx((300 + 150 + 60) * windows, rel=0.001)
    other = trace.context_tokens == 7
    assert other.sum() == pytest.approx(60 * windows, rel=0.001)
    assert set(trace.output_tokens[other].tolist()) == {1}  # 0 tokens in the table: at least one is generated
    inputs, outputs = trace.context_tokens[~other], trace.output_tokens[~other]
    assert inputs.min() >= 100
    assert inputs.max() <= 200
    assert inputs.mean() == pytest.approx(150, abs=0.5)
    assert inputs.std() == pytest.approx(100 / 12**0.5, rel=0.02)
    assert outputs.mean() == pytest.approx(15, abs=0.05)
    assert abs(np.corrcoef(inputs, outputs)[0, 1]) < 0.01
    assert "37%" not in trace.source
    assert "left out" in trace.source


def test_gaps_follow_shape_and_scale(folder: Path) -> None:
    pool = load_pool(folder)
    trace = draw(pool, seed=2, duration_s=1200 * 300)
    client0 = trace.context_tokens != 7
    inside = np.abs(trace.arrival_s % 1200 - 300) < 250  # the first window, clear of its edges
    gaps = np.diff(trace.arrival_s[client0 & inside])
    gaps = gaps[gaps < 300]  # without the steps over the window between
    # Gamma of shape 1 and scale 2 s, squeezed a little where 300 of them exceed 600 s
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.02)
    assert gaps.mean() == pytest.approx(2.0, rel=0.05)
    # Weibull of shape 0.5: CV 2.236
    bursts = np.diff(trace.arrival_s[~client0])
    bursts = bursts[bursts < 300]
    assert bursts.std() / bursts.mean() == pytest.approx(5**0.5, rel=0.1)
    assert bursts.mean() == pytest.approx(2.0, rel=0.1)


def test_a_burst_begins_anywhere_in_its_window(folder: Path) -> None:
    trace = draw(load_pool(folder), seed=2, duration_s=1200 * 300)
    bursts = trace.arrival_s[trace.context_tokens == 7]
    begin = (
        bursts[np.r_[True, np.diff(bursts) > 300]] % 1200
    )  # client 1 sends in the first of two windows, 120 s long
    assert begin.mean() == pytest.approx((600 - 120) / 2, rel=0.15)
    assert begin.std() > 100


def test_more_requests_keep_the_first_and_the_pool_begins_again(folder: Path) -> None:
    few, many = generate(folder, requests=300, seed=1), generate(folder, requests=5000, seed=1)
    for name in ("arrival_s", "context_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:300])
    assert len(many) == 5000
    assert many.arrival_s[-1] > 1200
    assert_same(few, generate(folder, requests=300, seed=1))
    assert generate(folder, requests=300, seed=2).arrival_s[9] != few.arrival_s[9]


def test_rate_scale_scales_the_count(folder: Path) -> None:
    one, three = (generate(folder, duration_s=12_000, rate_scale=scale) for scale in (1.0, 3.0))
    assert len(three) == pytest.approx(3 * len(one), rel=0.01)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (("Gamma,1.0,2.0", "Gamma,0,2.0"), "column shape: '0' is below 1e-09"),
        (("Weibull", "Pareto"), "the pattern 'Pareto' is unknown; expected Gamma or Weibull"),
        (("0,0,0.5", "0,0,-0.5"), "column rate_rps: '-0.5' is below 0"),
        (("0,0,0.5", "0,0,999999"), "requests in 10 minutes"),
        (("client,", "customer,"), "no column 'client'"),
    ],
)
def test_bad_tables(folder: Path, change: tuple[str, str], text: str) -> None:
    (folder / "toy_clients_arrival.csv").write_text(POOL_ARRIVAL.replace(*change))
    with pytest.raises(TraceError) as caught:
        generate(folder)
    assert text in str(caught.value)


def test_which_model(folder: Path) -> None:
    for kind, text in (("arrival", POOL_ARRIVAL), ("lengths_quantiles", pool_lengths())):
        (folder / f"other_clients_{kind}.csv").write_text(text)
    assert generate(folder, "other", requests=5).name == "servegen-other"
    assert generate(folder / "toy_clients_arrival.csv", requests=5).name == "servegen-toy"
    with pytest.raises(TraceError, match="holds 2 models; Known: other, toy"):
        generate(folder)
    with pytest.raises(TraceError, match="did you mean 'toy'"):
        generate(folder, "toi")
    (folder / "toy_clients_lengths_quantiles.csv").unlink()
    with pytest.raises(TraceError, match=r"there is no toy_clients_lengths_quantiles\.csv"):
        generate(folder, "toy")
    for bad in ({"requests": 0}, {"requests": 2.5}, {"rate_scale": float("nan")}, {"duration_s": -1.0}):
        with pytest.raises(TraceError, match=r"expected a (finite number above 0|whole number, at least 1)"):
            generate(folder, "other", **bad)  # type: ignore[arg-type]


def test_a_rate_too_small_ends(folder: Path) -> None:
    with pytest.raises(TraceError, match="raise it or ask for less"):
        draw(load_pool(folder), requests=10, rate_scale=1e-9)

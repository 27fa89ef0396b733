"""Known prices are found again, inside their error bars; the shortcuts do not find them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.stats import binom

from equipoise import cost as costs
from equipoise.calibrate import fit
from equipoise.calibrate.bootstrap import block_length, bootstrap, sandwich
from equipoise.calibrate.bottleneck import Problem, fit_bottleneck
from equipoise.calibrate.clean import clean
from equipoise.calibrate.holdout import held_out_errors, relative_errors
from equipoise.calibrate.planted import plant
from equipoise.calibrate.records import StepRecords
from equipoise.calibrate.regions import load_regions
from equipoise.calibrate.result import fits_summary
from equipoise.calibrate.shapes import Form, TermForm
from equipoise.calibrate.shortcuts import feature_maxima, rank_by_rank
from equipoise.cost import StepCost, Term

pytestmark = pytest.mark.proof

ONE = StepCost("one", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")
TWO = StepCost(
    "two",
    (Term("batch", per_request=40.0), Term("attention", per_request=15.0, per_100k_context=60.0)),
    2000.0,
    unit="us",
)
FORM = Form((TermForm("decode", context=True),))
TWO_TERMS = Form((TermForm("batch"), TermForm("attention", context=True)))


def test_planted_prices_lie_inside_their_intervals() -> None:
    """The quick version of scripts/calibration_proofs.py: 20 seeds of a small pool."""
    seeds, names = 20, FORM.names
    truth, inside, together, widths = np.array([4000.0, 20.0, 80.0]), np.zeros(3), 0, []
    for seed in range(seeds):
        records = plant(ONE, steps=300, ranks=8, seed=seed)
        samples = clean(records).samples
        problem = Problem(samples, FORM)
        found = fit_bottleneck(samples, FORM, problem=problem)
        low, high = bootstrap(problem, found, None, refits=20, replicates=1000, seed=seed).simultaneous(
            found.coefficients
        )
        hit = (low <= truth) & (truth <= high)
        inside, together = inside + hit, together + int(hit.all())
        widths.append((high - low) / (2 * 1.96 * np.sqrt(np.diag(sandwich(problem, found)))))
    # Simultaneous intervals: all at once 19 of 20 times, so at least this many but once in a thousand.
    least = binom.ppf(0.001, seeds, 0.95)
    assert together >= least
    assert (inside >= together).all(), names
    assert np.max(widths) < 3
    assert np.median(widths) > 0.8, "intervals that are too narrow are no intervals"


def test_two_terms_are_told_from_one() -> None:
    found = {
        truth.name: fit(plant(truth, steps=500, ranks=16, seed=8), batch_shape="linear", replicates=100)
        for truth in (ONE, TWO)
    }
    assert found["one"].form == "one term, linear"
    assert found["two"].form == "two terms, linear"
    for name, low_high in found["two"].intervals.items():
        truth = dict(zip(TWO_TERMS.names, (2000.0, 40.0, 15.0, 60.0), strict=True))[name]
        assert low_high[0] <= truth <= low_high[1]


def test_shortcuts_are_far_off_where_the_fit_is_not() -> None:
    """64 ranks, a steady load, and a tail of long contexts: the largest context is 3 times the mean."""
    samples = clean(plant(ONE, steps=400, seed=3, noise=0.0, context_sigma=1.5, batch_swing=0.1)).samples
    np.testing.assert_allclose(fit_bottleneck(samples, FORM).coefficients, [4000, 20, 80], rtol=1e-6)
    constant, per_request, per_context = rank_by_rank(samples, FORM)
    assert per_context < 80 / 5
    assert constant > 4000 * 2
    assert per_request < 20 * 0.8
    constant, per_request, per_context = feature_maxima(samples, FORM)
    assert per_request < 20 * 0.7
    assert constant > 4000 * 1.05


def test_feature_maxima_cannot_split_two_terms() -> None:
    samples = clean(plant(TWO, steps=600, seed=3)).samples
    fitted = fit_bottleneck(samples, TWO_TERMS).coefficients
    merged = feature_maxima(samples, TWO_TERMS)
    assert merged[1] == pytest.approx(merged[2], rel=1e-3)
    assert abs(fitted[1] - 40) < 8


def test_noise_with_a_memory_gives_longer_blocks_and_wider_intervals() -> None:
    rng = np.random.default_rng(0)
    white = rng.standard_normal(4000)
    slow = np.convolve(rng.standard_normal(4100), np.ones(30) / 30, "valid")[:4000]
    assert block_length(white) <= 3
    assert 15 <= block_length(slow) <= 400
    widths = []
    for memory in (0.0, 20.0):
        samples = clean(plant(ONE, steps=800, ranks=4, memory_steps=memory, seed=1)).samples
        problem = Problem(samples, FORM)
        found = fit_bottleneck(samples, FORM, problem=problem)
        low, high = bootstrap(problem, found, None, replicates=500).simultaneous(found.coefficients)
        widths.append((high - low)[0])
    assert widths[1] > 1.2 * widths[0]


def test_replicates_from_sums_equal_full_refits() -> None:
    """One rank, squares: a replicate is an ordinary weighted regression, and one Newton step is exact."""
    records = plant(ONE, steps=60, ranks=1, seed=2)
    columns = {name: getattr(records, name) for name in ("batch", "context_tokens", "time_s")}
    samples = clean(StepRecords.build(columns, format="aic")).samples
    assert samples.is_grid
    problem = Problem(samples, FORM)
    found = fit_bottleneck(samples, FORM, loss="squares", problem=problem)
    errors = bootstrap(problem, found, None, loss="squares", replicates=40, refits=40)
    np.testing.assert_allclose(errors.stretch, 1 + 1 / np.sqrt(80), rtol=1e-6)  # the allowance for 40 refits
    samples = clean(plant(TWO, steps=400, ranks=8, seed=2)).samples
    problem = Problem(samples, TWO_TERMS)
    found = fit_bottleneck(samples, TWO_TERMS, problem=problem)
    errors = bootstrap(problem, found, None, replicates=60, refits=60)
    assert errors.stretch.max() < 1.5


def test_intervals_of_a_table_hold_the_prices_it_was_made_of() -> None:
    """Misfit by region: a third of the cells run 3 % slow, another third 3 % fast."""
    B, length = (g.ravel() for g in np.meshgrid(2 ** np.arange(10), 2 ** np.arange(11, 18)))
    C, truth, together = B * length, np.array([200.0, 1.2, 4.0]), 0
    columns = {"batch": B, "context_tokens": C, "time_s": np.ones(len(B))}
    regions = load_regions(clean(StepRecords.build(columns)).samples)
    for seed in range(20):
        misfit = np.random.default_rng(seed).choice([-0.03, 0.0, 0.03], regions.count)[regions.of_step]
        columns["time_s"] = (truth[0] + truth[1] * B + truth[2] * C / 1e5) * (1 + misfit) / 1e6
        samples = clean(StepRecords.build(columns)).samples
        problem = Problem(samples, FORM)
        found = fit_bottleneck(samples, FORM, problem=problem)
        low, high = bootstrap(problem, found, regions, replicates=500).simultaneous(found.coefficients)
        together += int(((low <= truth) & (truth <= high)).all())
    assert together >= binom.ppf(0.001, 20, 0.95)


def test_regions_are_left_out_whole() -> None:
    """A bend in one corner of the plane: a fit that has not seen the corner cannot know it."""
    B, length = (g.ravel() for g in np.meshgrid([1, 2, 4, 8, 16, 32, 64, 128, 256], 2 ** np.arange(11, 18)))
    C = B * length
    time_us = 200 + B + 4 * C / 1e5
    corner = (B >= 64) & (length >= 2**15)
    time_us = time_us + np.where(corner, time_us, 0)
    samples = clean(StepRecords.build({"batch": B, "context_tokens": C, "time_s": time_us / 1e6})).samples
    regions = load_regions(samples)
    assert regions.kind == "load"
    assert regions.of_step.max() + 1 == regions.count == len(np.unique(regions.of_step))
    assert np.bincount(regions.of_step).max() <= 4, "cells of two octaves each way"
    found = fit_bottleneck(samples, FORM)
    held_out = held_out_errors(samples, FORM, regions, found.coefficients)
    assert held_out.mean() > relative_errors(samples, FORM, found.coefficients).mean()


def test_a_load_that_never_changes_is_held_out_by_time() -> None:
    flat = plant(ONE, steps=100, ranks=1, seed=2)
    same = StepRecords.build(
        {
            "step": flat.step,
            "batch": 8,
            "context_tokens": 80_000,
            "time_s": flat.time_s,
            "clock_s": flat.clock_s,
        }
    )
    assert load_regions(clean(same).samples).kind == "time"


def test_constant_batch_is_not_identified_and_names_the_probe() -> None:
    rng = np.random.default_rng(1)
    C = 32 * rng.integers(4_000, 90_000, (300, 4))
    time_us = (4000 + (20 * 32 + 80 * C / 1e5).max(axis=1)) * (1 + 0.02 * rng.standard_normal(300))
    records = StepRecords.build(
        {
            "step": np.repeat(np.arange(300), 4),
            "rank": np.tile(np.arange(4), 300),
            "batch": 32,
            "context_tokens": C.ravel(),
            "time_s": np.repeat(time_us, 4) / 1e6,
            "clock_s": np.repeat(np.arange(300.0), 4),
        }
    )
    result = fit(records, replicates=200)
    (gone,) = [u for u in result.unidentified if u.coefficient == "decode.per_request"]
    assert "batch of the slowest rank is 32 in every step" in gone.reason
    assert "run batch 8 and batch 128" in gone.probe
    assert np.isnan(result.exchange_rate.value)
    assert result.to_dict()["request_in_context_tokens"]["value"] is None
    low, high = result.intervals["constant"]
    assert low < 4000 + 20 * 32 < high


def test_a_batch_that_hardly_varies_is_named_too() -> None:
    rng = np.random.default_rng(3)
    B, C = rng.integers(32, 34, (300, 1)), rng.integers(100_000, 4_000_000, (300, 1))
    time_us = (2000 + 60 * B + 80 * C / 1e5).ravel() * (1 + 0.05 * rng.standard_normal(300))
    columns = {
        "batch": B.ravel(),
        "context_tokens": C.ravel(),
        "time_s": time_us / 1e6,
        "clock_s": np.arange(300.0),
    }
    result = fit(StepRecords.build(columns), batch_shape="linear", saturation_tokens=None, replicates=200)
    named = {u.coefficient: u for u in result.unidentified}
    assert "decode.per_request" in named
    assert "decode.per_100k_context" not in named
    assert "run batch 8 and batch 128" in named["decode.per_request"].probe


def test_contexts_in_step_with_the_batch_are_not_identified() -> None:
    B = np.tile([1, 2, 4, 8, 16, 32, 64], 6)
    records = StepRecords.build({"batch": B, "context_tokens": B * 4096, "time_s": (200 + 3.0 * B) / 1e6})
    result = fit(records, replicates=100)
    (gone,) = [u for u in result.unidentified if u.coefficient == "decode.per_request"]
    assert "moves with that of decode.per_100k_context" in gone.reason
    assert "at the same" in gone.probe
    assert result.heldout_mape < 1e-6


def test_speculation_is_priced_and_told_apart() -> None:
    rng = np.random.default_rng(2)
    B, extra = rng.integers(4, 60, (300, 2)), rng.integers(0, 4, (300, 1))
    C = B * rng.integers(5_000, 90_000, (300, 2))
    time_us = 3000 + (20 * B + 7 * B * extra + 80 * C / 1e5).max(axis=1)
    columns = {
        "step": np.repeat(np.arange(300), 2),
        "rank": np.tile([0, 1], 300),
        "batch": B.ravel(),
        "query_tokens": (B * (1 + extra)).ravel(),
        "context_tokens": C.ravel(),
        "time_s": np.repeat(time_us, 2) / 1e6,
        "clock_s": np.repeat(np.arange(300.0), 2),
    }
    result = fit(StepRecords.build(columns), replicates=100)
    assert result.coefficients["decode.per_extra_query"] == pytest.approx(7.0)
    mean_extra = (B * extra).sum() / B.sum()
    assert result.cost.terms[0].per_request == pytest.approx(20 + 7 * mean_extra)


def test_result_as_json_and_as_a_cost_file(tmp_path: Path) -> None:
    result = fit(plant(TWO, steps=300, ranks=8, seed=5), replicates=200, name="mine")
    summary = json.loads(json.dumps(fits_summary([result]), allow_nan=False))
    assert summary["schema"] == "equipoise.fit/1"
    (one,) = summary["fits"]
    wanted = "group cost intervals heldout_mape request_in_context_tokens rows dropped"
    assert set(wanted.split()) <= set(one)
    assert set(one["request_in_context_tokens"]) == {"value", "low", "high"}
    assert one["rows"] == 2400
    assert result.exchange_rate.low < result.exchange_rate.value < result.exchange_rate.high
    assert result.exchange_rate.value == pytest.approx(result.cost.request_in_context_tokens)
    assert 0 < result.fixed_share.low < result.fixed_share.value < result.fixed_share.high < 1
    assert result.coverage.rows.sum() == 2400
    assert result.coverage.slowest.sum() <= 600
    result.save(tmp_path / "fit.toml")
    loaded = costs.load(tmp_path / "fit.toml")
    assert loaded == result.cost
    assert loaded.metadata["fit"]["rows"] == 2400
    costs.save(loaded, tmp_path / "again.toml")
    assert (tmp_path / "again.toml").read_text() == (tmp_path / "fit.toml").read_text()


def test_same_seed_same_result() -> None:
    records = plant(ONE, steps=200, ranks=4, seed=5)
    first, second = (fit(records, batch_shape="linear", terms=1, replicates=100).to_dict() for _ in range(2))
    assert first == second


@pytest.mark.shared
def test_measured_tables_are_fitted_within_the_bars(shared_dir: Path) -> None:
    """Some of the groups; scripts/calibration_proofs.py fits all."""
    (file,) = (shared_dir / "calib").rglob("*.csv.gz")
    table = pl.read_csv(file)
    keys = [c for c in table.columns if c not in ("batch_size", "isl", "context_len", "latency_ms")]
    glm5 = (
        pl.col("system").eq("h200_sxm") & pl.col("framework").eq("VLLM") & pl.col("model").eq("zai-org/GLM-5")
    )
    some = list(table.group_by(keys, maintain_order=True))[::70]
    best = list(table.filter(glm5 & pl.col("op_name").eq("dsa_generation_module")).group_by(keys))
    assert best
    errors = []
    for _, rows in [*best, *some]:
        batch = rows["batch_size"].to_numpy()
        result = fit(
            StepRecords.build(
                {
                    "batch": batch,
                    "context_tokens": batch * rows["context_len"].to_numpy(),
                    "context_variance": 0.0,
                    "time_s": rows["latency_ms"].to_numpy() / 1e3,
                },
                format="aic",
            ),
            replicates=200,
        )
        errors.append(result.heldout_mape)
    assert max(errors[: len(best)]) <= 0.04
    assert np.median(errors[len(best) :]) <= 0.05

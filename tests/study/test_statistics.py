"""Intervals must cover what they claim to cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.study.statistics import BLOCKS, block_ratio, over_seeds, paired, simultaneous, unpaired


def test_interval_over_seeds_is_student_t() -> None:
    values = [1.0, 2.0, 4.0, 4.5]
    interval = over_seeds(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-12)


def test_one_seed_has_no_interval_and_shows_no_difference() -> None:
    interval = over_seeds([0.3])
    assert interval.method == "none"
    assert math.isnan(interval.low)
    assert interval.covers_zero


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.floats(-0.5, 0.5))
def test_pairing_removes_what_both_share(noise: list[float], shift: float) -> None:
    """A difference that is the same in every seed is certain, whatever the seeds do."""
    interval = paired([n + shift for n in noise], noise)
    assert interval.mean == pytest.approx(shift, abs=1e-9)
    assert interval.high - interval.low == pytest.approx(0, abs=1e-7)


def test_seed_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(1)
    runs = 2000
    hits = sum(over_seeds(list(rng.normal(0.05, 0.01, 5))).covers_zero is False for _ in range(200))
    assert hits == 200  # 5 standard deviations from zero
    covered = 0
    for _ in range(runs):
        interval = over_seeds(list(rng.normal(0.05, 0.01, 5)))
        covered += interval.low <= 0.05 <= interval.high
    # binomial: four standard deviations around 95 %
    assert abs(covered / runs - 0.95) < 4 * math.sqrt(0.95 * 0.05 / runs)


def correlated(rng: np.random.Generator, n: int, memory: float) -> np.ndarray:
    noise = rng.normal(0, 1, n)
    out = np.empty(n)
    out[0] = noise[0]
    for i in range(1, n):
        out[i] = memory * out[i - 1] + math.sqrt(1 - memory**2) * noise[i]
    return out


@pytest.mark.proof
def test_block_intervals_cover_for_correlated_steps_and_naive_ones_do_not() -> None:
    """Steps that remember 50 others: blocks of 200 hold, taking each step as independent does not."""
    rng = np.random.default_rng(2)
    truth, runs, n = 0.1, 400, 4000
    covered = naive = 0
    for _ in range(runs):
        ideal = 1 + 0.1 * correlated(rng, n, 0.98)
        cost = (1 + truth) * ideal + 0.05 * correlated(rng, n, 0.98)
        interval = block_ratio(cost, ideal, np.ones(n))
        assert interval.method == "blocks"
        covered += interval.low <= truth <= interval.high
        ratio = cost / ideal - 1
        half = 1.96 * ratio.std() / math.sqrt(n)
        naive += abs(ratio.mean() - truth) <= half
    assert covered / runs > 0.88
    assert naive / runs < 0.5


def test_block_ratio_is_the_ratio_of_sums_whatever_the_rows_stand_for() -> None:
    rng = np.random.default_rng(3)
    ideal = rng.uniform(1, 2, 1024)
    cost = ideal * rng.uniform(1, 1.3, 1024)
    fine = block_ratio(cost, ideal, np.ones(1024))
    merged = block_ratio(cost.reshape(-1, 4).sum(1), ideal.reshape(-1, 4).sum(1), np.full(256, 4.0))
    assert fine.mean == pytest.approx(cost.sum() / ideal.sum() - 1)
    assert merged.mean == pytest.approx(fine.mean)
    assert merged.standard_error == pytest.approx(fine.standard_error, rel=0.1)


def test_too_few_rows_give_no_interval() -> None:
    interval = block_ratio(np.array([2.0, 2.0]), np.array([1.0, 1.0]), np.ones(2))
    assert interval.mean == pytest.approx(1.0)
    assert interval.method == "none"
    assert BLOCKS // 2 > 2


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_an_interval_cut_at_a_bound_loses_only_what_cannot_be(values: list[float]) -> None:
    interval = over_seeds(values)
    cut = interval.never_below(0.0)
    assert 0 <= cut.low <= cut.mean or cut.low == cut.mean
    assert cut.low == interval.low or interval.low < 0
    assert (cut.mean, cut.high, cut.standard_error, cut.freedom, cut.method) == (
        interval.mean,
        interval.high,
        interval.standard_error,
        interval.freedom,
        interval.method,
    )
    for truth in (0.0, 0.01, 0.3, 1.0):
        assert (cut.low <= truth <= cut.high) == (interval.low <= truth <= interval.high)


def test_two_seeds_of_the_page_on_statistics() -> None:
    cut = over_seeds([0.025, 0.035]).never_below(0.0)
    assert (cut.low, cut.mean) == (0.0, pytest.approx(0.03))
    assert f"{100 * cut.high:.2f}" == "9.35"
    assert f"{100 * (cut.high - cut.mean):.1f}" == "6.4"


def test_a_mean_below_the_bound_by_a_rounding_and_unknown_bounds_stay() -> None:
    rounded = over_seeds([-1e-17, -2e-17]).never_below(0.0)
    assert rounded.low == rounded.mean <= rounded.high
    assert math.isnan(over_seeds([0.3]).never_below(0.0).low)


def test_unpaired_adds_errors_and_is_wider_than_either() -> None:
    rng = np.random.default_rng(4)
    ideal = np.ones(2000)
    a = block_ratio(1.2 + 0.1 * correlated(rng, 2000, 0.9), ideal, ideal)
    b = block_ratio(1.1 + 0.1 * correlated(rng, 2000, 0.9), ideal, ideal)
    d = unpaired(a, b)
    assert d.mean == pytest.approx(a.mean - b.mean)
    assert d.standard_error == pytest.approx(math.hypot(a.standard_error, b.standard_error))
    assert min(a.freedom, b.freedom) <= d.freedom <= a.freedom + b.freedom + 1e-9


def test_equal_policies_are_not_told_apart_from_the_one_that_came_out_best() -> None:
    """Eleven equal policies, five seeds: the plain interval against the selected best cries wolf, ours does not."""
    rng = np.random.default_rng(5)
    plain = honest = 0
    studies = 400
    for _ in range(studies):
        excess = rng.normal(0.05, 0.01, (11, 5))
        best = int(excess.mean(axis=1).argmin())
        gaps = [paired(list(excess[k]), list(excess[best])) for k in range(11) if k != best]
        plain += any(not g.covers_zero for g in gaps)
        honest += any(not simultaneous(g, 11).covers_zero for g in gaps)
    assert plain / studies > 0.3
    assert honest / studies < 0.05


def test_simultaneous_widens_and_keeps_the_mean() -> None:
    interval = paired([1.0, 2.0, 4.0, 4.5], [0.0, 0.5, 1.0, 2.0])
    assert simultaneous(interval, 2) == interval
    wide = simultaneous(interval, 11)
    assert wide.mean == interval.mean
    low, high = stats.t.interval(1 - 0.05 / 55, 3, interval.mean, interval.standard_error)
    assert (wide.low, wide.high) == pytest.approx((low, high))

"""When an exchange rate is known: sums of prices outlive the columns they are made of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from equipoise.calibrate import StepRecords, fit, plant
from equipoise.calibrate.bootstrap import Bootstrap
from equipoise.calibrate.exchange import exchange_rate, factors, left_open
from equipoise.calibrate.regions import Regions
from equipoise.calibrate.shapes import BatchShape, Form, TermForm
from equipoise.cost import StepCost, Term

TWO = Form((TermForm("batch"), TermForm("attention", context=True, queries=True, saturation_tokens=2000)))


def leader(own: float = 15.0) -> StepRecords:
    """Rank 0 is the largest in both loads, always: a term of its own for the batch cannot be told from one term."""
    rng = np.random.default_rng(5)
    batch = rng.integers(1, 20, (400, 4))
    batch[:, 0] = rng.integers(20, 60, 400)
    context = batch * 1000
    context[:, 0] = rng.integers(10_000, 90_000, 400) * batch[:, 0]
    time_us = 4000 + 40.0 * batch.max(1) + (own * batch + 60.0 * context / 1e5).max(1)
    time_us *= 1 + 0.01 * rng.standard_normal(400)
    return StepRecords.build(
        {
            "step": np.repeat(np.arange(400), 4),
            "rank": np.tile(np.arange(4), 400),
            "batch": batch.ravel(),
            "context_tokens": context.ravel(),
            "time_s": np.repeat(time_us, 4) / 1e6,
            "clock_s": np.repeat(np.arange(400.0), 4),
        },
        source="leader",
    )


def test_of_two_prices_per_request_only_the_sum_is_needed() -> None:
    result = fit(leader(), terms=2, batch_shape="linear", saturation_tokens=None, replicates=300)
    assert any(u.coefficient.endswith("per_request") for u in result.unidentified)
    assert result.lost == ()
    assert result.exchange_rate_is == "known"
    assert result.exchange_rate.low < 55 / 60 * 1e5 < result.exchange_rate.high


def test_what_is_left_open_when_a_column_goes() -> None:
    factor = factors(TWO, extra_queries_per_request=1.5)
    names = {n: i for i, n in enumerate(TWO.names)}
    batch, own = names["batch.per_request"], names["attention.per_request"]
    context, query = names["attention.per_100k_context"], names["attention.per_extra_query"]
    held = names["attention.per_100k_saturated_2000"]
    assert left_open(factor, own, {batch: 1.0}) == frozenset()
    assert left_open(factor, query, {batch: 1.5}) == frozenset()  # as many extra queries a request everywhere
    assert left_open(factor, query, {batch: 3.0}) == {"request"}
    assert left_open(factor, held, {batch: 0.02}) == frozenset()  # every context is past the bound
    assert left_open(factor, held, {context: 1.0}) == {"request", "context"}  # none is
    assert left_open(factor, own, {0: 8.0}) == {"request"}
    assert left_open(factor, own, {context: 0.01}) == {"request", "context"}  # contexts all of one length
    assert left_open(factor, context, {}) == {"context"}


def test_free_context_makes_the_rate_infinite_and_free_both_unknown() -> None:
    form = Form((TermForm("decode", BatchShape("table", nodes=(1, 3, 5)), context=True),))
    assert exchange_rate(form, np.array([9.0, 2.0, 6.0, 4.0]), 0.0) == pytest.approx(2 / 4 * 1e5)
    assert exchange_rate(form, np.array([9.0, 2.0, 6.0, 0.0]), 0.0) == math.inf
    assert math.isnan(exchange_rate(form, np.array([9.0, 0.0, 0.0, 0.0]), 0.0))


def test_replicates_without_a_price_of_context_open_the_interval() -> None:
    drawn = Bootstrap(np.empty((0, 2)), "steps", 1, 1000.0, 0, np.ones(2), 2.0)
    rates = np.linspace(90.0, 110.0, 1000)
    low, high = drawn.pointwise_ratio(rates, 100.0)
    assert 90 <= low < 91
    assert 109 < high <= 110
    rates[:50] = math.inf
    low, high = drawn.pointwise_ratio(rates, 100.0)
    assert 90 < low < 95
    assert high == math.inf
    low, high = drawn.pointwise_ratio(np.where(np.arange(1000) < 600, math.inf, rates), math.inf)
    assert 95 < low < 110
    assert high == math.inf


@pytest.mark.parametrize(
    ("octaves", "words"), [(1.0, "1 octave wide"), (0.5, "0.5 octaves wide"), (2.0, "2 octaves wide")]
)
def test_one_octave_is_one(octaves: float, words: str) -> None:
    assert Regions(np.zeros(3, np.int64), 1, octaves, "load").describe().endswith(words)


def test_stalls_leave_the_fixed_share_alone() -> None:
    truth = StepCost("t", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")
    records = plant(truth, steps=600, ranks=8, noise=0.02, mean_batch=24, seed=3)
    slow = np.where(np.arange(600) % 50 == 7, 3.0, 1.0)  # below what counts as a pause
    stalled = replace(records, time_s=records.time_s * np.repeat(slow, 8))
    plain, other = (
        fit(r, terms=1, batch_shape="linear", saturation_tokens=None, replicates=300).fixed_share
        for r in (records, stalled)
    )
    assert other.value == pytest.approx(plain.value, rel=0.005)
    assert other.low < plain.value < other.high


def test_a_constant_that_holds_a_batch_price_says_so() -> None:
    truth = StepCost("t", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")
    records = plant(truth, steps=300, ranks=8, mean_batch=40, seed=3)
    for shape, said in (("table", True), ("linear", False)):
        result = fit(records, batch_shape=shape, terms=1, saturation_tokens=None, replicates=100)
        assert any("holds the price of a rank's first" in n for n in result.notes) is said

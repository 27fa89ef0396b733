"""What follows from a fit: knobs, groups, words, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.calibrate import FitResult, StepRecords, fit, plant
from equipoise.calibrate.calibration import complete, summarize
from equipoise.calibrate.groups import select, told_apart, words
from equipoise.calibrate.identify import Unidentified
from equipoise.calibrate.knobs import BATCHES, GRID, TABLE_BATCH, best_z, knobs, usual_batch
from equipoise.calibrate.partial import refuse_partial
from equipoise.calibrate.words import coverage_words, no_rate, quantity, share, span, tokens
from equipoise.cost import StepCost, Term, from_toml
from equipoise.cost.files import to_toml
from equipoise.errors import CalibrationError, InputError

TRUTH = StepCost("t", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")


@cache
def fitted() -> FitResult:
    return fit(plant(TRUTH, steps=300, ranks=8, noise=0.02, mean_batch=20), replicates=200)


def test_a_weighted_score_orders_ranks_as_the_cost_does() -> None:
    """The law of both knobs: blocks + w * requests, and tokens + x * requests, are the price up to a factor."""
    result = fitted()
    found = knobs(result, block_tokens=16)
    rng = np.random.default_rng(0)
    batch, context = rng.integers(1, 100, 50), rng.integers(1000, 4_000_000, 50)
    (term,) = result.cost.terms
    price = term.per_request * batch + term.per_100k_context * context / 1e5
    by_tokens = context + found.request_equivalent_tokens.value * batch
    by_blocks = context / 16 + found.decode_active_request_weight.value * batch
    assert np.allclose(by_tokens / price, by_tokens[0] / price[0])
    assert np.allclose(by_blocks / price, by_blocks[0] / price[0])
    low, high = found.decode_active_request_weight[1:]
    assert low <= 25_000 / 16 <= high
    with pytest.raises(InputError, match="block_tokens = 0"):
        knobs(result, 0)


def test_best_z_is_the_least_of_what_was_tried() -> None:
    pytest.importorskip("optuna")
    z = best_z(TRUTH, batch=8, ranks=4, jobs=1)
    assert [v for v, _ in z.curve] == list(GRID)
    assert min(z.curve, key=lambda p: p[1])[0] == z.z
    low, high = z.within()
    assert low <= z.z <= high
    assert z.as_good[0] <= z.z <= z.as_good[1]
    assert z.within(1e9) == (GRID[0], GRID[-1])
    assert z.gain_is_shown == (z.gain.low > 0)


def test_replays_have_the_batch_of_the_log() -> None:
    result = fitted()
    assert usual_batch(result) == round(float(np.mean(result.points.batch)))
    table = replace(result, bootstrap={**result.bootstrap, "units": "regions"})
    assert usual_batch(table) == TABLE_BATCH
    full = replace(result, points=replace(result.points, batch=result.points.batch * 1000))
    assert usual_batch(full) == BATCHES[1]


def test_everything_known_survives_the_file() -> None:
    one = complete(fitted())
    again = from_toml(to_toml(one.cost))
    assert again == one.cost
    about = again.metadata["fit"]
    assert about["knobs"]["block_tokens"] == 64
    assert about["intervals"] == {k: list(v) for k, v in fitted().intervals.items()}


def test_what_is_not_known_is_null_and_not_in_the_file() -> None:
    nan = math.nan
    result = replace(
        fitted(), exchange_rate=type(fitted().exchange_rate)(nan, nan, nan), heldout_mape_by_regime={"x": nan}
    )
    one = complete(result)
    (values,) = summarize([one])["fits"]
    assert values["request_in_context_tokens"] == {"value": None, "low": None, "high": None}
    assert values["heldout_mape_by_regime"] == {"x": None}
    assert values["knobs"]["request_equivalent_tokens"]["value"] is None
    assert "nan" not in to_toml(one.cost)


def test_prefill_that_cannot_be_fitted_says_why() -> None:
    records = plant(TRUTH, steps=60, ranks=2)
    flags = np.where(records.step == 7, 1, 0).astype(np.uint8)
    tokens_ = np.where(records.step == 7, 100, 0)
    batch = np.where(records.step == 7, 0, records.batch)
    mixed = replace(records, flags=flags, prefill_tokens=tokens_, batch=batch)
    one = complete(fit(mixed, replicates=100))
    assert one.prefill is None
    assert one.cost.prefill is None
    assert "usable prefill steps" in one.prefill_missing


def grid(batches: tuple[int, ...], lengths: tuple[int, ...]) -> StepRecords:
    B, L = (v.ravel() for v in np.meshgrid(batches, lengths))
    us = 100 + 2.0 * B + 4.0 * B * L / 1e5
    return StepRecords.build({"batch": B, "context_tokens": B * L, "time_s": us / 1e6})


def test_partial_data_are_refused_with_the_probe() -> None:
    lengths = tuple(1000 * i for i in range(1, 12))
    with pytest.raises(
        CalibrationError, match=r"what a request costs cannot be told: the batch .* is 8 .*--partial"
    ):
        refuse_partial(fit(grid((8,), lengths)))
    whole = fit(grid((1, 2, 4, 8, 16), lengths))
    refuse_partial(whole)
    weak = tuple(
        Unidentified(n, "between 0 and 9 us", "run more") for n in whole.coefficients if n != "constant"
    )
    refuse_partial(replace(whole, unidentified=weak))  # known badly is not unknown


def test_unlogged_contexts() -> None:
    records = grid((1, 2, 4, 8, 16, 32), (1000, 2000))
    unlogged = replace(records, context_tokens=np.full(len(records), -1))
    assert fit(records).contexts_are_logged
    result = fit(unlogged)
    assert not result.contexts_are_logged
    assert result.lost == ("context",)
    assert result.exchange_rate_is == "unknown"
    (missing,) = result.unidentified
    assert "not logged" in missing.reason
    assert all("context" not in name for name in result.heldout_mape_by_regime)
    assert result.cost.metadata["fit"]["unidentified"][0]["reason"] == missing.reason
    assert "not logged" in coverage_words(result)[0]
    refuse_partial(result)  # who reads such a log has said that he knows
    with pytest.raises(CalibrationError, match="min_context = 10, but no row"):
        fit(unlogged, min_context=10)


def test_one_load_is_refused_with_the_probe() -> None:
    one = grid((8,) * 20, (1000,))
    with pytest.raises(
        CalibrationError, match=r"one load only.*mean step time.*run batch 8 .* run batch 2 and"
    ):
        fit(one)
    with pytest.raises(CalibrationError, match="one load only"):
        fit(replace(one, context_tokens=np.full(len(one), -1)))


def test_free_context_is_not_unknown_context() -> None:
    B, L = (v.ravel() for v in np.meshgrid((1, 2, 4, 8, 16), (1000, 4000, 16_000)))
    us = 100 + 2.0 * B - 1e-6 * B * L  # a price is never negative
    free = fit(StepRecords.build({"batch": B, "context_tokens": B * L, "time_s": us / 1e6}))
    assert "costs nothing" in no_rate(free)
    assert free.exchange_rate_is == "infinite"
    assert free.exchange_rate.value == math.inf == free.cost.request_in_context_tokens
    assert free.exchange_rate.low > 0
    assert free.to_dict()["request_in_context_tokens"] == {"value": None, "low": None, "high": None}
    assert free.to_dict()["request_in_context_tokens_is"] == "infinite"
    assert "cannot weigh" in no_rate(fit(grid((8,), tuple(1000 * i for i in range(1, 12)))))
    assert no_rate(fitted()) == ""


def parts(*labels: dict[str, str]) -> list[StepRecords]:
    return [replace(grid((1, 2), (1, 2)), labels=label) for label in labels]


def test_groups_are_picked_by_pattern_and_named_by_what_differs() -> None:
    all_ = parts(
        {
            "system": "h200_sxm",
            "model": "zai-org/GLM-5",
            "op_name": "a",
            "layer": "a",
            "kv_cache_dtype": "fp8",
        },
        {
            "system": "h200_sxm",
            "model": "zai-org/GLM-5",
            "op_name": "b",
            "layer": "b",
            "kv_cache_dtype": "fp8",
        },
        {"system": "b200_sxm", "model": "ds/V3", "op_name": "a", "layer": "a", "kv_cache_dtype": "bfloat16"},
    )
    assert len(select(all_, {})) == 3
    assert len(select(all_, {"system": ["H200*"]})) == 2
    assert len(select(all_, {"model": ["glm-5", "v3"], "layer": ["a"]})) == 2
    with pytest.raises(CalibrationError, match="no group has system=x; there are b200_sxm, h200_sxm"):
        select(all_, {"system": ["x"]})
    with pytest.raises(CalibrationError, match="did you mean 'model'"):
        select(all_, {"modle": ["x"]})
    common, own = told_apart([p.labels for p in all_[:2]])
    assert common == {"system": "h200_sxm", "model": "zai-org/GLM-5", "kv_cache_dtype": "fp8"}
    assert own == [{"layer": "a"}, {"layer": "b"}]
    assert words(all_[2].labels) == "b200_sxm V3 a kv=bf16"


@given(
    st.lists(
        st.fixed_dictionaries({"system": st.sampled_from("ab"), "layer": st.sampled_from("xyz")}), min_size=1
    )
)
def test_different_labels_get_different_names(labels: list[dict[str, str]]) -> None:
    common, own = told_apart(labels)
    named = [tuple({**common, **o}.items()) for o in own]
    for i, one in enumerate(labels):
        for j, other in enumerate(labels):
            assert (named[i] == named[j]) == (one == other)


@given(st.floats(1e-6, 1e12))
def test_quantities_have_four_digits_and_no_exponent(value: float) -> None:
    text = quantity(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=6e-4, abs=6e-10)


def test_words_of_the_unknown() -> None:
    assert (quantity(math.nan), share(math.inf), span(0, math.nan)) == ("n/a", "n/a", "n/a")
    assert (quantity(0), quantity(999.99), quantity(90_542), quantity(0.00012346)) == (
        "0",
        "1,000",
        "90,540",
        "0.0001235",
    )
    assert (tokens(900), tokens(4096), tokens(1_250_000)) == ("900", "4.1k", "1.25M")

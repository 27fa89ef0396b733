"""The prefill fit: planted prices come back, shortcuts do not, and what the data cannot tell is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise import cost
from equipoise.calibrate.calibration import _best_prefill
from equipoise.calibrate.prefill_fit import PrefillTermForm, fit_prefill
from equipoise.calibrate.prefill_samples import MAX_TOKENS, prefill_samples
from equipoise.calibrate.records import Flag, StepRecords
from equipoise.cost import PrefillCost, PrefillTerm, Saturation, StepCost, Term
from equipoise.errors import CalibrationError, InputError

TOP_K = 2048
TRUTH = PrefillCost((PrefillTerm("prefill", 30.0, 70.0, (Saturation(TOP_K, 1500.0),)),), 20_000.0, "us")
PRICES = {
    "constant": 20_000.0,
    "prefill.per_token": 30.0,
    "prefill.per_100k_pairs": 70.0,
    "prefill.per_100k_saturated_2048": 1500.0,
}
SPARSE = (PrefillTermForm(saturation_tokens=TOP_K),)


def log(
    offset: Any, tokens: Any, truth: PrefillCost = TRUTH, *, noise: float = 0.0, seed: int = 0, **columns: Any
) -> StepRecords:
    """A log of steps with these chunks, int64[steps, ranks, chunks], timed by a known cost."""
    offset, tokens = np.broadcast_arrays(np.asarray(offset), np.asarray(tokens))
    steps, ranks, _ = tokens.shape
    T, P, _ = truth.sums(offset, tokens)
    draws = np.random.default_rng([seed, 1]).standard_normal(steps)  # not the stream of the loads
    time_s = truth.cost(offset, tokens) * np.exp(noise * draws - noise**2 / 2) * 1e-6
    prompts = (tokens > 0).sum(axis=-1)
    return StepRecords.build(
        {
            "step": np.repeat(np.arange(steps), ranks),
            "rank": np.tile(np.arange(ranks), steps),
            "batch": np.zeros(steps * ranks, dtype=np.int64),
            "prefill_requests": prompts.ravel(),
            "prefill_tokens": T.ravel(),
            "prefill_pairs": P.ravel().astype(float),
            "time_s": np.repeat(time_s, ranks),
            "clock_s": np.repeat(np.cumsum(time_s), ranks),
            "flags": np.where(prompts > 0, Flag.PREFILL, Flag.IDLE).ravel(),
            "line": np.arange(1, steps * ranks + 1),
            **columns,
        },
        source="engine.log",
    )


def mixed_loads(seed: int, steps: int = 400, ranks: int = 8) -> tuple[Any, Any]:
    """Chunks of all sizes behind nothing or behind up to 120k tokens; some ranks idle."""
    rng = np.random.default_rng(seed)
    size = (steps, ranks, 1)
    tokens = rng.integers(64, 8192, size) * (rng.random(size) < 0.8)
    tokens[:, 0] = np.maximum(tokens[:, 0], 64)
    offset = np.exp(rng.uniform(np.log(500), np.log(120_000), size)) * (rng.random(size) < 0.6)
    return offset.astype(np.int64), tokens


def prices(found: PrefillCost) -> dict[str, float]:
    term = found.terms[0]
    saturated = term.saturations[0].per_100k if term.saturations else 0.0
    return dict(zip(PRICES, (found.constant, term.per_token, term.per_100k_pairs, saturated), strict=True))


def test_exact_times_give_the_prices_back() -> None:
    fit = fit_prefill(log(*mixed_loads(1)), terms=SPARSE)
    assert prices(fit.cost) == pytest.approx(PRICES, rel=1e-6)
    assert (fit.mape, fit.heldout_mape) == pytest.approx((0, 0), abs=1e-8)
    assert fit.converged
    assert fit.unidentified == ()
    assert fit.dropped == ()
    assert (fit.cost.unit, fit.steps, fit.guessed_rows) == ("us", 400, 0)
    assert fit.cost.source == "fitted to 400 prefill steps of engine.log"


@pytest.mark.proof
def test_noisy_times_give_prices_within_their_intervals() -> None:
    """Simultaneous 95 % intervals: 11 of 12 or more, with a chance of 0.88 if right and 0.1 if they held 70 % only."""
    inside = 0
    for seed in range(12):
        fit = fit_prefill(log(*mixed_loads(seed), noise=0.05, seed=seed), terms=SPARSE, seed=seed)
        assert list(fit.intervals) == list(PRICES)
        inside += all(low <= PRICES[name] <= high for name, (low, high) in fit.intervals.items())
        assert fit.mape == pytest.approx(0.04, abs=0.01)
        assert fit.heldout_mape == pytest.approx(0.04, abs=0.012)
        low, high = fit.intervals["prefill.per_100k_pairs"]
        assert (high - low) / 2 < 0.05 * 70
    assert inside >= 11


def test_shortcuts_are_far_off_on_the_same_steps() -> None:
    """Rank by rank, and maxima of each load: why the maximum is fitted as it stands."""
    records = log(*mixed_loads(1), noise=0.05)
    samples, _ = prefill_samples(records)
    starts, time_us = samples.loads.starts, samples.loads.time_us
    loads = np.stack(
        [samples.loads.batch, samples.loads.context / 1e5, samples.saturated(TOP_K) / 1e5], axis=1
    )
    of_ranks = np.repeat(time_us, np.diff(starts))
    of_maxima = np.maximum.reduceat(loads, starts[:-1])
    for X, y in ((loads, of_ranks), (of_maxima, time_us)):
        columns = np.column_stack([np.ones(len(X)), X]) / y[:, None]
        found = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)[0]
        assert not 20 < found[1] < 40
        assert found[2] < 65
    fit = fit_prefill(records, terms=SPARSE)
    assert 20 < fit.cost.terms[0].per_token < 40
    assert 67 < fit.cost.terms[0].per_100k_pairs < 73


def test_the_same_log_and_seed_give_the_same_fit() -> None:
    records = log(*mixed_loads(3), noise=0.05)
    one, two = (fit_prefill(records, terms=SPARSE, seed=7) for _ in range(2))
    assert one.cost == two.cost
    assert one.intervals == two.intervals


def test_two_terms_whose_slowest_ranks_differ() -> None:
    truth = PrefillCost((PrefillTerm("a", 40.0), PrefillTerm("b", 0.0, 90.0)), 5000.0, "us")
    terms = (PrefillTermForm("a", pairs=False), PrefillTermForm("b", tokens=False))
    fit = fit_prefill(log(*mixed_loads(2), truth), terms=terms)
    assert fit.cost == replace(
        truth, source=fit.cost.source, terms=fit.cost.terms, constant=fit.cost.constant
    )
    found = (fit.cost.constant, fit.cost.terms[0].per_token, fit.cost.terms[1].per_100k_pairs)
    assert found == pytest.approx((5000, 40, 90), rel=1e-6)


def test_the_fit_goes_into_a_cost_file_beside_decode() -> None:
    fit = fit_prefill(log(*mixed_loads(1)), terms=SPARSE)
    whole = StepCost("measured", (Term("decode", 1.0, 70.0),), 9000.0, unit="us", prefill=fit.cost)
    assert cost.from_toml(cost.to_toml(whole)) == whole


# What the data cannot tell


def test_prompts_of_one_length_from_their_start_cannot_tell_tokens_from_pairs() -> None:
    rng = np.random.default_rng(4)
    tokens = np.zeros((200, 4, 8), dtype=np.int64)
    for n in range(8):
        tokens[..., n] = 4096 * (rng.integers(0, 8, (200, 4)) >= n)
    fit = fit_prefill(log(0, tokens, noise=0.02))
    assert {u.name for u in fit.unidentified} == {"prefill.per_token", "prefill.per_100k_pairs"}
    for found in fit.unidentified:
        assert "every prompt token attends to about 2,048 keys" in found.reason
        assert "behind a cached prefix of 16,388 tokens" in found.probe
    assert [u.name for u in fit.unidentified if u.dropped] == ["prefill.per_100k_pairs"]
    assert fit.cost.terms[0].per_100k_pairs == 0
    assert list(fit.intervals) == ["constant", "prefill.per_token"]
    assert fit.heldout_mape < 0.03  # it still predicts what it has seen


def test_chunks_of_one_size_cannot_tell_the_constant_from_tokens() -> None:
    offset = np.random.default_rng(5).integers(0, 60_000, (200, 4, 1))
    fit = fit_prefill(log(offset, 2000, noise=0.02))
    assert {u.name for u in fit.unidentified} == {"constant", "prefill.per_token"}
    for found in fit.unidentified:
        assert found.reason == "every step computes about 2,000 prompt tokens on its slowest rank"
        assert found.probe == "steps of at most 500 prompt tokens a rank"
    assert fit.cost.terms[0].per_token == 0
    assert fit.cost.terms[0].per_100k_pairs > 0


def test_queries_that_are_all_past_the_bound_cannot_tell_its_price() -> None:
    rng = np.random.default_rng(6)
    offset, tokens = rng.integers(4096, 90_000, (200, 4, 1)), rng.integers(100, 8000, (200, 4, 1))
    fit = fit_prefill(log(offset, tokens, noise=0.02), terms=SPARSE)
    found = next(u for u in fit.unidentified if u.name == "prefill.per_100k_saturated_2048")
    assert found.dropped
    assert "nearly every query has more than 2,048 keys" in found.reason
    assert found.probe == "prompts of at most 1,024 tokens from their start"


def test_queries_that_never_reach_the_bound_cannot_tell_its_price() -> None:
    tokens = np.random.default_rng(7).integers(100, 2000, (200, 4, 1))
    fit = fit_prefill(log(0, tokens, noise=0.02), terms=SPARSE)
    found = next(u for u in fit.unidentified if u.name == "prefill.per_100k_saturated_2048")
    assert found.dropped
    assert "the bound takes nothing off" in found.reason
    assert found.probe == "chunks behind a cached prefix of 8,192 tokens"


def test_few_noisy_steps_are_called_a_guess() -> None:
    fit = fit_prefill(log(*mixed_loads(8, steps=12), noise=0.3, seed=3), terms=SPARSE)
    assert fit.unidentified
    assert not any(u.dropped for u in fit.unidentified)


# Rows


@given(st.integers(0, 200_000), st.integers(1, 9000), st.integers(1, 100_000))
def test_saturated_pairs_of_one_prompt_follow_from_tokens_and_pairs(
    offset: int, tokens: int, length: int
) -> None:
    samples, _ = prefill_samples(log([[[offset]]], [[[tokens]]]))
    expected = int(cost.saturated_pairs(offset, tokens, length))
    assert samples.saturated(length).tolist() == pytest.approx([expected], rel=1e-9)


def test_equal_prompts_of_a_rank_are_exact_and_counted() -> None:
    records = log(np.full((20, 1, 3), 500), np.arange(20)[:, None, None] * np.ones((1, 1, 3), int) + 2000)
    samples, _ = prefill_samples(records)
    assert samples.saturated(TOP_K) == pytest.approx(TRUTH.sums(np.full((20, 1, 3), 500),
        np.arange(20)[:, None, None] * np.ones((1, 1, 3), int) + 2000)[2][:, 0, 0], rel=1e-12)  # fmt: skip
    assert fit_prefill(records, terms=SPARSE).guessed_rows == 20


def test_rows_that_cannot_be_used_are_counted_with_their_reason() -> None:
    records = log(*mixed_loads(9, steps=40, ranks=4))

    def rows(step: int) -> slice:
        return slice(4 * step, 4 * step + 4)

    columns = {name: getattr(records, name).copy() for name in ("batch", "flags", "time_s", "prefill_pairs")}
    columns["batch"][4 * 3 + 2] = 5
    columns["flags"][rows(4)] |= np.uint8(Flag.FIRST)
    columns["time_s"][rows(5)] = 0.0
    columns["time_s"][rows(6)] = np.nan
    columns["prefill_pairs"][4 * 7] = np.nan
    columns["prefill_pairs"][4 * 8] = 3.0
    columns["flags"][rows(9)] |= np.uint8(Flag.AVERAGED)
    records = replace(records, **columns)
    records = records.select(np.flatnonzero(np.arange(160) != 4 * 10 + 3))  # a rank's row is lost
    fit = fit_prefill(records, terms=SPARSE)
    assert {d.reason: (d.rows, d.first) for d in fit.dropped} == {
        "decode beside prefill": (4, "engine.log:13"),
        "step time is not above 0": (8, "engine.log:21"),
        "ranks are missing": (3, "engine.log:41"),
        "first step after a pause": (4, "engine.log:17"),
        "attended pairs are not known": (4, "engine.log:29"),
        "fewer attended pairs than its tokens have among themselves": (4, "engine.log:33"),
        "a mean over steps of several ranks": (4, "engine.log:37"),
    }
    assert fit.steps == 40 - 8
    assert prices(fit.cost) == pytest.approx(PRICES, rel=1e-6)
    kept = fit_prefill(records, terms=SPARSE, missing_ranks_are_idle=True)
    assert kept.steps == fit.steps + 1


def test_steps_without_prompts_are_passed_over() -> None:
    records = log(*mixed_loads(1, steps=20))
    decode = StepRecords.build(
        {"batch": np.full(50, 8), "time_s": np.full(50, 0.01), "context_tokens": np.full(50, 999)}
    )
    samples, dropped = prefill_samples(StepRecords.concatenate([records, decode]))
    assert len(samples) == 20
    assert dropped == ()


def test_too_large_steps_are_not_believed() -> None:
    records = log(0, np.full((10, 1, 1), MAX_TOKENS + 1))
    samples, dropped = prefill_samples(records)
    assert len(samples) == 0
    assert dropped[0].reason == "more than 4,194,304 prompt tokens on a rank"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "engine.log: 3 usable prefill steps; give a log with more steps that compute prompts"),
        ({"batch": 1}, "0 usable prefill steps; 12 rows: decode beside prefill; log a prefill instance"),
        ({"prefill_pairs": np.nan}, "12 rows: attended pairs are not known; log the cached tokens"),
    ],
)
def test_too_few_steps_are_refused_with_where_they_went(change: dict[str, Any], says: str) -> None:
    records = log(*mixed_loads(1, steps=3, ranks=4))
    records = replace(records, **{k: np.full(12, v, getattr(records, k).dtype) for k, v in change.items()})
    with pytest.raises(CalibrationError) as caught:
        fit_prefill(records)
    assert says in str(caught.value)


def test_an_empty_log_is_refused() -> None:
    empty = StepRecords.build({"batch": [], "time_s": []})
    with pytest.raises(CalibrationError, match="0 usable prefill steps"):
        fit_prefill(empty)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ((), "no term"),
        ((PrefillTermForm("a"), PrefillTermForm("a")), "two of one name"),
        ((PrefillTermForm("a.b"),), "a dot"),
        ((PrefillTermForm("a", saturation_tokens=1), PrefillTermForm("b", saturation_tokens=2)), "[1, 2]"),
        ((PrefillTermForm("a", saturation_tokens=-1),), "[-1]"),
        ((PrefillTermForm("a", tokens=False, pairs=False),), "a term without a price"),
    ],
)
def test_terms_that_cannot_be_fitted_are_refused(terms: tuple[PrefillTermForm, ...], says: str) -> None:
    with pytest.raises(InputError) as caught:
        fit_prefill(log(*mixed_loads(1, steps=10)), terms=terms)
    assert says in str(caught.value)


def test_the_models_own_length_is_taken_where_left_out_loads_support_it() -> None:
    """Of the lengths offered the planted one wins; where pairs do not saturate, none does."""
    sparse = log(*mixed_loads(1), noise=0.02, seed=1)
    (term,) = _best_prefill(sparse, (128, 2048), False, 0).cost.terms
    assert [s.tokens for s in term.saturations] == [2048]
    assert not _best_prefill(sparse, (), False, 0).cost.terms[0].saturations
    starts = sparse.step_starts()
    price_us = 20_000 + 30.0 * sparse.prefill_tokens + 70.0 * sparse.prefill_pairs / 1e5
    noise = 1 + 0.02 * np.random.default_rng(1).standard_normal(len(starts) - 1)
    time_us = np.maximum.reduceat(price_us, starts[:-1]) * noise
    plain = replace(sparse, time_s=np.repeat(time_us, np.diff(starts)) / 1e6)
    assert not _best_prefill(plain, (128, 2048), False, 0).cost.terms[0].saturations

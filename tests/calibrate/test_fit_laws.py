"""Laws of the fit: what must not depend on what, and the fast parts against slow ones."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from equipoise.calibrate import fit
from equipoise.calibrate.bottleneck import Problem, fit_bottleneck
from equipoise.calibrate.clean import clean
from equipoise.calibrate.least_squares import nonnegative, nonnegative_many
from equipoise.calibrate.planted import plant
from equipoise.calibrate.records import StepRecords
from equipoise.calibrate.samples import Samples, saturated_tokens
from equipoise.calibrate.shapes import BatchShape, Form, TermForm, graph_sizes
from equipoise.cost import Saturation, StepCost, Term

ONE = StepCost("one", (Term("decode", per_request=20.0, per_100k_context=80.0),), 4000.0, unit="us")
TWO = StepCost(
    "two",
    (Term("batch", per_request=40.0), Term("attention", per_request=15.0, per_100k_context=60.0)),
    2000.0,
    unit="us",
)
FORM = Form((TermForm("decode", context=True),))
TWO_TERMS = Form((TermForm("batch"), TermForm("attention", context=True)))


def steps_of(records: StepRecords) -> Samples:
    return clean(records).samples


def rebuilt(records: StepRecords, **changed: object) -> StepRecords:
    names = (
        "instance",
        "step",
        "rank",
        "batch",
        "context_tokens",
        "query_tokens",
        "context_variance",
        "time_s",
    )
    columns = {name: getattr(records, name) for name in (*names, "clock_s")}
    return StepRecords.build({**columns, **changed}, source="planted")


@pytest.fixture(scope="module")
def small() -> StepRecords:
    return plant(TWO, steps=150, ranks=6, seed=4)


@given(factor=st.floats(1e-3, 1e3))
@settings(max_examples=15, deadline=None)
def test_scaling_times_scales_coefficients(factor: float) -> None:
    records = plant(TWO, steps=60, ranks=4, seed=1)
    plain = fit_bottleneck(steps_of(records), TWO_TERMS).coefficients
    scaled = fit_bottleneck(
        steps_of(rebuilt(records, time_s=records.time_s * factor)), TWO_TERMS
    ).coefficients
    np.testing.assert_allclose(scaled, factor * plain, rtol=1e-6, atol=1e-9 * factor * plain.max())


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_permuting_ranks_and_steps_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    records = plant(TWO, steps=60, ranks=5, seed=2)
    ranks, steps = rng.permutation(5), rng.permutation(60)
    other = rebuilt(records, rank=ranks[records.rank], step=steps[records.step])
    np.testing.assert_allclose(
        fit_bottleneck(steps_of(records), TWO_TERMS).coefficients,
        fit_bottleneck(steps_of(other), TWO_TERMS).coefficients,
        rtol=1e-6,
    )


def test_duplicate_ranks_change_nothing(small: StepRecords) -> None:
    twice = {
        name: np.concatenate([getattr(small, name)] * 2)
        for name in ("step", "batch", "context_tokens", "context_variance", "time_s", "clock_s")
    }
    twice["rank"] = np.concatenate([small.rank, small.rank + 6])
    doubled = StepRecords.build(twice, source="planted")
    plain, other = (fit(r, terms=2, batch_shape="linear", replicates=50) for r in (small, doubled))
    assert other.coefficients == pytest.approx(plain.coefficients, rel=1e-9)
    assert other.intervals["constant"] == pytest.approx(plain.intervals["constant"], rel=1e-6)


def test_idle_ranks_change_nothing(small: StepRecords) -> None:
    steps = np.unique(small.step)
    names = ("step", "rank", "batch", "context_tokens", "time_s", "clock_s")
    columns = {name: getattr(small, name) for name in names}
    first = np.searchsorted(small.step, steps)
    idle = {"step": steps, "rank": 99, "batch": 0, "context_tokens": 0, "time_s": small.time_s[first]}
    more = {
        name: np.concatenate([column, np.broadcast_to(idle.get(name, 0.0), len(steps))])
        for name, column in columns.items()
    }
    np.testing.assert_allclose(
        fit_bottleneck(steps_of(StepRecords.build(more)), TWO_TERMS).coefficients,
        fit_bottleneck(steps_of(StepRecords.build(columns)), TWO_TERMS).coefficients,
        rtol=1e-9,
    )


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_one_rank_is_weighted_nonnegative_least_squares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    B = rng.integers(1, 200, 40)
    C = B * rng.integers(1000, 100_000, 40)
    y = (100 + B * rng.uniform(-2, 5) + C / 1e5 * rng.uniform(-3, 20)).clip(20) * rng.uniform(0.8, 1.2, 40)
    records = StepRecords.build({"batch": B, "context_tokens": C, "time_s": y / 1e6}, format="aic")
    ours = fit_bottleneck(steps_of(records), FORM, loss="squares").coefficients
    X = np.column_stack([np.ones(40), B, C / 1e5])
    theirs, _ = nnls(X / y[:, None], np.ones(40))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 10_000), terms=st.sampled_from([FORM, TWO_TERMS]))
@settings(max_examples=25, deadline=None)
def test_compiled_maximum_equals_the_obvious_one(seed: int, terms: Form) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, 12)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = int(starts[-1])
    B = rng.integers(0, 9, rows)
    empty = np.empty(0)
    samples = Samples(
        starts,
        B,
        B * 1000.0 * rng.integers(1, 9, rows),
        empty,
        empty,
        np.ones(12),
        np.ones(12),
        np.zeros(12, int),
    )
    theta = rng.uniform(0, 3, terms.columns)
    row, predicted = Problem(samples, terms).assign(theta)
    for s in range(12):
        total = theta[0]
        for t in range(len(terms.terms)):
            batch, context, _, _ = terms.parts(theta, t)
            works = [
                float(batch[0]) * B[r] + context / 1e5 * samples.context[r]
                for r in range(starts[s], starts[s + 1])
            ]
            assert works[row[t, s] - starts[s]] == pytest.approx(max(works))
            total += max(works)
        assert predicted[s] == pytest.approx(total)


@given(seed=st.integers(0, 10_000), columns=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_nonnegative_least_squares_from_sums(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 1, (30, columns)) * 10.0 ** rng.integers(-3, 4, columns)
    y = X @ rng.normal(0, 1, columns) + rng.normal(0, 0.1, 30)
    ours = nonnegative(X.T @ X, X.T @ y)
    _, best = nnls(X, y)
    assert (ours >= 0).all()
    assert float(np.linalg.norm(X @ ours - y)) <= best * (1 + 1e-6) + 1e-9
    np.testing.assert_allclose(
        nonnegative_many((X.T @ X)[None], (X.T @ y)[None])[0], ours, rtol=1e-6, atol=1e-9
    )


NOISE_FREE = {
    "one": ONE,
    "two": TWO,
    "roofline": StepCost(
        "roofline",
        (Term("decode", per_request=30.0, per_100k_context=50.0, batch_floor=32),),
        900.0,
        unit="us",
    ),
    "saturating": StepCost(
        "saturating",
        (Term("decode", per_request=9.0, per_100k_context=30.0, saturations=(Saturation(8192, 200.0),)),),
        700.0,
        unit="us",
    ),
}


@pytest.mark.parametrize("name", ["one", "two"])
def test_noise_free_prices_are_recovered_exactly(name: str) -> None:
    truth = NOISE_FREE[name]
    result = fit(plant(truth, steps=200, ranks=6, noise=0.0, seed=3), replicates=50)
    assert result.cost.terms == tuple(
        Term(
            t.name,
            per_request=pytest.approx(t.per_request),
            per_100k_context=pytest.approx(t.per_100k_context),
        )
        for t in truth.terms
    )
    assert result.cost.constant == pytest.approx(truth.constant)
    assert result.heldout_mape < 1e-6
    assert not result.unidentified


def test_roofline_knee_is_recovered() -> None:
    shape = BatchShape("roofline", floor=32)
    records = plant(NOISE_FREE["roofline"], steps=200, ranks=4, noise=0.0, seed=3)
    form = Form((TermForm("decode", shape, context=True),))
    np.testing.assert_allclose(fit_bottleneck(steps_of(records), form).coefficients, [900, 30, 50], rtol=1e-6)
    result = fit(records, terms=1, saturation_tokens=None, replicates=50)
    assert result.form == "one term, roofline"
    assert abs(result.cost.terms[0].batch_floor - 32) <= 6


def test_staircase_is_recovered() -> None:
    sizes = (8, 16, 24, 32, 48, 64)
    prices = np.array([0.0, 700.0, 900.0, 1500.0, 1900.0, 2600.0])
    table = tuple(float(prices[np.searchsorted(sizes, b)]) for b in range(65))
    truth = StepCost("stairs", (Term("decode", per_100k_context=60.0, batch_table=table),), 3000.0, unit="us")
    records = plant(truth, steps=400, ranks=4, noise=0.0, mean_batch=24, seed=6)
    result = fit(records, terms=1, graph_sizes=sizes, saturation_tokens=None, replicates=50)
    assert result.form == "one term, staircase"
    fitted = np.array(result.cost.terms[0].batch_table)
    seen = np.unique(np.maximum.reduceat(records.batch, records.step_starts()[:-1]))
    seen = seen[(seen > 8) & (seen <= 48)]
    rise = fitted[seen] - fitted[16]
    np.testing.assert_allclose(rise, np.array(table)[seen] - table[16], atol=1e-3)


def test_saturating_context_is_recovered_with_one_length_a_rank() -> None:
    rng = np.random.default_rng(5)
    B = rng.integers(1, 60, 600)
    length = np.exp(rng.uniform(np.log(500), np.log(100_000), 600)).astype(np.int64)
    truth = NOISE_FREE["saturating"]
    K = (B * np.minimum(length, 8192))[:, None, None]
    time_us = truth.cost(B[:, None], (B * length)[:, None], K)
    records = StepRecords.build(
        {"batch": B, "context_tokens": B * length, "context_variance": 0.0, "time_s": time_us / 1e6}
    )
    result = fit(records, min_context=None, replicates=50)
    assert result.cost.terms[0].saturations == (Saturation(8192, pytest.approx(200.0)),)
    assert result.cost.terms[0].per_100k_context == pytest.approx(30.0)
    assert result.exchange_rate.value == pytest.approx(result.cost.request_in_context_tokens)


@pytest.mark.parametrize("tokens", [2048, 40_000])
def test_saturated_tokens_follow_the_gamma_law(tokens: int) -> None:
    rng = np.random.default_rng(8)
    lengths = rng.gamma(1.7, 20_000, (400, 64))
    samples = Samples(
        np.arange(401),
        np.full(400, 64),
        lengths.sum(axis=1),
        np.empty(0),
        lengths.var(axis=1),
        np.ones(400),
        np.ones(400),
        np.zeros(400, int),
    )
    exact = np.minimum(lengths, tokens).sum(axis=1)
    assert saturated_tokens(samples, tokens).sum() == pytest.approx(exact.sum(), rel=0.01)


def test_prices_in_a_cost_equal_prices_in_a_fit() -> None:
    shapes = [
        BatchShape("linear"),
        BatchShape("roofline", floor=9),
        BatchShape("table", nodes=(3, 8, 20)),
        BatchShape("staircase", nodes=(4, 8, 16, 24)),
    ]
    rng = np.random.default_rng(9)
    for shape in shapes:
        form = Form((TermForm("decode", shape, context=True, saturation_tokens=2048),))
        theta = rng.uniform(1, 5, form.columns)
        cost = form.cost(theta, "x")
        B = np.arange(1, 40)
        samples = Samples(
            np.arange(40),
            B,
            B * 5000.0,
            np.empty(0),
            np.empty(0),
            np.ones(39),
            np.ones(39),
            np.zeros(39, int),
            is_grid=True,
        )
        _, predicted = Problem(samples, form).assign(theta)
        K = (B * 2048)[:, None, None]
        np.testing.assert_allclose(cost.cost(B[:, None], (B * 5000)[:, None], K), predicted)


def test_graph_sizes_hold_the_largest_batch() -> None:
    for largest in (1, 3, 8, 9, 250, 256, 257, 500):
        sizes = graph_sizes(largest)
        assert sizes[-1] >= largest
        assert len(sizes) == 1 or sizes[-2] < largest
        assert list(sizes) == sorted(set(sizes))


def test_the_example_of_fit_is_true() -> None:
    from equipoise.calibrate import decode_fit

    result = doctest.testmod(decode_fit)
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(("power", "warned"), [(0.5, True), (1.0, False)])
def test_a_batch_table_that_bends_down_is_warned_of(power: float, warned: bool) -> None:
    """Under a concave table an even spread costs more than the ideal: the reader must know before he compares."""
    batch, context = np.meshgrid([1, 2, 4, 8, 16, 32, 64, 128], [4096, 8192, 16384, 65536])
    time_us = 200 + 40.0 * batch**power + 4.0 * batch * context / 100_000
    columns = {
        "batch": batch.ravel(),
        "context_tokens": (batch * context).ravel(),
        "time_s": time_us.ravel() / 1e6,
    }
    notes = fit(StepRecords.build(columns)).notes
    assert any("not convex" in note for note in notes) == warned

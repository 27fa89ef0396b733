"""Laws of `StepCost` on generated models and loads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cost import Saturation, StepCost, Term
from equipoise.cost.envelope import lower_convex_envelope
from equipoise.errors import CostError

prices = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))


@st.composite
def terms(draw: st.DrawFn, convex: bool = False) -> Term:
    table: tuple[float, ...] = ()
    floor = 0
    shape = draw(st.sampled_from(["linear", "floor"] if convex else ["linear", "floor", "table"]))
    if shape == "floor":
        floor = draw(st.integers(1, 20))
    if shape == "table":
        table = tuple(np.cumsum(draw(st.lists(prices, min_size=1, max_size=12))).tolist())
    return Term(
        name="t",
        weight=draw(st.floats(1e-3, 1e3)),
        per_request=draw(prices),
        per_100k_context=draw(prices),
        batch_floor=floor,
        batch_table=table,
        saturations=tuple(
            Saturation(tokens, draw(prices))
            for tokens in draw(st.lists(st.sampled_from([7, 128, 2048]), max_size=2))
        ),
    )


def costs(convex: bool = False) -> st.SearchStrategy[StepCost]:
    return st.builds(
        StepCost,
        name=st.just("c"),
        # A price above 0 in every model: one that costs nothing has no ideal and is refused.
        terms=st.lists(terms(convex), min_size=1, max_size=3).map(lambda ts: (*ts, Term("last", 1.0, 1.0))),
        constant=prices,
        barrier=st.sampled_from(["layer", "step"]),
    )


@st.composite
def loads(draw: st.DrawFn, ranks: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    R = draw(st.integers(1, 6)) if ranks is None else ranks
    S = draw(st.integers(1, 4))
    numbers = st.lists(st.lists(st.integers(0, 40), min_size=R, max_size=R), min_size=S, max_size=S)
    tokens = st.lists(st.lists(st.integers(0, 10**7), min_size=R, max_size=R), min_size=S, max_size=S)
    return np.array(draw(numbers)), np.array(draw(tokens))


def naive_price(term: Term, b: int, c: int) -> float:
    if term.batch_table:
        last = len(term.batch_table) - 1
        batch = term.batch_table[min(b, last)] + term.per_request * max(b - last, 0)
    else:
        batch = term.per_request * max(b, term.batch_floor)
    saturated = sum(s.per_100k * min(b * s.tokens, c) / 1e5 for s in term.saturations)
    return term.weight * (batch + term.per_100k_context * c / 1e5 + saturated)


def naive_cost(cost: StepCost, batch: np.ndarray, context: np.ndarray) -> list[float]:
    result = []
    for step in range(batch.shape[0]):
        ranks = range(batch.shape[1])
        loads = [(int(batch[step, r]), int(context[step, r])) for r in ranks]
        if cost.barrier == "step":
            result.append(
                cost.constant + max(sum(naive_price(t, *load) for t in cost.terms) for load in loads)
            )
        else:
            result.append(
                cost.constant + sum(max(naive_price(t, *load) for load in loads) for t in cost.terms)
            )
    return result


@given(costs(), loads())
def test_arrays_agree_with_a_triple_loop(cost: StepCost, load: tuple[np.ndarray, np.ndarray]) -> None:
    got = cost.cost(*load)
    assert got.shape == (load[0].shape[0],)
    assert got == pytest.approx(naive_cost(cost, *load), rel=1e-12)


@given(costs(), loads())
def test_cost_is_never_below_ideal(cost: StepCost, load: tuple[np.ndarray, np.ndarray]) -> None:
    assert (cost.cost(*load) >= cost.ideal(*load) * (1 - 1e-12)).all()


@given(costs(convex=True), loads(ranks=1))
def test_one_rank_is_ideal_where_prices_are_convex(
    cost: StepCost, load: tuple[np.ndarray, np.ndarray]
) -> None:
    assert cost.cost(*load) == pytest.approx(cost.ideal(*load), rel=1e-12)


@given(costs(convex=True), loads(), st.integers(2, 5))
def test_equal_ranks_are_ideal_where_prices_are_convex(
    cost: StepCost, load: tuple[np.ndarray, np.ndarray], ranks: int
) -> None:
    batch, context = (np.repeat(a[:, :1], ranks, axis=1) for a in load)
    assert cost.cost(batch, context) == pytest.approx(cost.ideal(batch, context), rel=1e-9)


@given(costs(), loads(), st.randoms())
def test_relabelling_ranks_changes_nothing(
    cost: StepCost, load: tuple[np.ndarray, np.ndarray], random: object
) -> None:
    order = list(range(load[0].shape[1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    batch, context = load
    assert (cost.cost(batch[:, order], context[:, order]) == cost.cost(batch, context)).all()
    assert cost.ideal(batch[:, order], context[:, order]) == pytest.approx(
        cost.ideal(batch, context), rel=1e-12
    )


@given(costs(), loads(), st.floats(1e-3, 1e3))
def test_scaling_prices_scales_cost_and_ideal(
    cost: StepCost, load: tuple[np.ndarray, np.ndarray], factor: float
) -> None:
    assert cost.scaled(factor).cost(*load) == pytest.approx(cost.cost(*load) * factor, rel=1e-12)
    assert cost.scaled(factor).ideal(*load) == pytest.approx(cost.ideal(*load) * factor, rel=1e-12)


@given(costs(), loads())
def test_one_barrier_a_step_never_costs_more_than_one_a_term(
    cost: StepCost, load: tuple[np.ndarray, np.ndarray]
) -> None:
    step = StepCost(cost.name, cost.terms, cost.constant, barrier="step")
    layer = StepCost(cost.name, cost.terms, cost.constant, barrier="layer")
    assert (step.cost(*load) <= layer.cost(*load) * (1 + 1e-12)).all()
    assert (step.ideal(*load) == layer.ideal(*load)).all()


@given(costs(), loads())
def test_a_request_or_a_token_more_never_costs_less(
    cost: StepCost, load: tuple[np.ndarray, np.ndarray]
) -> None:
    batch, context = load
    now = cost.cost(batch, context)
    assert (cost.cost(batch + np.eye(1, batch.shape[1], dtype=np.int64), context) >= now * (1 - 1e-12)).all()
    assert (cost.cost(batch, context + 1) >= now * (1 - 1e-12)).all()


@given(st.lists(prices, min_size=1, max_size=20), prices)
def test_the_envelope_is_convex_and_below_the_table(steps: list[float], tail: float) -> None:
    table = np.cumsum(steps)
    envelope, slope = lower_convex_envelope(table, tail)
    assert slope == tail
    assert (envelope <= table * (1 + 1e-12)).all()
    slopes = [*np.diff(envelope), slope]
    scale = float(table[-1]) + tail + 1
    assert all(b >= a - 1e-12 * scale for a, b in pairwise(slopes))


@given(st.lists(prices, min_size=1, max_size=20).map(sorted), prices)
def test_a_convex_table_is_its_own_envelope(steps: list[float], more: float) -> None:
    table = np.cumsum([0.0, *steps])
    envelope, _ = lower_convex_envelope(table, steps[-1] + more)
    assert envelope == pytest.approx(table, rel=1e-12)


@given(st.lists(prices, min_size=2, max_size=20), prices)
def test_the_envelope_touches_the_table_where_it_bends(steps: list[float], tail: float) -> None:
    """The largest convex function below a table can only bend at points of the table."""
    table = np.cumsum(steps)
    envelope, slope = lower_convex_envelope(table, tail)
    slopes = [*np.diff(envelope), slope]
    scale = float(table[-1]) + tail + 1
    for i, (before, after) in enumerate(pairwise(slopes), start=1):
        if after - before > 1e-9 * scale:
            assert envelope[i] == pytest.approx(table[i], rel=1e-12)


@given(costs())
def test_microseconds_are_the_same_model_on_another_scale(cost: StepCost) -> None:
    request = StepCost(cost.name, cost.terms, cost.constant, us_per_unit=74.0)
    us = request.in_us()
    assert (us.unit, us.us_per_unit) == ("us", 1.0)
    assert float(us.cost([3], [1000])) == pytest.approx(74 * float(request.cost([3], [1000])), rel=1e-12)


def test_formula_of_every_kind_of_term() -> None:
    cost = StepCost(
        "c",
        (
            Term("a", 0.5),
            Term("b", 2.0, per_request=3.0, batch_floor=8),
            Term("c", 1.0, batch_table=(0.0, 1.0)),
            Term("d", 1.0, per_request=0.0, per_100k_context=7.5, saturations=(Saturation(2048, 0.25),)),
        ),
        constant=1.5,
    )
    bodies = ["0.5 * max(B)", "2 * max(3 * max(B, 8))", "1 * max(table[2](B))"]
    assert cost.formula() == " + ".join(["1.5", *bodies, "1 * max(7.5 * C/100k + 0.25 * K2048/100k)"])
    one_barrier = StepCost("c", cost.terms[:2], barrier="step")
    assert one_barrier.formula() == "max(0.5 * (B) + 2 * (3 * max(B, 8)))"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"constant": float("nan")}, "constant = nan"),
        ({"constant": -1.0}, "constant = -1"),
        ({"terms": ()}, "no term"),
        ({"unit": "s"}, "unit = 's'"),
        ({"barrier": "none"}, "barrier = 'none'"),
        ({"us_per_unit": 0.0}, "us_per_unit = 0"),
        ({"us_per_unit": float("inf")}, "us_per_unit = inf"),
        ({"terms": (Term("t", weight=float("inf")),)}, "t.weight = inf"),
        ({"terms": (Term("t", per_100k_context=-0.1),)}, "t.per_100k_context = -0.1"),
        ({"terms": (Term("t", batch_table=(2.0, 1.0)),)}, "batch_table falls"),
        ({"terms": (Term("t", batch_floor=10**6),)}, "beyond 65536"),
        ({"terms": (Term("t", saturations=(Saturation(0, 1.0),)),)}, "saturations.tokens = 0"),
        ({"terms": (Term("t", 0.0, 0.0),)}, "every price is 0"),
    ],
)
def test_senseless_models_are_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"name": "c", "terms": (Term("t"),)}
    with pytest.raises(CostError, match=message):
        StepCost(**{**good, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "context"), [([1, 2], [1]), ([], []), ([-1], [0]), ([0], [-1]), (3, 4)])
def test_senseless_loads_are_refused(batch: object, context: object) -> None:
    with pytest.raises(CostError):
        StepCost("c", (Term("t"),)).cost(batch, context)  # type: ignore[arg-type]


def test_the_exchange_rate_counts_what_a_request_pays_up_to_its_bounds() -> None:
    cost = StepCost("c", (Term("t", 2.0, 1.0, 4.0, saturations=(Saturation(50_000, 6.0),)),))
    assert cost.request_in_context_tokens == pytest.approx((1 + 3) / 4 * 1e5)
    assert StepCost("c", (Term("t"),)).request_in_context_tokens == float("inf")


def test_the_largest_prices_stay_finite() -> None:
    """The bound on prices is there so that no product of them with a load overflows."""
    top = 1e30
    greatest = StepCost("top", (Term("a", top, top, top, saturations=(Saturation(2**40, top),)),), top, "us")
    batch, context = [[2**31, 1]], [[2**52, 0]]
    for values in (greatest.cost(batch, context), greatest.ideal(batch, context)):
        assert np.isfinite(values).all()
    for number in (1.001e30, np.inf, np.nan):
        with pytest.raises(CostError, match=r"from 0 to 1e\+30$"):
            StepCost("x", (Term("a", number),))
        with pytest.raises(CostError, match=r"us_per_unit = .*at most 1e\+30$"):
            StepCost("x", (Term("a"),), us_per_unit=number)

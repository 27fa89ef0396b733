"""Costs side by side: the grid is the costs' own, and the words follow from the numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cost import Saturation, StepCost, Term, load
from equipoise.cost.side_by_side import BATCHES, CONTEXTS, side_by_side
from equipoise.errors import CostError


def line(name: str = "a", constant: float = 0.0, request: float = 20.0, context: float = 80.0) -> StepCost:
    return StepCost(name, (Term("t", per_request=request, per_100k_context=context),), constant, unit="us")


def kinds(*costs: StepCost) -> list[str]:
    return [q for q, _ in side_by_side(costs).questions()]


def test_the_grid_is_the_price_of_every_load() -> None:
    found = side_by_side([line(constant=100), load("v1")])
    for i, batch in enumerate(BATCHES):
        for j, context in enumerate(CONTEXTS):
            assert found.time_us[0, i, j] == pytest.approx(100 + 20 * batch + 80 * batch * context / 1e5)
    assert found.costs[1] == load("v1").in_us()


@given(factor=st.floats(0.01, 100))
def test_scaling_changes_times_and_nothing_else(factor: float) -> None:
    one = line()
    found = side_by_side([one, replace(one.scaled(factor), name="b")])
    assert np.allclose(found.ratio, max(factor, 1 / factor))
    assert found.rates[0] == pytest.approx(found.rates[1])
    off = max(factor, 1 / factor) > 1.1
    assert kinds(*found.costs) == (["placement", "clock"] if off else ["placement"])


def test_the_words_say_which_asks_for_what() -> None:
    words = dict(side_by_side([line("cheap", request=2), line("dear", request=200)]).questions())["placement"]
    assert "100.0 times as much" in words
    assert "dear asks to even out requests more, cheap to even out tokens" in words
    same = dict(side_by_side([line("x"), line("y", request=21)]).questions())["placement"]
    assert "alike" in same


def test_overlapping_intervals_show_no_difference() -> None:
    def fitted(name: str, request: float, low: float, high: float) -> StepCost:
        about = {"fit": {"request_in_context_tokens": {"value": 1.0, "low": low, "high": high}}}
        return replace(line(name, request=request), metadata=about)

    overlap = side_by_side([fitted("a", 20, 15_000, 36_000), fitted("b", 32, 30_000, 50_000)])
    assert "no difference is shown" in dict(overlap.questions())["placement"]
    apart = side_by_side([fitted("a", 20, 24_000, 26_000), fitted("b", 32, 39_000, 41_000)])
    assert "1.6 times" in dict(apart.questions())["placement"]


def test_what_else_may_differ() -> None:
    assert "gain" in kinds(line("a"), line("b", constant=50_000))
    assert "barrier" in kinds(line("a"), replace(line("b"), barrier="step"))
    bent = StepCost(
        "c", (Term("t", per_request=20, per_100k_context=80, saturations=(Saturation(4096, 9),)),)
    )
    assert "knee" in kinds(line("a"), bent)
    free = StepCost("free", (Term("t", per_request=20),), unit="us")
    found = side_by_side([line("a"), free])
    assert "without bound" in dict(found.questions())["placement"]
    assert (
        json.loads(json.dumps(found.to_dict(), allow_nan=False))["costs"][1]["request_in_context_tokens"]
        is None
    )


def test_equal_names_are_told_apart_and_one_cost_is_none() -> None:
    assert side_by_side([line("a"), line("a")]).names == ("a (1)", "a (2)")
    with pytest.raises(CostError, match="give two or more"):
        side_by_side([line()])

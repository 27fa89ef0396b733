"""Repeats needed: the power that is computed is the power that simulated experiments have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from equipoise.live.findings.repeats import (
    MOST,
    power_to_equal,
    power_to_resolve,
    repeats_to_equal,
    repeats_to_resolve,
    resolve,
)

EXPERIMENTS = 20_000


def shown(repeats: int, deviation: float, truth: float, intervals: int) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the intervals of many experiments; scipy's t, not ours."""
    draws = np.random.default_rng(repeats).normal(truth, deviation, (EXPERIMENTS, repeats))
    half = t.ppf(1 - 0.025 / intervals, repeats - 1) * draws.std(axis=1, ddof=1) / math.sqrt(repeats)
    return draws.mean(axis=1) - half, draws.mean(axis=1) + half


@pytest.mark.parametrize(("repeats", "deviation", "intervals"), [(3, 0.01, 1), (5, 0.02, 10), (12, 0.03, 3)])
def test_chance_to_show_a_difference(repeats: int, deviation: float, intervals: int) -> None:
    low, high = shown(repeats, deviation, 0.02, intervals)
    seen = float(((low > 0) | (high < 0)).mean())
    assert power_to_resolve(repeats, deviation, 0.02, intervals) == pytest.approx(seen, abs=0.015)


@pytest.mark.parametrize(("repeats", "deviation", "intervals"), [(4, 0.005, 1), (6, 0.01, 10), (15, 0.02, 3)])
def test_chance_to_show_equality(repeats: int, deviation: float, intervals: int) -> None:
    low, high = shown(repeats, deviation, 0.0, intervals)
    seen = float(((low > -0.02) & (high < 0.02)).mean())
    assert power_to_equal(repeats, deviation, 0.02, intervals) == pytest.approx(seen, abs=0.015)


@pytest.mark.parametrize("deviation", [0.001, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("intervals", [1, 10])
def test_the_fewest_that_do(deviation: float, intervals: int) -> None:
    for fewest, power in ((repeats_to_resolve, power_to_resolve), (repeats_to_equal, power_to_equal)):
        n = fewest(deviation, 0.02, intervals=intervals)
        assert n is not None
        assert power(n, deviation, 0.02, intervals) >= 0.8
        assert n == 2 or power(n - 1, deviation, 0.02, intervals) < 0.8


def test_the_ends() -> None:
    assert repeats_to_resolve(0.0, 0.02) == 2
    assert repeats_to_resolve(100.0, 0.02) is None
    assert repeats_to_resolve(1e-9, 0.02) == 2
    assert (repeats_to_resolve(0.7, 0.02) or 0) <= MOST
    assert resolve(math.nan, 4, 0.02, 0.02, 1) is None


def test_few_repeats_know_their_spread_badly() -> None:
    few, many = resolve(0.02, 2, 0.02, 0.02, 1), resolve(0.02, 50, 0.02, 0.02, 1)
    assert few is not None
    assert many is not None
    assert few.repeats == many.repeats
    assert few.at_most is not None
    assert many.at_most is not None
    assert few.repeats is not None
    assert few.repeats < many.at_most < few.at_most

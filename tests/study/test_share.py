"""The share of what can be won, against its own definition."""

import math

import numpy as np
import pytest

from equipoise.study.share import share


def test_the_ends_of_the_scale():
    assert share([0.2, 0.3], [0.2, 0.3], [0.1, 0.1]).mean == 0.0
    assert share([0.2, 0.3], [0.1, 0.1], [0.1, 0.1]).mean == 1.0
    assert share([0.2, 0.3], [0.3, 0.4], [0.1, 0.1]).mean < 0


def test_a_policy_that_wins_the_same_share_everywhere_has_no_spread():
    found = share([0.2, 0.4, 0.6], [0.11, 0.22, 0.33], [0.02, 0.04, 0.06])
    assert found.mean == pytest.approx(0.5)
    assert found.high - found.low == pytest.approx(0.0, abs=1e-12)


def test_nothing_to_win_has_no_share_and_one_seed_no_interval():
    assert math.isnan(share([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]).mean)
    one = share([0.2], [0.1], [0.0])
    assert one.mean == pytest.approx(0.5)
    assert one.method == "none"


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        base = rng.normal(0.2, 0.02, 5)
        best = rng.normal(0.02, 0.002, 5)
        policy = base - 0.9 * (base - best) + rng.normal(0, 0.002, 5)
        found = share(base, policy, best)
        held += found.low <= 0.9 <= found.high
    assert 0.90 <= held / 400 <= 0.99

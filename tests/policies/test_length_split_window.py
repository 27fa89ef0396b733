"""``length_split``: its sliding percentile against numpy, and its rule against the article's sentence."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cost import StepCost, Term
from equipoise.policies import get
from equipoise.policies.length_split import percentile_length
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round, rounds
from equipoise.testing.strategies import generators, lengths

COST = StepCost("requests", (Term("all"),))
exactly = settings(max_examples=60, deadline=None, derandomize=True)


@exactly
@given(st.integers(1, 60), generators(), st.integers(0, 100))
def test_percentile_is_nearest_rank(n, rng, percentile):
    values = np.sort(lengths(rng, n, 1000))
    expected = np.percentile(values, percentile, method="inverted_cdf")
    found = percentile_length(values, n, float(percentile))
    rank = max(1, math.ceil(Fraction(percentile * n, 100)))
    assert found == values[rank - 1]
    # numpy rounds percentile / 100 * n in floating point: it may be one rank high where that is a whole number
    assert found == expected or (percentile * n % 100 == 0 and found <= expected)


@pytest.mark.parametrize(
    ("percentile", "count", "rank"), [(55, 100, 55), (7, 100, 7), (99.9, 1000, 999), (0.1, 1000, 1)]
)
def test_percentile_is_not_lifted_by_rounding(percentile, count, rank):
    """0.55 * 100 is 55.00000000000001 in floating point; the 55th percentile of 100 values is still the 55th."""
    assert percentile_length(np.arange(1, count + 1), count, percentile) == rank


@exactly
@given(st.integers(1, 12), st.integers(1, 60), generators(), st.sampled_from([0, 20, 50, 80, 100]))
def test_window_slides_over_placed_requests(window, n, rng, percentile):
    """Long or short, by the percentile of the last N placed before it: on ranks where the two rules disagree."""
    policy = get("length_split", window=window, percentile=percentile)
    memory, seen = make_round([[]], [1], COST).memory(policy), []
    for length in lengths(rng, n, 200).tolist():
        # rank 0 has the fewest requests, rank 1 the fewest tokens
        answer = ask(policy, make_round([[900], [1, 1]], [length], COST), memory)
        recent = sorted(seen[-window:])
        rank = max(1, math.ceil(Fraction(percentile * len(recent), 100)))
        is_long = bool(recent) and length > recent[rank - 1]
        assert answer.chosen == [0 if is_long else 1]
        memory = answer.memory
        seen.append(length)


@exactly
@given(rounds(), st.integers(1, 6), st.integers(0, 100))
def test_swapped_exchanges_the_rules(case, window, percentile):
    """From one window, a request that goes by batch as written goes by tokens when swapped, and the other way round."""
    written, swapped = (
        get("length_split", window=window, percentile=percentile, swapped=s) for s in (False, True)
    )
    by_batch, by_tokens = get("least_batch"), get("least_tokens")
    memory = case.memory(written)
    warm = ask(written, make_round([[]], [20, 40, 60][:window], COST), memory).memory
    one = case.requests._replace(**{n: c[:1] for n, c in case.requests._asdict().items()})
    case.requests = one
    answers = {ask(p, case, warm).chosen[0] for p in (written, swapped)}
    assert answers == {ask(p, case, case.memory(p)).chosen[0] for p in (by_batch, by_tokens)}


def test_a_request_that_waits_is_counted_once_when_it_is_placed():
    policy = get("length_split", window=3)
    case = make_round([[5]], [9], COST, max_batch=1)
    memory = case.memory(policy)
    blocked = ask(policy, case, memory)
    assert blocked.chosen == [-1]
    assert np.array_equal(blocked.memory.ints, memory.ints)

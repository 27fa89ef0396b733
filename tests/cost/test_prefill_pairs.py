"""Attended pairs against a walk over the positions of a prompt."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cost import pairs, saturated_pairs
from equipoise.cost.attended import MAX_POSITION
from equipoise.errors import CostError

small = st.integers(0, 60)


@given(offset=small, tokens=small, length=st.integers(0, 80))
def test_sums_over_positions(offset: int, tokens: int, length: int) -> None:
    positions = range(offset + 1, offset + tokens + 1)
    assert int(pairs(offset, tokens)) == sum(positions)
    assert int(saturated_pairs(offset, tokens, length)) == sum(min(p, length) for p in positions)


big = st.integers(0, MAX_POSITION)


@given(first=big, last=big, length=big)
def test_exact_up_to_the_bound(first: int, last: int, length: int) -> None:
    """Python's integers are the oracle: int64 must not have wrapped anywhere."""
    first, last = sorted((first, last))

    def reads(n: int) -> int:
        return n * (n + 1) // 2 if n <= length else length * (length + 1) // 2 + (n - length) * length

    assert int(pairs(first, last - first)) == (last * (last + 1) - first * (first + 1)) // 2
    assert int(saturated_pairs(first, last - first, length)) == reads(last) - reads(first)


def test_the_largest_counts_are_exact() -> None:
    assert int(pairs(0, MAX_POSITION)) == MAX_POSITION * (MAX_POSITION + 1) // 2
    assert int(saturated_pairs(0, MAX_POSITION, MAX_POSITION)) == int(pairs(0, MAX_POSITION))


@given(cuts=st.lists(st.integers(0, 100_000), min_size=1, max_size=8), length=st.integers(0, 150_000))
def test_chunking_a_prompt_changes_no_total(cuts: list[int], length: int) -> None:
    edges = [0, *sorted(cuts)]
    offset, tokens = np.array(edges[:-1]), np.diff(edges)
    assert pairs(offset, tokens).sum() == pairs(0, edges[-1])
    assert saturated_pairs(offset, tokens, length).sum() == saturated_pairs(0, edges[-1], length)


@given(offset=small, tokens=small, length=st.integers(0, 80))
def test_a_bound_only_takes_away(offset: int, tokens: int, length: int) -> None:
    whole, bounded = int(pairs(offset, tokens)), int(saturated_pairs(offset, tokens, length))
    assert bounded <= min(whole, tokens * length)
    assert int(saturated_pairs(offset, tokens, length + 1)) >= bounded
    assert int(saturated_pairs(offset, tokens, offset + tokens)) == whole


def test_arrays_broadcast_and_stay_int64() -> None:
    found = saturated_pairs(np.arange(4)[:, None], np.array([1, 2]), 3)
    assert found.dtype == np.int64
    assert found.tolist() == [[1, 3], [2, 5], [3, 6], [3, 6]]
    assert pairs(np.empty(0, dtype=np.int64), 5).shape == (0,)


@pytest.mark.parametrize(
    ("offset", "tokens", "says"),
    [
        (-1, 5, "offset = -1; must be from 0"),
        (0, -5, "tokens = -5"),
        (0.5, 1, "offset = 0.5; must be a whole number"),
        (float("nan"), 1, "offset = nan"),
        (float("inf"), 1, "offset = inf"),
        (10**30, 1, "offset"),
        (0, 2**31, "tokens = 2147483648"),
        (2**30, 2**30, "offset + tokens = 2147483648; must be at most 2147483647"),
        ("4", 1, "offset is of type"),
        (True, 1, "offset is of type bool"),
        (1 + 2j, 1, "offset is of type complex"),
        (Fraction(1, 2), 1, "offset is of type object"),
    ],
)
def test_senseless_counts_are_refused(offset: Any, tokens: Any, says: str) -> None:
    with pytest.raises(CostError) as caught:
        pairs(offset, tokens)
    assert says in str(caught.value)


def test_a_senseless_bound_is_refused() -> None:
    with pytest.raises(CostError, match="length = -1"):
        saturated_pairs(0, 1, -1)


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(CostError, match="offset"):
        pairs([[1], [2, 3]], 1)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(CostError, match="shape"):
        pairs([1, 2, 3], [1, 2])

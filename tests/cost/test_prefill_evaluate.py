"""The compiled price of a chunk is `PrefillCost.work`, to the last bit; and it never falls as the chunk grows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from equipoise import models
from equipoise.cost import derive_prefill
from equipoise.cost.attended import MAX_POSITION
from equipoise.cost.prefill_evaluate import chunk_work

compiled = njit(chunk_work)
PREFILLS = {name: derive_prefill(models.load(name)) for name in models.names()}


@pytest.mark.parametrize("name", PREFILLS)
def test_compiled_plain_and_array_prices_are_one(name: str) -> None:
    prefill, rng = PREFILLS[name], np.random.default_rng(3)
    prices = prefill.prices()
    for _ in range(50):
        # From single tokens to the last position that is counted.
        offset, tokens = (int(2 ** rng.uniform(0, 30)) for _ in range(2))
        work = prefill.work([[offset]], [[tokens]])[:, 0]
        for term in range(len(prefill.terms)):
            assert compiled(prices, term, offset, tokens) == work[term]
            assert chunk_work(prices, term, offset, tokens) == work[term]


@given(st.sampled_from(models.names()), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_longer_chunk_never_costs_less(name: str, offset: int, tokens: int) -> None:
    prices = PREFILLS[name].prices()
    for term in range(len(prices.token)):
        assert chunk_work(prices, term, offset, tokens) <= chunk_work(prices, term, offset, tokens + 1)


def test_the_last_position_does_not_wrap() -> None:
    prefill = PREFILLS["glm-5.3"]
    work = prefill.work([[0]], [[MAX_POSITION]])[:, 0]
    assert [compiled(prefill.prices(), t, 0, MAX_POSITION) for t in range(2)] == work.tolist()

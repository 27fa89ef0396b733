"""Loads worked out from answers: against a naive twin, and against the simulator's own account."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import STEP, mixture

from equipoise import Pool
from equipoise.fleet import simulate
from equipoise.live.findings.loads import Lives, grid, loads_at, max_over_mean, step_ms, token_mean_ms

one = st.tuples(
    st.floats(0, 10), st.floats(0.01, 10), st.integers(1, 10_000), st.integers(2, 500), st.integers(-1, 3)
)


@given(st.lists(one, min_size=1, max_size=12), st.lists(st.floats(0, 20), min_size=1, max_size=8))
@settings(max_examples=60)
def test_against_the_naive_twin(
    requests: list[tuple[float, float, int, int, int]], moments: list[float]
) -> None:
    first, span, prompt, tokens, rank = (np.array(c) for c in zip(*requests, strict=True))
    at = np.sort(np.array(moments))
    found = loads_at(Lives(first, first + span, prompt, tokens, rank), at, 4)
    for k, t in enumerate(at):
        for r in range(4):
            here = [q for q in requests if q[4] == r and q[0] <= t < q[0] + q[1]]
            assert found.batch[k, r] == len(here)
            exact = sum(p + 1 + (n - 1) * (t - a) / d for a, d, p, n, _ in here)
            assert found.context_tokens[k, r] == pytest.approx(exact, rel=1e-6, abs=1e-3)


def test_prices_of_a_simulated_run_are_found_again() -> None:
    """The simulator prices every step by its true loads; from the answers alone the mean comes out the same."""
    result = simulate(mixture(), Pool(ranks=4), "least_tokens", STEP, mode="timed")
    frame = result.requests_frame()
    lives = Lives(
        *(frame[c].to_numpy() for c in ("first_token_s", "ended_s", "context_tokens", "tokens")),
        frame["rank"].to_numpy().astype(np.int64),
    )
    loads = loads_at(lives, grid(lives), 4)
    gaps = lives.output_tokens - 1
    measured = 1000 * float((lives.last_s - lives.first_s).sum() / gaps.sum())
    assert token_mean_ms(step_ms(STEP, loads, [4]), loads, [4]) == pytest.approx(measured, rel=0.01)


def test_largest_over_mean() -> None:
    assert max_over_mean(np.array([[2.0, 2.0], [4.0, 0.0]]), [2]) == pytest.approx(6 / 4)
    assert max_over_mean(np.array([[2.0, 2.0, 4.0, 0.0]]), [2, 2]) == pytest.approx(6 / 4)
    assert np.isnan(max_over_mean(np.zeros((3, 2)), [2]))

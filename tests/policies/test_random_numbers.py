"""The random stream: MRG32k3a as published, exact in 64 bits, uniform enough to draw ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from equipoise._jit import compiled
from equipoise.cost import StepCost, Term
from equipoise.policies import get
from equipoise.policies.random_numbers import M1, M2, STATE_SIZE, below, seed_state
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round

COST = StepCost("requests", (Term("all"),))
PUBLISHED = [
    0.1270111220465770,
    0.3185275653967945,
    0.3091860155832701,
    0.8258468629271136,
    0.2216299157820229,
]
"""First numbers from the seed (12345, ..., 12345), as L'Ecuyer's RngStreams and its ports print them."""


@compiled("int64(int64[::1], int64)")
def compiled_below(state, n):
    return below(state, n)


def big_number_stream(state, count):
    """The recurrences in Python's unbounded integers."""
    (a, b, c), (d, e, f) = (int(s) for s in state[:3]), (int(s) for s in state[3:])
    for _ in range(count):
        a, b, c = b, c, (1403580 * b - 810728 * a) % 4294967087
        d, e, f = e, f, (527612 * f - 1370589 * d) % 4294944443
        yield (c - f) % 4294967087


@pytest.mark.parametrize("draw", [below, compiled_below])
def test_published_numbers(draw):
    state = np.full(STATE_SIZE, 12345, dtype=np.int64)
    assert [draw(state, M1) / (M1 + 1) for _ in PUBLISHED] == pytest.approx(PUBLISHED, abs=1e-15)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**63 - 1), st.integers(1, 2**21))
def test_compiled_equals_plain_equals_unbounded(seed, n):
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    seed_state(state, seed)
    assert ((state[:3] >= 1) & (state[:3] < M1)).all()
    assert ((state[3:] >= 1) & (state[3:] < M2)).all()
    expected = [x % n for x in big_number_stream(state, 30)]
    twin = state.copy()
    assert [int(below(twin, n)) for _ in range(30)] == expected
    assert [compiled_below(state, n) for _ in range(30)] == expected
    assert np.array_equal(state, twin)


def test_worst_states_do_not_overflow():
    """The largest words there can be: the products stay below 2**53."""
    for words in ([M1 - 1] * 3 + [M2 - 1] * 3, [M1 - 1, 0, 0, M2 - 1, 0, 0], [0, M1 - 1, 0, 0, 0, M2 - 1]):
        state = np.array(words, dtype=np.int64)
        expected = list(big_number_stream(state, 50))
        assert [compiled_below(state, M1) for _ in range(50)] == expected


@pytest.mark.parametrize("n", [2, 7, 64, 1000])
def test_draws_are_uniform_and_independent(n):
    """Chi-square of single draws, and of pairs of neighbours."""
    state = np.zeros(STATE_SIZE, dtype=np.int64)
    seed_state(state, n)
    draws = np.array([compiled_below(state, n) for _ in range(100_000)])
    assert stats.chisquare(np.bincount(draws, minlength=n)).pvalue > 1e-4
    coarse = draws * 8 // n if n >= 8 else draws
    cells = 8 if n >= 8 else n
    weights = np.bincount(np.arange(n) * 8 // n if n >= 8 else np.arange(n), minlength=cells) / n
    pairs = np.bincount(coarse[:-1:2] * cells + coarse[1::2], minlength=cells * cells)
    assert stats.chisquare(pairs, np.outer(weights, weights).ravel() * pairs.sum()).pvalue > 1e-4


def test_streams_of_different_seeds_differ():
    states = np.zeros((500, STATE_SIZE), dtype=np.int64)
    for seed, state in enumerate(states):
        seed_state(state, seed)
    assert len({compiled_below(state, M1) for state in states}) == 500


def choices(name, running, times, **limits):
    """Ranks drawn for one request, over and over with one memory."""
    policy = get(name)
    case, chosen = make_round(running, [5], COST, **limits), []
    memory = case.memory(policy, 4)
    for _ in range(times):
        answer = ask(policy, case, memory, compiled=True)
        memory = answer.memory
        chosen += answer.chosen
    return chosen


def test_random_draws_ranks_with_room_evenly():
    chosen = choices("random", [[], [1] * 9, [], [1] * 9, [1]], 1200, max_batch=9)
    counts = np.bincount(chosen, minlength=5)
    assert counts[1] == counts[3] == 0
    assert stats.chisquare(counts[[0, 2, 4]]).pvalue > 1e-4


def test_power_of_two_takes_the_smaller_of_two_different_ranks():
    """Of four ranks with 0, 1, 2, 3 requests the k-th wins against those above it: 3, 2, 1, 0 of 6 pairs."""
    counts = np.bincount(choices("power_of_two", [[], [1], [1] * 2, [1] * 3], 1200), minlength=4)
    assert counts[3] == 0
    assert stats.chisquare(counts[:3], np.array([3, 2, 1]) * 200).pvalue > 1e-4


def test_power_of_two_breaks_ties_evenly():
    counts = np.bincount(choices("power_of_two", [[1]] * 3, 1200), minlength=3)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_round_robin_goes_round_and_skips_full_ranks():
    policy = get("round_robin")
    case = make_round([[], [1, 1], [], []], [5] * 9, COST, max_batch=2)
    answer = ask(policy, case, case.memory(policy))
    assert answer.chosen == [0, 2, 3, 0, 2, 3, -1, -1, -1]
    assert ask(policy, case, answer.memory).chosen[:3] == [0, 2, 3]
    free = make_round([[]] * 4, [5] * 6, COST)
    first = ask(policy, free, free.memory(policy))
    assert first.chosen == [0, 1, 2, 3, 0, 1]
    assert ask(policy, free, first.memory).chosen[0] == 2

"""``dualpath`` against the paper's steps, written down naively (arXiv 2602.21548, decode phase 2)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cost import StepCost, Term
from equipoise.policies import get
from equipoise.policies.dualpath import poolable_tokens, token_limit
from equipoise.replay.layout import UNLIMITED_TOKENS
from equipoise.replay.pool import MAX_RANKS
from equipoise.testing.policy_contract import ask
from equipoise.testing.rounds import make_round, rounds

COST = StepCost("requests", (Term("all"),))


def papers_rule(case, z, average):
    """The paper's steps in whole and rational numbers; ``average="current"`` is the article's short reading."""
    seq, tok = case.ranks.batch.tolist(), case.ranks.context_tokens.tolist()
    hbm, slots = case.ranks.free_tokens.tolist(), case.ranks.free_slots.tolist()
    queue, takes = case.requests.context_tokens.tolist(), case.requests.reserve_tokens.tolist()
    engines = range(len(seq))

    pooled = sum(free for free in hbm if free > 0)  # step 1: the free memory, were it one pool
    prefix = 0
    while prefix < len(queue) and sum(takes[: prefix + 1]) <= pooled:
        prefix += 1
    threshold = z * (sum(queue[:prefix]) + sum(tok)) / len(seq)  # step 2

    chosen = []
    for length, room in zip(queue, takes, strict=True):
        fitting = [e for e in engines if hbm[e] >= room and slots[e] > 0]  # step 3
        if not fitting:  # step 6: the fetch ends
            break
        if average == "projected":
            low = [e for e in fitting if tok[e] + length <= threshold]  # step 4
        else:
            low = [e for e in fitting if tok[e] < z * Fraction(sum(tok), len(seq))]
        best = min(low, key=lambda e: seq[e]) if low else min(fitting, key=lambda e: tok[e])  # step 5
        chosen.append(best)
        seq[best] += 1
        tok[best] += length
        hbm[best] -= room
        slots[best] -= 1
    return chosen + [-1] * (len(queue) - len(chosen))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rounds(max_requests=12), st.integers(0, 4 * 64), st.sampled_from(["projected", "current"]))
def test_dualpath_takes_the_papers_steps(case, z64, average):
    z = Fraction(z64, 64)  # sixty-fourths are exact in binary, so the comparison is exact too
    policy = get("dualpath", z=float(z), average=average)
    answer = ask(policy, case, case.memory(policy), compiled=True)
    assert answer.chosen == papers_rule(case, z, average)


@pytest.mark.parametrize(
    ("running", "waiting", "projected", "current"),
    [
        # almost empty: what is about to arrive makes both ranks low, and the smaller batch counts; the current mean
        # of 3.5 tokens calls the second rank high
        ([[1, 1], [5]], [100, 100], [1, 0], [0, 1]),
        # even: 40 tokens would be above 1.05 times the projected mean of 35, 30 are not above the current mean
        ([[10, 20], [30]], [10], [0], [1]),
    ],
)
def test_the_two_readings_of_the_average(running, waiting, projected, current):
    case = make_round(running, waiting, COST)
    for average, expected in (("projected", projected), ("current", current)):
        policy = get("dualpath", average=average)
        assert ask(policy, case, case.memory(policy)).chosen == expected
        assert papers_rule(case, Fraction(105, 100), average) == expected


@pytest.mark.parametrize(
    ("z", "tokens", "ranks"), [(1.05, 20, 1), (1.05, 2000, 100), (1.1, 30, 3), (1.3, 10, 1)]
)
def test_threshold_of_decimal_factors(z, tokens, ranks):
    """A factor with two decimals gives the threshold that decimal arithmetic gives."""
    assert token_limit(z, tokens, ranks) == Fraction(str(z)) * tokens // ranks


def test_memory_of_the_largest_pool_does_not_overflow():
    case = make_round([[]] * 4, [5, 6], COST)
    free = np.full(MAX_RANKS, UNLIMITED_TOKENS)
    assert poolable_tokens(case.ranks._replace(free_tokens=free), case.requests) == 11

"""Sums of ranks against the plain twin, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance, prices

from equipoise.control import RankDrafts, Snapshot, VerifyPrice, worth
from equipoise.control.evaluate import Worth
from equipoise.control.loads import Loads
from equipoise.control.slack import slack_turned
from equipoise.cost import load


def same(a: Worth, b: Worth) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_equal_to_the_plain_twin_and_without_a_request(seed: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot = instance(rng, int(rng.integers(1, 6)), 5, int(rng.integers(1, 5)))
    n = len(snapshot.context_tokens)
    saturated = VerifyPrice(load("h200-vllm-kimi-k2"), query_reads=0.5)
    price = saturated if rng.random() < 0.3 else prices(rng)
    lengths = rng.integers(0, snapshot.drafts + 1, n)
    loads = Loads(snapshot, price, lengths)
    assert same(loads.worth(), worth(snapshot, price, lengths))
    if n:
        row = int(rng.integers(n))
        rank = int(np.searchsorted(snapshot.first, row, side="right")) - 1
        loads.leave_out(row, rank)
        keep = np.arange(n) != row
        first = np.concatenate([[0], np.cumsum(keep)])[snapshot.first]
        left = Snapshot(snapshot.context_tokens[keep], snapshot.survival[keep], first)
        assert same(loads.worth(), worth(left, price, lengths[keep]))


def test_slack_is_that_of_ranks_with_a_draft_worth_verifying() -> None:
    price = VerifyPrice(load("v2"))
    snapshot = Snapshot.of(
        [
            RankDrafts([500_000] * 4, [[0.9, 0.5]] * 4),
            RankDrafts([1_000] * 4, [[0.9, 0.5]] * 4),
            RankDrafts([1_000] * 4, [[0.9, 0.2]] * 4),  # its next draft survives too rarely
        ]
    )
    own, plan = np.array([1] * 12), np.array([0] * 4 + [2] * 4 + [1] * 4)
    alone, ours = worth(snapshot, price, own), worth(snapshot, price, plan)
    found = slack_turned(snapshot, own, alone, ours)
    assert found.before == pytest.approx(alone.barrier * 2 - alone.work[:2].sum())
    assert found.gone == pytest.approx(found.before - (ours.barrier * 2 - ours.work[:2].sum()))
    assert found.gone == pytest.approx(found.filled + 2 * (alone.barrier - ours.barrier))
    assert slack_turned(snapshot, own * 2, alone, ours).before == 0

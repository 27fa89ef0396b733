"""The distributed form: one plan on all ranks, close to the central one, from small messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance, prices

from equipoise.control import (
    OwnCurve,
    RankDrafts,
    Snapshot,
    VerifyPrice,
    agree,
    allocate,
    message_bytes,
    worth,
)
from equipoise.cost import load
from equipoise.errors import InputError


def shared_rate(snapshot, price, points: int = 16) -> float:  # type: ignore[no-untyped-def]
    own = [OwnCurve(snapshot.rank(r), price) for r in range(snapshot.ranks)]
    plan = agree([curve.message(points) for curve in own], price)
    lengths = np.concatenate([curve.lengths(plan, plan.for_step) for curve in own])
    found = worth(snapshot, price, lengths)
    assert (found.queries <= max(plan.cap_queries, np.diff(snapshot.first).max())).all()
    return found.rate


def test_sixteen_points_lose_little() -> None:
    rng = np.random.default_rng(7)
    price = VerifyPrice(load("h200"))
    lost = []
    for _ in range(6):
        snapshot = instance(rng, 8, 64, 5, step=3)
        lost.append(1 - shared_rate(snapshot, price) / allocate(snapshot, price).rate)
    assert max(lost) < 0.02
    assert np.mean(lost) < 0.005


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_all_ranks_compute_the_same_bytes(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot, price = instance(rng, ranks, 30, 4, step=9), prices(rng)
    own = [OwnCurve(snapshot.rank(r), price) for r in range(ranks)]
    messages = [curve.message() for curve in own]
    assert {len(m) for m in messages} == {message_bytes(price)}
    plans = {agree([bytes(m) for m in messages], price, 2).to_bytes() for _ in range(ranks)}
    assert len(plans) == 1
    assert len(plans.pop()) == 48


def test_a_message_is_small() -> None:
    assert message_bytes(VerifyPrice(load("h200"))) == 340


@pytest.mark.parametrize("free", [0.0, 150.0])
@pytest.mark.parametrize("graphs", [(), (8, 64, 256, 512)])
def test_a_price_of_experts_is_found_from_the_messages(graphs: tuple[int, ...], free: float) -> None:
    """Also where only a plan between two captured sizes is any good."""
    rng = np.random.default_rng(2)
    for charge in (5.0, 60.0, 300.0):
        snapshot = instance(rng, 4, 64, 5)
        price = VerifyPrice(load("h200"), graphs, query_reads=0.0, ep_per_query=charge, ep_free_queries=free)
        assert shared_rate(snapshot, price) >= allocate(snapshot, price).rate * 0.98


def test_a_deadline_belongs_to_its_captured_size() -> None:
    """All but one query token fit the smallest size; looked at from the next one, no late deadline is any good."""
    price = VerifyPrice(load("v2"), (8, 64, 256, 512), query_reads=0.5)
    ranks = [
        RankDrafts([3098, 306, 421], [[0.58, 0.42], [0.94, 0.9], [0.56, 0.38]]),
        RankDrafts([3228, 676, 3712], [[0.51, 0.29], [0.9, 0.82], [0.78, 0.68]]),
        RankDrafts([4403], [[0.94, 0.62]]),
        RankDrafts([2506, 2238, 626], [[0.5, 0.29], [0.99, 0.98], [0.97, 0.7]]),
    ]
    snapshot = Snapshot.of(ranks)
    assert shared_rate(snapshot, price) >= 0.99 * allocate(snapshot, price).rate


def test_bad_messages_and_steps_are_said() -> None:
    price = VerifyPrice(load("v2"))
    own = OwnCurve(RankDrafts([10, 20], [[0.5], [0.4]], step=4), price)
    good = own.message()
    for bad in (b"", good[:-1], b"x" + good[1:], good + b"\0", good[:20] + b"\xff" * (len(good) - 20)):
        with pytest.raises(InputError, match="rank 1"):
            agree([good, bad], price)
    other = OwnCurve(RankDrafts([10], [[0.5]], step=5), price).message()
    with pytest.raises(InputError, match="steps 4, 5"):
        agree([good, other], price)
    with pytest.raises(InputError, match="no message"):
        agree([], price)
    plan = agree([good], price)
    with pytest.raises(InputError, match="earlier steps only"):
        own.lengths(plan, 4)

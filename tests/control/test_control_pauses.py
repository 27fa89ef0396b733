"""Pauses keep their bound on unfairness whatever the load does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.control import Pauses, RankDrafts, Snapshot, VerifyPrice
from equipoise.cost import load
from equipoise.errors import InputError

PRICE = VerifyPrice(load("v2"))


@settings(max_examples=6)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5))
def test_no_request_sits_out_longer_or_rests_shorter(seed: int, most: int, rest: int) -> None:
    rng = np.random.default_rng(seed)
    pauses = Pauses(most, rest, most_share=0.5, least_gain=0.0)
    context = rng.lognormal(10, 2, 20).astype(np.int64)
    rank_of = np.sort(rng.integers(0, 4, 20))
    ran = np.zeros((30, 20), dtype=bool)
    for step in range(30):
        context = np.clip((context * rng.uniform(0.5, 2.0, 20)).astype(np.int64), 1, 10_000_000)
        ran[step] = ~pauses.paused(np.arange(20))
        rows = np.flatnonzero(ran[step])
        first = np.concatenate([[0], np.cumsum(np.bincount(rank_of[rows], minlength=4))])
        snapshot = Snapshot(context[rows], np.zeros((len(rows), 1), np.float32), first, step)
        pauses.decide(snapshot, PRICE, np.zeros(len(rows), np.int64), rows)
    for request in ran.T:
        runs = np.split(request, np.flatnonzero(np.diff(request)) + 1)
        assert all(len(part) <= most for part in runs if not part[0])
        assert all(len(part) >= rest for part in runs[1:-1] if part[0])
    assert pauses.longest_pause_steps <= most
    assert pauses.least_share == rest / (rest + most)


def test_the_straggler_is_paused_where_it_pays_and_not_where_it_does_not() -> None:
    def paused(contexts: list[list[int]]) -> list[bool]:
        snapshot = Snapshot.of([RankDrafts(c, np.zeros((len(c), 1))) for c in contexts])
        n = len(snapshot.context_tokens)
        pauses = Pauses(most_share=0.5)
        pauses.decide(snapshot, PRICE, np.zeros(n, np.int64), np.arange(n))
        return pauses.paused(np.arange(n)).tolist()

    assert paused([[10] * 8, [10] * 7 + [5_000_000]])[-1]
    assert not any(paused([[10_000] * 8, [10_000] * 8]))


def test_bad_settings_are_said() -> None:
    for make in (
        lambda: Pauses(-1),
        lambda: Pauses(rest_steps=0),
        lambda: Pauses(most_share=2),
    ):
        with pytest.raises(InputError):
            make()

"""The plan: turns that favour nobody, and what cannot be is said before an engine is asked."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from equipoise.engines import WorkerSpec
from equipoise.errors import InputError
from equipoise.live.plan import LivePlan, digest, order_of_runs, planned, scaled
from equipoise.live.rows import TABLES
from equipoise.traces import Trace, synth


@pytest.mark.parametrize("n", range(1, 9))
def test_a_square_balances_places_and_neighbours(n: int) -> None:
    rows = order_of_runs(n, 2 * n if n % 2 else n)
    assert all(sorted(row) == list(range(n)) for row in rows)
    for place in range(n):
        assert len(set(Counter(row[place] for row in rows).values())) == 1
    follows = Counter((a, b) for row in rows for a, b in pairwise(row))
    assert len(follows) == n * (n - 1)
    assert len(set(follows.values())) <= 1


def test_any_number_of_repeats() -> None:
    assert [len(order_of_runs(3, r)) for r in (1, 4, 7)] == [1, 4, 7]


def plan(**changes: Any) -> LivePlan:
    made: dict[str, Any] = {
        "trace": synth("chat-short", 20, 0),
        "workers": (WorkerSpec("http://a:1"),),
        "policies": ("least_batch", "engine"),
    }
    return LivePlan(**{**made, **changes})


def test_runs_are_paired() -> None:
    runs = plan(repeats=3).runs
    assert Counter(runs) == {(p, r): 1 for p in ("least_batch", "engine") for r in range(3)}
    assert [r for _, r in runs] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"repeats": 0}, "--repeats"),
        ({"scale": float("nan")}, "--scale"),
        ({"scale": 0.0}, "--scale"),
        ({"workers": ()}, "--url"),
        ({"policies": ()}, "--policies"),
        ({"policies": ("a", "a")}, "--policies"),
        ({"mode": "closed"}, "--mode"),
        ({"concurrency": 4}, "--mode"),
        ({"mode": "closed", "concurrency": 0}, "--concurrency"),
        ({"mode": "sessions"}, "--mode"),
        ({"route": "/generate"}, "--route"),
        ({"route": "/x", "engine": "sglang"}, "--route"),
        ({"timeout_s": 0.0}, "--timeout-s"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError, match=where):
        plan(**changes)


def test_all_at_once_is_no_open_load() -> None:
    flat = Trace.from_columns("flat", np.zeros(5), np.full(5, 9), np.full(5, 9))
    with pytest.raises(InputError, match="closed"):
        plan(trace=flat)
    plan(trace=flat, mode="closed", concurrency=2)


def test_scaling_and_the_table() -> None:
    trace = synth("chat-short", 50, 0)
    assert scaled(trace, 1.0, 1.0) is trace
    half = scaled(trace, 0.5, 1e-6)
    assert np.abs(half.context_tokens - trace.context_tokens / 2).max() <= 0.5
    assert set(half.output_tokens.tolist()) == {1}
    assert digest(half) != digest(trace) == digest(synth("chat-short", 50, 0))
    with pytest.raises(InputError, match="prompt-scale"):
        scaled(trace, 0.0, 1.0)
    assert list(planned(trace).columns) == list(TABLES["trace"])
    assert planned(trace)["prompt_tokens"].to_list() == trace.context_tokens.tolist()

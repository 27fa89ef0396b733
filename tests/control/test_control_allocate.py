"""Laws of the allocator, and the fast method against all plans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance, prices, random_case

from equipoise.control import (
    RankDrafts,
    Snapshot,
    VerifyPrice,
    allocate,
    allocate_verify,
    best_by_enumeration,
    worth,
)
from equipoise.cost import StepCost, Term, load
from equipoise.errors import InputError

SEEDS = st.integers(0, 2**32 - 1)


def rate(snapshot: Snapshot, price: VerifyPrice) -> float:
    plan = allocate(snapshot, price)
    found = worth(snapshot, price, plan.lengths(snapshot.step + 1))
    assert plan.tokens == pytest.approx(found.tokens, rel=1e-9)
    assert plan.price == pytest.approx(found.price, rel=1e-9)
    assert (plan.queries == found.queries).all()
    return found.rate


def check_against_all_plans(cases: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(cases):
        snapshot, price = random_case(rng)
        _, best = best_by_enumeration(snapshot, price)
        assert best * 0.995 <= rate(snapshot, price) <= best * (1 + 1e-9)


def test_within_half_a_percent_of_the_best_of_all_plans() -> None:
    check_against_all_plans(150, 1)


@pytest.mark.proof
def test_within_half_a_percent_of_the_best_of_all_plans_a_thousand_times() -> None:
    check_against_all_plans(1000, 2)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 5), st.integers(1, 40), st.integers(0, 6))
def test_never_below_one_length_for_all(seed: int, ranks: int, requests: int, drafts: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot, price = instance(rng, ranks, requests, drafts), prices(rng)
    found = rate(snapshot, price)
    for length in range(drafts + 1):
        lengths = np.full(len(snapshot.context_tokens), length)
        assert worth(snapshot, price, lengths).rate <= found * (1 + 1e-9)


@settings(max_examples=40)
@given(SEEDS, st.integers(2, 6), st.integers(1, 300))
def test_a_permutation_of_the_ranks_permutes_the_plan(seed: int, ranks: int, requests: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot, price = instance(rng, ranks, requests, 5), prices(rng)
    order = rng.permutation(ranks)
    plan = allocate(snapshot, price)
    moved = allocate([snapshot.rank(r) for r in order], price)
    if len(snapshot.context_tokens) > 48:  # below, lengths are also tried one by one, in order
        for at, r in enumerate(order):
            assert (moved.lengths(1, at) == plan.lengths(1, r)).all()
    assert moved.rate == pytest.approx(plan.rate, rel=1e-3 if len(snapshot.context_tokens) <= 48 else 1e-12)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 3))
def test_the_best_rate_rises_with_survival_and_with_slack(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot, price = random_case(rng, ranks)
    _, before = best_by_enumeration(snapshot, price)
    surer = np.minimum(1, snapshot.survival + (1 - snapshot.survival) * rng.random())
    lighter = snapshot.context_tokens // 2
    _, sure = best_by_enumeration(Snapshot(snapshot.context_tokens, surer, snapshot.first), price)
    _, light = best_by_enumeration(Snapshot(lighter, snapshot.survival, snapshot.first), price)
    assert min(sure, light) >= before * (1 - 1e-6)
    # and so does the fast method's, within its distance from the best
    assert rate(Snapshot(snapshot.context_tokens, surer, snapshot.first), price) >= before * 0.995
    assert rate(Snapshot(lighter, snapshot.survival, snapshot.first), price) >= before * 0.995


@settings(max_examples=30)
@given(SEEDS)
def test_of_two_ranks_with_the_same_drafts_the_lighter_one_verifies_no_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one = instance(rng, 1, 64, 5)
    context = np.full(len(one.context_tokens), 60_000)
    ranks = [RankDrafts(context // part, one.survival) for part in (1, 2, 4)]
    queries = allocate(ranks, prices(rng)).queries
    assert queries[0] <= queries[1] <= queries[2]


@settings(max_examples=40)
@given(SEEDS, st.integers(1, 60), st.sampled_from([(), tuple(range(8, 400, 8)), (1, 2, 4, 50, 300)]))
def test_one_rank_is_the_known_argmax(seed: int, requests: int, graphs: tuple[int, ...]) -> None:
    """Expected tokens over the step's time, over all prefixes of the drafts sorted by survival."""
    rng = np.random.default_rng(seed)
    snapshot = instance(rng, 1, requests, 5)
    price = VerifyPrice(load("v2"), graph_sizes=graphs, query_reads=0.0)
    best = 0.0
    tokens, n = float(requests), requests
    read = int(snapshot.context_tokens.sum())

    def time(queries: int) -> float:
        run = min((g for g in graphs if g >= queries), default=queries)
        return float(price.cost.cost([run], [read]))

    best = tokens / time(n)
    for survival in sorted(snapshot.survival.ravel().tolist(), reverse=True):
        tokens, n = tokens + survival, n + 1
        best = max(best, tokens / time(n))
    assert rate(snapshot, price) == pytest.approx(best, rel=1e-6)


@settings(max_examples=30)
@given(SEEDS, st.integers(2, 5), st.integers(49, 90))
def test_without_slack_every_rank_does_what_it_would_do_alone(seed: int, ranks: int, requests: int) -> None:
    rng = np.random.default_rng(seed)
    # 48 requests and fewer are polished, which finds up to a percent more: alone and together alike here
    one, price = instance(rng, 1, requests, 4), prices(rng)
    alone = allocate(one, price)
    together = allocate([one.rank(0)] * ranks, price)
    assert together.rate == pytest.approx(alone.rate * ranks, rel=5e-3)
    assert len({tuple(together.lengths(1, r)) for r in range(ranks)}) == 1


def test_large_instances_find_what_small_ones_do() -> None:
    """Levels of survival instead of a full sort lose next to nothing."""
    from equipoise.control import layout

    rng = np.random.default_rng(5)
    for _ in range(12):
        snapshot, price = instance(rng, 8, 150, 5), prices(rng)
        binned = rate(snapshot, price)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(layout, "sorts_all", lambda *_: True)
            exactly = rate(snapshot, price)
        assert binned == pytest.approx(exactly, rel=1e-3)


def test_a_wrong_barrier_is_seen() -> None:
    """A step with one barrier and a step cost of two contextual terms are priced as the step cost says."""
    rng = np.random.default_rng(3)
    terms = (Term("a", 1.0, 1.0, 5.0), Term("b", 0.5, 2.0, 1.0), Term("c", 1.0, 0.5))
    for barrier in ("layer", "step"):
        cost = StepCost("two", terms, 3.0, barrier=barrier)
        snapshot = instance(rng, 4, 20, 3)
        lengths = rng.integers(0, 4, len(snapshot.context_tokens))
        found = worth(snapshot, VerifyPrice(cost), lengths)
        parts = [slice(snapshot.first[r], snapshot.first[r + 1]) for r in range(4)]
        queries = [int((1 + lengths[p]).sum()) for p in parts]
        reads = [int(((1 + lengths[p]) * snapshot.context_tokens[p]).sum()) for p in parts]
        assert found.price == pytest.approx(float(cost.cost(queries, reads)), rel=1e-12)


def test_a_plan_is_for_a_later_step_and_no_other() -> None:
    ranks = [RankDrafts([1000, 2000], [[0.9, 0.5], [0.8, 0.2]], step=41)]
    plan = allocate(ranks, VerifyPrice(load("v1")), horizon=2)
    assert (plan.observed_step, plan.for_step) == (41, 43)
    assert len(plan.lengths(43)) == 2
    for step in (40, 41, 42, 44):
        with pytest.raises(InputError, match="earlier steps only"):
            plan.lengths(step)
    for horizon in (0, -1, True, 1.5, None):
        with pytest.raises(InputError, match="may not depend on the drafts"):
            allocate(ranks, VerifyPrice(load("v1")), horizon)  # type: ignore[arg-type]


BAD: list[tuple[Any, Any, str]] = [
    ([1, 2], [[0.5, 0.6], [0.5, 0.1]], "never rise"),
    ([1], [[float("nan")]], "never rise"),
    ([1], [[1.5]], "never rise"),
    ([1], [[-0.1]], "never rise"),
    ([-1], [[0.5]], "context_tokens = -1"),
    ([1.5], [[0.5]], "context_tokens = 1.5"),
    ([1, 2], [[0.5]], "for 2 requests"),
    (["a"], [[0.5]], "context_tokens is of type"),
    ([[1], [2, 3]], [[0.5]], "ragged"),
    ([2**31], [[0.5]], "context_tokens = 2147483648"),
]


@pytest.mark.parametrize(("context", "survival", "words"), BAD)
@pytest.mark.parametrize("many", [1, 2000])
def test_bad_input_is_said(context: Any, survival: Any, words: str, many: int) -> None:
    good = RankDrafts(np.full(many, 10), np.full((many, len(survival[0])), 0.5))
    with pytest.raises(InputError, match=words):
        allocate([good, RankDrafts(context, survival)], VerifyPrice(load("v1")))


def test_ranks_of_different_steps_and_idle_ranks() -> None:
    with pytest.raises(InputError, match="steps 1, 2"):
        allocate([RankDrafts([], [], 1), RankDrafts([], [], 2)], VerifyPrice(load("v1")))
    with pytest.raises(InputError, match="no rank"):
        allocate([], VerifyPrice(load("v1")))
    idle = allocate(
        [RankDrafts([], []), RankDrafts([5], [[0.9]]), RankDrafts([], [])], VerifyPrice(load("v1"))
    )
    assert idle.queries.tolist() in ([0, 1, 0], [0, 2, 0])
    assert allocate([RankDrafts([], [])], VerifyPrice(load("v1"))).tokens == 0
    assert allocate_verify is allocate


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph_sizes": [8, 4]}, "do not rise"),
        ({"graph_sizes": [0]}, "graph_sizes holds 0"),
        ({"query_reads": 1.1}, "query_reads = 1.1"),
        ({"ep_per_query": float("nan")}, "ep_per_query = nan"),
        ({"ep_free_queries": -1}, "ep_free_queries = -1"),
    ],
)
def test_bad_prices_are_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        VerifyPrice(load("v1"), **options)

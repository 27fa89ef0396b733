"""Each strategy against a naive twin on small cases."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import instance, prices

from equipoise.control import Snapshot, VerifyPrice, worth
from equipoise.control.rank_argmax import PROFILED_TOKENS, best_within, profiled_times
from equipoise.control.strategies import parse_strategy, strategy
from equipoise.control.wait_slope import WaitSlope
from equipoise.cost import load
from equipoise.errors import InputError

SEEDS = st.integers(0, 2**32 - 1)


def profiled(price: VerifyPrice, queries: int) -> float:
    """A step of equal ranks, one query token for each of so many short requests."""
    short = Snapshot(np.full(queries, PROFILED_TOKENS), np.zeros((queries, 1)), np.array([0, queries]))
    return worth(short, price, np.zeros(queries, dtype=np.int64)).price


def ranks_of(snapshot: Snapshot) -> list[Snapshot]:
    return [Snapshot.of([snapshot.rank(r)]) for r in range(snapshot.ranks)]


def best_alone(rank: Snapshot, time) -> float:  # type: ignore[no-untyped-def]
    """The best rate of all combinations of lengths, on a curve of time against query tokens."""
    n = len(rank.context_tokens)
    return max(
        sum(1 + float(s[:k].sum()) for s, k in zip(rank.survival, lengths, strict=True))
        / time(n + sum(lengths))
        for lengths in itertools.product(range(rank.drafts + 1), repeat=n)
    )


def rate_alone(rank: Snapshot, lengths: np.ndarray, time) -> float:  # type: ignore[no-untyped-def, type-arg]
    tokens = sum(1 + float(s[:k].sum()) for s, k in zip(rank.survival, lengths, strict=True))
    return tokens / time(len(lengths) + int(lengths.sum()))


def split(snapshot: Snapshot, lengths: np.ndarray) -> list[np.ndarray]:  # type: ignore[type-arg]
    return np.split(lengths, snapshot.first[1:-1])


@settings(max_examples=8)
@given(SEEDS)
def test_argmax_is_the_best_of_all_on_the_profile(seed: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot, price = instance(rng, 3, 4, 3), prices(rng)
    found = strategy("argmax", price, 40).lengths(snapshot)
    for rank, mine in zip(ranks_of(snapshot), split(snapshot, found), strict=True):
        if len(mine):
            time = lambda q: profiled(price, q)  # noqa: E731
            assert rate_alone(rank, mine, time) == pytest.approx(best_alone(rank, time), rel=1e-6)


@settings(max_examples=8)
@given(SEEDS)
def test_argmax_own_is_the_best_of_all_on_the_true_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn, price = instance(rng, 1, 4, 3), prices(rng)
    equal = Snapshot(np.full(4, int(drawn.context_tokens[0])), drawn.survival, drawn.first)
    mine = strategy("argmax_own", price, 40).lengths(equal)
    best = max(
        worth(equal, price, np.array(lengths)).rate for lengths in itertools.product(range(4), repeat=4)
    )
    assert worth(equal, price, mine).rate == pytest.approx(best, rel=1e-6)


@settings(max_examples=8)
@given(SEEDS)
def test_padded_runs_the_largest_demand_on_all_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot = instance(rng, 4, 12, 3)
    price = VerifyPrice(load("h200"))
    rule, filled = (strategy(name, price, 100) for name in ("padded", "padded_filled"))
    lengths, more = rule.lengths(snapshot), filled.lengths(snapshot)
    demand = [len(k) + int(k.sum()) for k in split(snapshot, lengths)]
    level = -(-max(demand) // 8) * 8
    cost, total = load("h200"), 0.0
    for term in cost.terms:
        reads = [
            float((rank.context_tokens * (1 + k)).sum())
            for rank, k in zip(ranks_of(snapshot), split(snapshot, lengths), strict=True)
        ] if term.per_100k_context else [0.0]  # fmt: skip
        total += term.weight * (term.per_request * level + term.per_100k_context * max(reads) / 1e5)
    assert worth(snapshot, rule.price, lengths).price == pytest.approx(cost.constant + total, rel=1e-9)
    assert (more >= lengths).all()
    for k in split(snapshot, more):
        assert len(k) + k.sum() == min(level, 4 * len(k))
    graphs = VerifyPrice(load("h200"), range(8, 104, 8))
    assert strategy("argmax", graphs, 100).lengths(snapshot).tolist() == lengths.tolist()


@settings(max_examples=20)
@given(SEEDS)
def test_best_within_takes_the_drafts_that_survive_most_often(seed: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot = instance(rng, 4, 5, 3)
    budgets = rng.integers(-2, 18, 4)
    for rank, mine, budget in zip(
        ranks_of(snapshot), split(snapshot, best_within(snapshot, budgets)), budgets, strict=True
    ):
        drafts = sorted((-float(s), i) for i, row in enumerate(rank.survival) for s in row)
        naive = [0] * len(mine)
        for _, request in drafts[: max(0, budget)]:
            naive[request] += 1
        assert mine.tolist() == naive


def test_fixed_lengths_and_none() -> None:
    snapshot = instance(np.random.default_rng(1), 3, 4, 3)
    price = VerifyPrice(load("v2"))
    assert set(strategy("fixed,2", price, 9).lengths(snapshot).tolist()) == {2}
    assert set(strategy("fixed,9", price, 9).lengths(snapshot).tolist()) == {3}
    assert set(strategy("none", price, 9).lengths(snapshot).tolist()) == {0}


def test_the_slope_is_the_median_of_the_medians_of_common_graphs() -> None:
    rng = np.random.default_rng(3)
    profile = 100.0 + np.arange(60.0)
    slope = WaitSlope(profile, ())
    assert slope.sizes[[0, 1, 8, 9, 59]].tolist() == [0, 8, 8, 16, 64]
    assert slope.per_query(2).tolist() == [0.0, 0.0]
    seen: list[tuple[list[int], float]] = []
    for _ in range(64):
        queries, time = (
            rng.choice([5, 15, 20, 30, 55], 2, p=[0.3, 0.3, 0.3, 0.08, 0.02]),
            rng.uniform(120, 220),
        )
        slope.add(queries, time)
        seen.append((queries.tolist(), time))
    for rank, found in enumerate(slope.per_query(2)):
        by_graph: dict[int, list[float]] = {}
        for queries, time in seen:
            graph = -(-queries[rank] // 8) * 8
            by_graph.setdefault(graph, []).append((time - profile[queries[rank]]) / graph)
        medians = [float(np.median(v)) for v in by_graph.values() if len(v) >= 10]
        assert len(medians) in (3, 4)
        assert found == pytest.approx(max(0.0, float(np.median(medians))))


def test_a_light_rank_that_waits_believes_its_tokens_dear() -> None:
    """The weakness of profiles corrected with measured steps: waiting looks like the price of one's own tokens."""
    price = VerifyPrice(load("h200"))
    survival = np.tile(np.float32([0.8, 0.6, 0.4]), (24, 1))
    contexts = np.concatenate([np.full(8, 400_000), np.full(16, 4_000)])
    snapshot = Snapshot(contexts, survival, np.array([0, 8, 24]))
    rule = strategy("argmax_waits", price, 24 * 4)
    first = rule.lengths(snapshot)
    for _ in range(40):
        lengths = rule.lengths(snapshot)
        rule.measured(worth(snapshot, price, lengths).price)
    assert lengths[8:].sum() < first[8:].sum()


def test_a_budget_is_a_step_older_than_its_use() -> None:
    price = VerifyPrice(load("h200"))
    rng = np.random.default_rng(5)
    rule, plain = (strategy(name, price, 200) for name in ("argmax_waits", "argmax"))
    earlier, later = instance(rng, 3, 20, 3), instance(rng, 3, 20, 3)
    rule.lengths(earlier)
    sums = [int(k.sum()) for k in split(later, rule.lengths(later))]
    budgets = [len(k) + int(k.sum()) for k in split(earlier, plain.lengths(earlier))]
    sizes = np.diff(later.first)
    assert sums == [min(max(0, b - n), 3 * n) for b, n in zip(budgets, sizes, strict=True)]


def test_the_profile_is_that_of_equal_ranks() -> None:
    price = VerifyPrice(load("h200"), range(8, 48, 8), 1.0, 30.0, 4.0)
    for queries, found in enumerate(profiled_times(price, 50)):
        assert found == pytest.approx(profiled(price, queries), rel=1e-9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fixed", "give fixed its number"),
        ("argmax,3", "give fixed its number"),
        ("fixed,x", "give fixed its number"),
        ("fixed,²", "give fixed its number"),
        ("equipose", "no strategy named 'equipose'"),
        ("", "no strategy named ''"),
        ("equipoise+pause", "no means named 'pause'"),
        ("equipoise+", "no means named ''"),
        ("none+freezes+detours", "freezes or detours"),
    ],
)
def test_bad_names_are_said(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_strategy(name)


def test_names_are_taken_apart() -> None:
    found = parse_strategy("fixed,3+pauses+freezes")
    assert (found.kind, found.drafts, found.actuators) == ("fixed", 3, {"pauses", "freezes"})

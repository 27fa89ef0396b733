"""Prefill chunks: exact to a token, level, within the budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.control import Prompts, chunks_for_budget, chunks_for_time
from equipoise.cost import PrefillCost, PrefillTerm, Saturation
from equipoise.errors import InputError

PRICE = PrefillCost(
    (
        PrefillTerm("gemm", per_token=1.0, saturations=(Saturation(2048, 1.5),)),
        PrefillTerm("scan", 0.1, per_100k_pairs=3.0),
    )
)
QUEUES = st.lists(
    st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 20_000)), max_size=3), min_size=1, max_size=4
)


def prompts(queues: list[list[tuple[int, int]]]) -> list[Prompts]:
    return [Prompts([o for o, _ in q], [n for _, n in q]) for q in queues]


def time_of(queue: list[tuple[int, int]], chunks: np.ndarray) -> float:
    offsets = [[[o for o, _ in queue]]]
    return float(PRICE.work(offsets, [[chunks.tolist()]]).sum()) if queue else 0.0


@given(QUEUES, st.floats(0, 50_000), st.sampled_from([1, 64]))
def test_no_rank_is_late_and_none_could_take_more(
    queues: list[list[tuple[int, int]]], target: float, multiple: int
) -> None:
    plan = chunks_for_time(prompts(queues), PRICE, target, multiple=multiple)
    for queue, chunks, work in zip(queues, plan.chunks, plan.work, strict=True):
        assert work == pytest.approx(time_of(queue, chunks), rel=1e-9)
        assert work <= target * (1 + 1e-12)
        at = next((i for i, (_, n) in enumerate(queue) if chunks[i] < n), None)
        if at is not None:
            assert (chunks[at + 1 :] == 0).all()
            more = chunks.copy()
            more[at] = min(more[at] + multiple, queue[at][1])
            assert time_of(queue, more) > target


@given(QUEUES, st.integers(0, 60_000))
def test_a_budget_is_spent_and_spread(queues: list[list[tuple[int, int]]], budget: int) -> None:
    plan = chunks_for_budget(prompts(queues), PRICE, budget)
    waiting = sum(n for q in queues for _, n in q)
    assert plan.tokens.sum() == min(budget, waiting)
    # no rank is slower than the time within which all ranks together could not do less than the budget
    slowest = int(np.argmax(plan.work))
    if budget < waiting and plan.tokens[slowest] > 1:
        sooner = chunks_for_time(prompts(queues), PRICE, float(plan.work[slowest]) * (1 - 1e-9) - 1e-6)
        assert sooner.tokens.sum() <= budget


def test_longer_contexts_get_smaller_chunks() -> None:
    plan = chunks_for_budget([Prompts([0], [9000]), Prompts([400_000], [9000])], PRICE, 8192)
    assert plan.tokens[0] > plan.tokens[1] > 0
    assert plan.work[0] == pytest.approx(plan.work[1], rel=0.01)


def test_bounds_and_bad_input() -> None:
    two = [Prompts([0], [9000]), Prompts([0], [100])]
    assert chunks_for_time(two, PRICE, 1e9, most_tokens=50).tokens.tolist() == [50, 50]
    assert chunks_for_budget([], PRICE, 10).chunks == []
    for bad in (Prompts([0], [-1]), Prompts([0, 1], [5]), Prompts([2**31 - 1], [5]), Prompts([0.5], [1])):
        with pytest.raises(InputError):
            chunks_for_time([bad], PRICE, 1.0)
    with pytest.raises(InputError, match="target = nan"):
        chunks_for_time(two, PRICE, float("nan"))
    with pytest.raises(InputError, match="budget_tokens = -1"):
        chunks_for_budget(two, PRICE, -1)

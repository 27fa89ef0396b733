"""The oracle against enumeration, against the proof, against the replay that plays it back, against every policy."""

from itertools import product

import numpy as np
import pytest

from equipoise.cost import Saturation, StepCost, Term
from equipoise.errors import InputError
from equipoise.policies import names
from equipoise.replay import Pool, replay
from equipoise.study.oracle import Budget, ideal_cost, improve, oracle, plan_of, problem_of, solve
from equipoise.study.oracle.grid import true_cost
from equipoise.study.oracle.run_oracle import _plan
from equipoise.traces import Trace

LINEAR = StepCost("linear", (Term("a", 0.7), Term("b", 0.3, per_100k_context=1.3)), constant=0.5)
ONE_BARRIER = StepCost(
    "step", (Term("a", 0.7, batch_floor=2), Term("b", 0.3, per_100k_context=3.0)), barrier="step"
)
STAIRS = StepCost(
    "stairs",
    (
        Term("a", batch_table=(0.0, 2.0, 2.0, 5.0, 5.0, 5.5)),
        Term("b", 0.5, per_100k_context=1.0, saturations=(Saturation(30_000, 2.0),)),
    ),
)
COSTS = [LINEAR, ONE_BARRIER, STAIRS]


def draw(seed, requests=9, longest=8, most_context=90_000):
    rng = np.random.default_rng(seed)
    return Trace.from_columns(
        "drawn",
        np.sort(rng.uniform(0, 1e-4, requests)),
        rng.integers(1_000, most_context, requests),
        rng.integers(1, longest, requests),
    )


def small(seed, cost, ranks=2, concurrency=5, **pool):
    trace = draw(seed)
    result = replay(
        trace, Pool(ranks=ranks, **pool), "round_robin", cost, concurrency=concurrency, warmup_turnovers=0.0,
        keep_requests=True,
    )  # fmt: skip
    plan = _plan(result)
    return result, plan, problem_of(result, plan)


def enumerated(problem, cost):
    """Price of every assignment, by the step cost itself."""
    n, steps, ranks = len(problem.row), len(problem.counted), problem.ranks
    t = np.arange(steps)
    alive = (problem.start[:, None] <= t) & (t < problem.end[:, None])
    context = np.where(alive, problem.context[:, None] + t - problem.start[:, None], 0)
    where = np.array(list(product(range(ranks), repeat=n)))
    on = (where[:, :, None] == np.arange(ranks)).astype(np.int64)  # assignment, request, rank
    batch = np.einsum("aqr,qt->atr", on, alive.astype(np.int64))
    total = np.einsum("aqr,qt->atr", on, context)
    saturated = np.stack(
        [np.einsum("aqr,qt->atr", on, np.minimum(context, s)) for s in cost.saturation_tokens], axis=-1
    ) if cost.saturation_tokens else np.zeros((*batch.shape, 0), np.int64)  # fmt: skip
    return where, (cost.cost(batch, total, saturated) * problem.counted).sum(axis=1)


@pytest.mark.parametrize("cost", COSTS, ids=lambda c: c.name)
@pytest.mark.parametrize("seed", range(4))
def test_the_exact_solution_is_the_cheapest_of_all_assignments(cost, seed):
    _, _, problem = small(seed, cost)
    _, prices = enumerated(problem, cost)
    found = solve(problem)
    assert found.cost == pytest.approx(prices.min(), rel=1e-7)
    assert found.bound == pytest.approx(prices.min(), rel=1e-6)
    assert ideal_cost(problem) <= found.bound + 1e-9 <= found.cost + 2e-9


@pytest.mark.parametrize("limit", [{"max_batch": 3}, {"kv_capacity_tokens": 160_000}])
@pytest.mark.parametrize("seed", range(3))
def test_the_exact_solution_respects_the_capacity(limit, seed):
    _, _, problem = small(seed, LINEAR, **limit)
    where, prices = enumerated(problem, LINEAR)
    t = np.arange(len(problem.counted))
    alive = (problem.start[:, None] <= t) & (t < problem.end[:, None])
    context = np.where(alive, problem.context[:, None] + t - problem.start[:, None], 0)
    allowed = np.ones(len(where), bool)
    for r in range(problem.ranks):
        on = where == r
        starts = on @ (problem.start[:, None] == t) > 0
        if "max_batch" in limit:
            allowed &= ((on @ alive.astype(int)) <= limit["max_batch"]).all(axis=1)
        else:
            allowed &= ~(starts & (on @ context > limit["kv_capacity_tokens"])).any(axis=1)
    assert 0 < allowed.sum() < len(where)
    assert solve(problem).cost == pytest.approx(prices[allowed].min(), rel=1e-7)


@pytest.mark.parametrize("cost", COSTS, ids=lambda c: c.name)
def test_the_search_comes_near_the_proven_optimum_and_never_below(cost):
    gaps = []
    for seed in range(8):
        result, plan, problem = small(seed, cost, ranks=3, concurrency=6)
        proven = solve(problem, seconds=30)
        found = improve(problem, plan.rank[problem.row], Budget(candidates=60_000), seed=seed)
        assert found.cost >= proven.bound * (1 - 1e-9)
        assert found.cost == pytest.approx(true_cost(problem, found.rank), rel=1e-12)
        assert found.start_cost == pytest.approx(result.outcome.totals[1], rel=1e-12)
        gaps.append(found.cost / proven.cost - 1)
    print(gaps)
    assert np.mean(gaps) <= 0.005
    assert max(gaps) <= 0.03


@pytest.mark.parametrize("limit", [{}, {"max_batch": 9}, {"kv_capacity_tokens": 500_000}])
@pytest.mark.parametrize("cost", COSTS, ids=lambda c: c.name)
def test_played_back_the_plan_costs_what_the_search_says(cost, limit):
    trace, pool = draw(7, requests=400, longest=60), Pool(ranks=4, **limit)
    options = {"concurrency": 30, "keep_requests": True, "drain": False}
    start = replay(trace, pool, "equipoise,hold_steps=4", cost, **options)
    plan = _plan(start)
    problem = problem_of(start, plan)
    found = improve(problem, plan.rank[problem.row], Budget(candidates=60_000))
    played = oracle(
        trace,
        pool,
        cost,
        budget=Budget(candidates=60_000),
        policies=["least_batch"],
        concurrency=30,
        drain=False,
    )
    if played.start_policy.label == "equipoise hold_steps=4":
        assert found.cost == pytest.approx(played.result.outcome.totals[1], rel=1e-12)
    assert played.improved
    assert played.result.excess < played.start.excess
    assert played.result.counted_range == played.start.counted_range
    rank = played.result.outcome.rank
    again = _plan(played.result)
    if not limit:
        assert played.start_policy.name == "equipoise"
    assert (again.start == _plan(played.start).start).all()
    if "max_batch" in limit:
        problem = problem_of(played.result, again)
        batch = np.zeros((pool.ranks, len(problem.counted)), int)
        for q in range(len(problem.row)):
            batch[rank[problem.row[q]], problem.start[q] : problem.end[q]] += 1
        assert batch.max() <= 9


def test_no_policy_is_better_and_the_ideal_is_not_worse():
    trace, pool = draw(3, requests=300, longest=40), Pool(ranks=4)
    policies = names()
    found = oracle(
        trace, pool, LINEAR, budget=Budget(candidates=40_000), policies=policies, concurrency=32, drain=False
    )
    assert found.result.excess >= 0
    for name in policies:
        assert found.result.excess <= replay(trace, pool, name, LINEAR, concurrency=32, drain=False).excess


def test_one_rank_leaves_nothing_to_win():
    trace = draw(3, requests=60)
    found = oracle(trace, Pool(ranks=1), LINEAR, budget=Budget(candidates=1_000), concurrency=5)
    assert not found.improved
    assert found.result.excess == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("pool", [Pool(ranks=4), Pool(instances=2, ranks=4, groups=2)])
def test_by_the_clock_what_is_reported_was_played_and_is_never_worse(pool):
    trace = draw(5, requests=400, longest=60)
    options = {"mode": "timed", "rate_scale": 0.2, "drain": True}
    cost = StepCost("us", LINEAR.terms, constant=20.0, us_per_unit=0.05)
    found = oracle(trace, pool, cost, budget=Budget(candidates=60_000), **options)
    assert found.result.excess <= found.start.excess
    assert found.improved
    assert found.result.policy_name == "oracle"
    assert found.result.finished == len(trace)


def test_with_candidates_for_a_budget_the_result_is_the_same_again():
    _, plan, problem = small(2, LINEAR)
    first, second = (
        improve(problem, plan.rank[problem.row], Budget(candidates=30_000), seed=4) for _ in range(2)
    )
    assert (first.rank == second.rank).all()
    assert first.candidates == second.candidates


def test_a_problem_too_large_to_prove_is_refused_with_the_bound():
    result = replay(
        draw(1, requests=3000), Pool(ranks=4), "least_batch", LINEAR, concurrency=20, keep_requests=True
    )
    with pytest.raises(InputError, match=r"too many for an exact solution.*up to 3000 binaries"):
        solve(problem_of(result, plan_of(result)))


def test_a_run_whose_steps_were_merged_is_refused():
    result = replay(
        draw(1, requests=300), Pool(ranks=4), "least_batch", LINEAR, concurrency=20, keep_requests=True,
        series_rows=8,
    )  # fmt: skip
    with pytest.raises(InputError, match="more than the oracle looks at"):
        plan_of(result)


@pytest.mark.parametrize("wrong", [{}, {"seconds": 0.0}, {"candidates": 0}])
def test_a_budget_has_bounds(wrong):
    with pytest.raises(InputError, match="budget"):
        Budget(**wrong)

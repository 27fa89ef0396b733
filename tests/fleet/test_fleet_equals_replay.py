"""With everything off and one instance `simulate` is `replay`, bit for bit, under every policy, cost and view."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleet_cases import as_bytes

from equipoise.cost import load
from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.fleet import Deployment, simulate
from equipoise.fleet.kernel.layout import COUNTS, PARTS
from equipoise.policies.registry import BUILT_IN
from equipoise.replay import Pool, SnapshotPlan, replay
from equipoise.replay.layout import ENDED
from equipoise.traces import synth
from equipoise.traces.trace import Trace

COSTS = {
    "one barrier a layer class": replace(load("v1"), us_per_unit=600.0),  # slow, so that the load is felt
    "counted, sparse": load("h200-vllm-deepseek-v3.2"),
    "staircase, a barrier a step": StepCost(
        "staircase",
        (
            Term("a", 0.6, batch_table=(0.0, 3.0, 3.0, 3.5, 6.0), per_100k_context=40.0),
            Term("b", 0.4, batch_floor=5, saturations=(Saturation(900, 700.0), Saturation(4000, 90.0))),
        ),
        constant=3.0,
        barrier="step",
        us_per_unit=150.0,
    ),
}


def bunches(n=700, seed=5):
    """Requests in bunches, many alike, some conversations; a few larger than a rank."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(0.012, n) * (rng.random(n) < 0.4)
    contexts = np.where(rng.random(n) < 0.3, 700, rng.integers(1, 6000, n))
    contexts[rng.random(n) < 0.01] = 1 << 20
    session = np.where(rng.random(n) < 0.5, rng.integers(0, 60, n), -1)
    return Trace.from_columns("bunches", np.cumsum(gaps), contexts, rng.geometric(1 / 40, n), session=session)


POOL = Pool(1, 6, kv_capacity_tokens=60_000, max_batch=9, growth_reserve_tokens=500)


def assert_equal(trace, pool, policy, cost, **how):
    how = {
        "warmup_turnovers": 0.5,
        "keep_requests": True,
        "snapshots": SnapshotPlan(40, first=7, every=5),
    } | how
    expected = replay(trace, pool, policy, cost, engine="kernel", **how)
    found = simulate(trace, Deployment(pool), policy, cost, engine="kernel", **how)
    if not how.get("drain", True):  # what is left is counted otherwise
        expected.outcome.ended[ENDED.RESIDUE] = found.outcome.ended[ENDED.RESIDUE]
    assert as_bytes(found.outcome) == as_bytes(expected.outcome)
    assert (found.excess, found.counted_s) == (expected.excess, expected.counted_s)
    assert found.attention_excess == found.excess
    assert not found.more.parts[PARTS.PADDING : PARTS.SWAP + 1].any()
    quiet = [COUNTS.ABORTED, *range(COUNTS.FAILED, COUNTS.DISPATCHED)]
    assert not found.more.counts[quiet].any()
    return found


@pytest.mark.parametrize("policy", BUILT_IN)
@pytest.mark.parametrize("cost", COSTS)
def test_one_instance(policy, cost):
    trace = bunches()
    timed = assert_equal(trace, POOL, policy, COSTS[cost], mode="timed", rate_scale=2.0, seed=3)
    full = assert_equal(trace, POOL, policy, COSTS[cost], mode="saturated", concurrency=40, seed=4)
    for run in (timed, full):
        assert run.rejected > 0
        assert run.counted_steps > 50
    assert timed.blocked_requests > 0  # limits were felt
    assert not np.array_equal(timed.outcome.rank, full.outcome.rank)


@pytest.mark.parametrize("policy", BUILT_IN)
def test_many_instances_and_groups_without_limits(policy):
    for pool in (Pool(3, 4), Pool(5, 2, groups=3)):
        run = assert_equal(bunches(400), pool, policy, COSTS["counted, sparse"], mode="timed", rate_scale=2.0)
        assert len(set((run.outcome.rank // pool.ranks).tolist())) == pool.instances
    assert_equal(
        bunches(400), Pool(5, 2, groups=3), policy, COSTS["one barrier a layer class"], mode="saturated",
        concurrency=70, drain=False, group_policy="least_tokens",
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["dualpath", "equipoise", "power_of_two"])
def test_a_synthetic_workload_at_scale(policy):
    trace = synth("agentic-coding", requests=6000, seed=1)
    run = assert_equal(trace, Pool(1, 64), policy, load("h200"), mode="timed", snapshots=SnapshotPlan(3))
    assert run.counted_steps > 1000

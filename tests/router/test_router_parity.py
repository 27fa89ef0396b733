"""One event log through the simulator and through the router gives the same decisions, request by request."""

from __future__ import annotations

import numpy as np
import pytest
from replay_log import follow, recorded, router_for

from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.policies import parse
from equipoise.policies.registry import BUILT_IN
from equipoise.replay import Pool
from equipoise.traces.trace import Trace

COST = StepCost(
    "sparse",
    (Term("shared", 0.7, saturations=(Saturation(700, 40.0),)), Term("full", 0.3, per_100k_context=130.0)),
    constant=2.0,
    us_per_unit=1e4,
)


def trace_of(requests, seed, *, gap_s=0.02):
    random = np.random.default_rng(seed)
    return Trace.from_columns(
        "parity",
        np.cumsum(random.exponential(gap_s, requests)),
        np.minimum(random.lognormal(6.0, 1.2, requests).astype(int) + 1, 6_000),
        np.minimum(random.geometric(0.06, requests), 80),
        session=random.integers(0, 12, requests),
    )


def same_decisions(policy, pool, *, mode, tells_steps=True, requests=160, seed=3, **options):
    trace, policy = trace_of(requests, 11), parse(policy)
    log = recorded(trace, pool, policy, COST, mode=mode, seed=seed, **options)
    router = router_for(pool, policy, COST, seed=seed)
    placed = follow(log, router, trace, pool, tells_steps=tells_steps)
    view = router.view()
    assert placed == view.counts["dispatched"] > 50
    assert view.counts["breaches"] == view.counts["policy_errors"] == view.counts["stale_keys"] == 0
    assert view.counts["finished"] == placed  # nothing is left
    assert view.leases == view.queued_requests == 0
    for loads in (view.own_batch, view.own_context_tokens, view.batch, view.context_tokens):
        assert not loads.any()
    assert not router._tables.world.saturated.any()
    assert router.integrity().sound


@pytest.mark.parametrize("mode", ["saturated", "timed"])
@pytest.mark.parametrize("policy", [*BUILT_IN, "equipoise,hold_steps=3", "dualpath,average=current"])
def test_decisions_of_every_policy(policy, mode):
    pool = Pool(ranks=4, kv_capacity_tokens=9_000, max_batch=6, growth_reserve_tokens=500)
    options = {"concurrency": 20} if mode == "saturated" else {}
    same_decisions(policy, pool, mode=mode, **options)


@pytest.mark.parametrize("mode", ["saturated", "timed"])
@pytest.mark.parametrize("policy", ["least_tokens", "dualpath", "equipoise,hold_steps=2", "brh"])
def test_decisions_with_several_instances(policy, mode):
    pool = Pool(instances=3, ranks=2, kv_capacity_tokens=9_000, max_batch=5)
    options = {"concurrency": 24} if mode == "saturated" else {"rate_scale": 2.0}
    same_decisions(policy, pool, mode=mode, **options)


@pytest.mark.parametrize("policy", ["dualpath", "equipoise,hold_steps=3", "brh"])
def test_steps_that_are_inferred_are_those_that_were_done(policy):
    pool = Pool(ranks=3, kv_capacity_tokens=9_000, max_batch=5)
    same_decisions(policy, pool, mode="saturated", concurrency=14, tells_steps=False)
    same_decisions(policy, pool, mode="timed", rate_scale=2.0, tells_steps=False)


def test_a_round_of_more_requests_than_a_policy_is_handed():
    pool = Pool(ranks=8)
    same_decisions("dualpath", pool, mode="saturated", requests=2_600, concurrency=2_500)

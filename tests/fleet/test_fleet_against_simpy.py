"""The fleet agrees with a SimPy model of the same deployment request by request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleet_proofs import simulated, trace_of
from simpy_fleet import Plan, Request, SimPyFleet

from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.cost.step_cost import StepCost, Term
from equipoise.fleet import Change, Deployment, KvMemory, Losses, Prefill, Transfer
from equipoise.fleet.kernel.layout import STATUS_NAMES
from equipoise.replay import Pool

pytestmark = pytest.mark.proof

WEIGHTS, CONTEXT_PRICE, CONSTANT, SECONDS = (0.7, 0.3), 2e-3, 2.0, 0.01
PER_TOKEN, PER_PAIR, PREFILL_CONSTANT = 0.03, 1e-4, 1.5
COST = StepCost(
    "two barriers",
    (Term("shared", WEIGHTS[0]), Term("full", WEIGHTS[1], per_100k_context=CONTEXT_PRICE * 1e5)),
    constant=CONSTANT,
    us_per_unit=SECONDS * 1e6,
    prefill=PrefillCost(
        (PrefillTerm("all", per_token=PER_TOKEN, per_100k_pairs=PER_PAIR * 1e5),),
        constant=PREFILL_CONSTANT,
        us_per_unit=SECONDS * 1e6,
    ),
)


def step_s(batches, contexts):
    full = max(b + CONTEXT_PRICE * c for b, c in zip(batches, contexts, strict=True))
    return SECONDS * (CONSTANT + WEIGHTS[0] * max(batches) + WEIGHTS[1] * full)


def prefill_s(ranks):
    work = [
        sum(PER_TOKEN * n + PER_PAIR * sum(range(offset + 1, offset + n + 1)) for offset, n in pieces)
        for pieces in ranks
    ]
    return SECONDS * (PREFILL_CONSTANT + max(work))


INSTANCES, RANKS = 2, 3
CAPACITY, MAX_BATCH, BLOCK = 900, 4, 16
GOES = Change(at_s=8.0, what="die", instance=0, rank=1, notice_s=0.6)
COMES = Change(at_s=15.0, what="return", instance=0, rank=1, notice_s=0.4)
ALL_GO = Change(at_s=21.3, what="die", instance=1, notice_s=0.35)
ALL_COME = Change(at_s=26.0, what="return", instance=1, notice_s=0.0)
FIXED = {
    "plain": {},
    "batch": {"max_batch": MAX_BATCH},
    "blocks": {"capacity": CAPACITY, "block": BLOCK},
    "delays": {"capacity": CAPACITY, "block": BLOCK, "delay": True, "transfer": True},
    "prefill pool": {"max_batch": MAX_BATCH, "pool": True, "transfer": True},
    "conversations": {"sessions": True, "delay": True, "capacity": CAPACITY, "block": BLOCK},
    "a rank dies": {"changes": (GOES, COMES), "capacity": CAPACITY, "max_batch": MAX_BATCH},
    "an instance dies": {"changes": (ALL_GO, ALL_COME), "delay": True},
    "few tries": {"changes": (GOES, COMES, ALL_GO, ALL_COME), "most_tries": 1, "sessions": True},
    "all": {
        "capacity": CAPACITY, "max_batch": MAX_BATCH, "block": BLOCK, "delay": True, "transfer": True,
        "sessions": True, "changes": (GOES, COMES, ALL_GO, ALL_COME),
    },
    "all, with a prefill pool": {
        "capacity": CAPACITY, "max_batch": MAX_BATCH, "block": BLOCK, "pool": True, "transfer": True,
        "sessions": True, "changes": (GOES, COMES, ALL_GO, ALL_COME),
    },
}  # fmt: skip


def both(rule, seed, *, engine_name="kernel", n=500, capacity=None, max_batch=None, block=1, delay=False,
         transfer=False, pool=False, sessions=False, changes=(), most_tries=50):  # fmt: skip
    """The run, and the requests of the SimPy model."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(0.06, n))
    arrivals -= arrivals[0]
    contexts, outputs = rng.integers(1, 300, n), rng.geometric(1 / 25, n)
    session = rng.integers(0, n // 4, n) if sessions else np.full(n, -1)
    think = rng.exponential(0.4, n)
    where = "pool" if pool else "delay" if delay else "none"
    chunk = 250
    deployment = Deployment(
        Pool(INSTANCES, RANKS, kv_capacity_tokens=capacity, max_batch=max_batch),
        prefill=Prefill(where, fixed_s=0.05, s_per_token=0.0, instances=2, ranks=2, chunk_tokens=chunk),
        transfer=Transfer(0.02, 1e-4) if transfer else Transfer(),
        memory=KvMemory(block),
        changes=changes,
        losses=Losses(retry_s=0.3, most_tries=most_tries),
    )
    if delay:
        deployment = replace(deployment, prefill=replace(deployment.prefill, s_per_token=7e-4))
    trace = trace_of(arrivals, contexts, outputs, session=session, think_s=think)
    mode = "sessions" if sessions else "timed"
    run = simulated(trace, deployment, rule, COST, mode=mode, engine_name=engine_name)

    requests, first, last = [], [], {}
    for q in range(n):
        r = Request(int(contexts[q]), int(contexts[q] + outputs[q]), float(think[q]))
        before = last.get(session[q]) if session[q] >= 0 else None
        if before is not None:
            r.cached = min(before.until, r.size - 1)
            before.following = r
        else:
            first.append(q)
        last[session[q]] = r
        requests.append(r)
    plan = Plan(
        INSTANCES, RANKS, capacity or np.inf, max_batch or np.inf, block, rule, step_s,
        transfer_s=(0.02, 1e-4) if transfer else (0.0, 0.0),
        delay_s=(0.05, 7e-4) if delay else None,
        prefill=(2, 2, chunk, prefill_s) if pool else None,
        retry_s=0.3, most_tries=most_tries,
        changes=tuple((c.at_s, c.what, c.instance, c.rank, c.notice_s) for c in changes),
    )  # fmt: skip
    SimPyFleet(plan, arrivals[first], requests, first)
    return run, requests


def assert_same(run, requests):
    def column(what, missing=np.nan):
        return np.array([q.told.get(what, missing) for q in requests])

    o, m = run.outcome, run.more
    assert [STATUS_NAMES[s] for s in m.status] == column("status", "").tolist()
    assert o.rank.tolist() == column("rank", -1).tolist()
    assert m.tries.tolist() == [q.tries for q in requests]
    for mine, what in (
        (m.came_s, "arrived"), (m.queued_s, "queued"), (m.placed_s, "placed"), (o.start_s, "start"),
        (m.first_s, "first"), (m.ended_s, "ended"),
    ):  # fmt: skip
        np.testing.assert_allclose(mine, column(what), rtol=1e-9, atol=1e-9, err_msg=what)
    got = [0 if q.told["status"] == "dropped" else q.size - q.context for q in requests]
    assert m.tokens.tolist() == got


@pytest.mark.parametrize("rule", ["least_batch", "least_tokens"])
@pytest.mark.parametrize("name", FIXED)
def test_fleet_agrees_with_simpy(name, rule):
    for seed in (1, 2):
        run, requests = both(rule, seed, **FIXED[name])
        assert_same(run, requests)
        on = FIXED[name]
        if "changes" in on:  # what is switched on was felt
            assert run.counts["lost"] > 3
        if "most_tries" in on:
            assert run.counts["failed"] > 0
            assert run.counts["dropped"] > 0
        waited = (run.more.placed_s > run.more.queued_s + 0.2).any()
        assert waited or not ("capacity" in on or "max_batch" in on)

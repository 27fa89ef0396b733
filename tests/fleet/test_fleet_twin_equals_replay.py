"""With nothing switched on, the fleet's slow twin is the replay's, bit for bit."""

from __future__ import annotations

import numpy as np
from fleet_cases import as_bytes, case_of, quick
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cost.step_cost import StepCost, Term
from equipoise.fleet.kernel.layout import COUNTS, PARTS
from equipoise.replay import Pool, SnapshotPlan
from equipoise.replay.layout import ENDED, TOTALS
from equipoise.testing.strategies import costs, policies, pools, traces
from equipoise.traces.trace import Trace


@st.composite
def options(draw):
    """Everything else that `replay` takes."""
    chosen = {
        "mode": draw(st.sampled_from(["saturated", "timed"])),
        "seed": draw(st.integers(0, 9)),
        "group_policy": draw(st.sampled_from(["least_batch", "least_tokens"])),
        "warmup_turnovers": draw(st.sampled_from([0.0, 0.5, 1.0])),
        "drain": draw(st.booleans()),
        "keep_requests": draw(st.booleans()),
        "series_rows": draw(st.sampled_from([2, 16, 64])),
        "snapshots": SnapshotPlan(
            draw(st.integers(0, 6)), first=draw(st.integers(0, 4)), every=draw(st.integers(1, 3))
        ),
    }
    if chosen["mode"] == "saturated":
        chosen["concurrency"] = draw(st.integers(1, 40))
    else:
        chosen["rate_scale"] = draw(st.sampled_from([0.5, 1.0, 7.0]))
    return chosen


def one_instance(pool):
    return Pool(
        ranks=pool.ranks,
        kv_capacity_tokens=pool.kv_capacity_tokens,
        max_batch=pool.max_batch,
        growth_reserve_tokens=pool.growth_reserve_tokens,
    )


def assert_equal(case):
    if case is None:  # nothing fits on a rank
        return
    expected = case.replayed()
    out, fleet_out = case.run()
    if not case.settings.drain or expected.ended[ENDED.ERROR]:  # what is left is counted otherwise
        expected.ended[ENDED.RESIDUE] = out.ended[ENDED.RESIDUE]
    assert as_bytes(out) == as_bytes(expected)
    assert fleet_out.parts[PARTS.ATTENTION] == out.totals[TOTALS.COST]
    assert fleet_out.parts[PARTS.ATTENTION_IDEAL] == out.totals[TOTALS.IDEAL]
    assert not fleet_out.parts[PARTS.PADDING : PARTS.SWAP + 1].any()
    assert fleet_out.counts[COUNTS.COUNTED_TOKENS] == out.totals[TOTALS.TOKENS]
    assert fleet_out.counts[COUNTS.REJECTED] == out.ended[ENDED.REJECTED]
    quiet = [COUNTS.ABORTED, *range(COUNTS.FAILED, COUNTS.DISPATCHED)]
    assert not fleet_out.counts[quiet].any()


@quick(60)
@given(traces(), pools().map(one_instance), policies(), costs(), options())
def test_one_instance(trace, pool, policy, cost, chosen):
    assert_equal(case_of(trace, pool, policy, cost, **chosen))


@quick(40)
@given(traces(), pools(), policies(), costs(), options())
def test_many_instances_without_limits(trace, pool, policy, cost, chosen):
    """Where ranks are limited, the replay lets in what was placed during a step, whatever has grown since."""
    pool = Pool(instances=pool.instances, ranks=pool.ranks, groups=pool.groups)
    assert_equal(case_of(trace, pool, policy, cost, **chosen))


def test_beyond_one_round():
    """More requests at once than a round holds."""
    n = 1100
    trace = Trace.from_columns("test", np.zeros(n), 1 + np.arange(n) % 50, 1 + np.arange(n) % 3)
    cost = StepCost("linear", (Term("full", 0.3, per_100k_context=130.0),), constant=2.0)
    for pool in (Pool(ranks=2, max_batch=540), Pool(instances=2, ranks=1, groups=2)):
        assert_equal(case_of(trace, pool, "dualpath", cost, mode="timed"))

"""What replay is given wrongly is named, with value, bound and fix; odd but right input works."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from replay_cases import CONSTANT, LINEAR, as_bytes, trace_of

from equipoise.cost.step_cost import StepCost, Term
from equipoise.errors import InputError, InternalError
from equipoise.policies import Policy, PolicySpec
from equipoise.replay import Pool, SnapshotPlan, replay
from equipoise.replay.layout import ENDED
from equipoise.traces.trace import Trace

TRACE = trace_of(np.arange(60) * 0.5, 10 + np.arange(60) % 7, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "closed"}, "mode = 'closed'"),
        ({"concurrency": 0}, "concurrency = 0; must be a whole number from 1 to 2147483647"),
        ({"concurrency": 2.5}, "concurrency = 2.5"),
        ({"concurrency": True}, "concurrency = True"),
        ({"concurrency": 2**31}, "concurrency = 2147483648"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 1.0}, "seed = 1.0"),
        ({"mode": "timed", "rate_scale": 0.0}, "rate_scale = 0.0; must be a finite number above 0"),
        ({"mode": "timed", "rate_scale": math.nan}, "rate_scale = nan"),
        ({"mode": "timed", "rate_scale": 1e-308}, "puts the last arrival at inf s"),
        ({"group_policy": "random"}, "group_policy = 'random'"),
        ({"warmup_turnovers": math.nan}, "warmup_turnovers = nan"),
        ({"warmup_turnovers": -1.0}, "warmup_turnovers = -1.0"),
        ({"engine": "fast"}, "engine = 'fast'"),
        ({"concurrency": 60}, "no step could be counted: 60 requests"),
        ({"warmup_turnovers": 99.0}, "shorter warm-up"),
    ],
)
def test_options(options, message):
    with pytest.raises(InputError) as caught:
        replay(TRACE, Pool(ranks=2), "least_batch", CONSTANT, **{"concurrency": 4, **options})
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "numbers",
    [
        {"instances": 0},
        {"ranks": 0},
        {"ranks": -3},
        {"ranks": 1.5},
        {"ranks": True},
        {"instances": 1000, "ranks": 1000},
        {"kv_capacity_tokens": 0},
        {"kv_capacity_tokens": 1 << 60},
        {"max_batch": 0},
        {"growth_reserve_tokens": -1},
        {"kv_capacity_tokens": 10, "growth_reserve_tokens": 10},
        {"groups": 0},
        {"instances": 2, "groups": 3},
    ],
)
def test_pools(numbers):
    with pytest.raises(InputError, match=r"from|up to"):
        Pool(**numbers)


@pytest.mark.parametrize("numbers", [{"count": -1}, {"count": 1, "first": -2}, {"count": 1, "every": 0}])
def test_snapshot_plans(numbers):
    with pytest.raises(InputError, match="must be a whole number"):
        SnapshotPlan(**numbers)


@pytest.mark.parametrize("reserve", [0, 5])
def test_no_request_fits(reserve):
    pool = Pool(ranks=2, kv_capacity_tokens=9 + reserve, growth_reserve_tokens=reserve)
    with pytest.raises(InputError, match="the smallest has 10 tokens, 9 fit"):
        replay(TRACE, pool, "least_batch", CONSTANT, concurrency=4)


def test_the_dearest_cost_there_may_be_does_not_overflow_the_clock():
    """Prices are bounded where a cost is made; the product of all bounds is a number still."""
    cost = StepCost("dear", (Term("all", weight=1e30, per_request=1e30),), constant=1e30, us_per_unit=1e30)
    run = replay(TRACE, Pool(ranks=2), "least_batch", cost, concurrency=4)
    assert run.finished == 60
    assert math.isfinite(run.mean_step_ms)


def test_steps_that_cost_nothing_give_no_ratio_and_no_traceback():
    """A table may price small batches at nothing: the clock stands still, no ratio has a meaning."""
    cost = StepCost("free", (Term("all", batch_table=(0.0, 0.0, 0.0, 0.0, 5.0)),))
    run = replay(TRACE, Pool(ranks=2), "least_batch", cost, concurrency=4)
    assert run.finished == 60
    for name in ("excess", "balance", "bubble_share", "tokens_per_s"):
        assert math.isnan(getattr(run, name))
    assert "nan" in repr(run)


def test_columns_of_any_layout_are_taken():
    """Strided, read-only, broadcast and narrow columns: a trace may come from anywhere."""
    plain = replay(TRACE, Pool(ranks=3), "least_tokens", LINEAR, mode="timed")

    def strided(column):
        wide = np.zeros(2 * len(column), dtype=column.dtype)
        wide[::2] = column
        return wide[::2]

    def frozen(column):
        copy = column.copy()
        copy.flags.writeable = False
        return copy

    for change in (strided, frozen):
        columns = {
            n: change(getattr(TRACE, n)) for n in ("arrival_s", "context_tokens", "output_tokens", "session")
        }
        other = replay(replace(TRACE, **columns), Pool(ranks=3), "least_tokens", LINEAR, mode="timed")
        assert as_bytes(other.outcome) == as_bytes(plain.outcome)
    narrow = replace(TRACE, context_tokens=TRACE.context_tokens.astype(np.int32))
    assert as_bytes(replay(narrow, Pool(ranks=3), "least_tokens", LINEAR, mode="timed").outcome) == as_bytes(
        plain.outcome
    )

    n = 40
    one_value = Trace("flat", np.arange(float(n)), *(np.broadcast_to(np.int64(v), n) for v in (9, 5, -1)),
                      np.broadcast_to(np.int32(0), n), np.broadcast_to(0.0, n))  # fmt: skip
    spelt_out = trace_of(np.arange(float(n)), 9, 5)
    runs = [replay(t, Pool(ranks=3), "random", LINEAR, mode="timed") for t in (one_value, spelt_out)]
    assert as_bytes(runs[0].outcome) == as_bytes(runs[1].outcome)


def test_sessions_reach_the_policy_and_lengths_of_outputs_do_not():
    """One column for each thing a router knows; where all sessions are one value, a single number stands for them."""
    seen = []

    def look(ranks, requests, prices, params, memory, out):
        seen.append(
            (requests.context_tokens.tolist(), requests.session.tolist(), requests.budget_tokens.tolist())
        )
        out[:] = 0

    policy = Policy(PolicySpec("look", look, "", ""), {})
    trace = trace_of(np.arange(12.0), 10 + np.arange(12), 77, session=np.arange(12) // 2)
    replay(trace, Pool(ranks=1), policy, CONSTANT, mode="timed", warmup_turnovers=0)
    assert seen == [([10 + i], [i // 2], [-1]) for i in range(12)]


def test_lost_requests_would_be_our_fault(monkeypatch):
    """A run that does not account for every request is an error of this package, not a result."""
    from equipoise.replay import kernel

    def lose_one(*arguments):
        arguments[-1].ended[ENDED.FINISHED] = len(TRACE) - 1

    monkeypatch.setattr(kernel, "run", lose_one)
    with pytest.raises(InternalError, match="requests were lost"):
        replay(TRACE, Pool(ranks=2), "least_batch", CONSTANT, concurrency=4)

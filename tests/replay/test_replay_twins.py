"""The compiled kernel equals its slow twin, bit for bit, in every array it fills."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_cases import CONSTANT, LINEAR, as_bytes, ended, quick, run_unchecked, trace_of

from equipoise.policies.api import PolicySpec, placement
from equipoise.policies.registry import Policy
from equipoise.replay import Pool, SnapshotPlan, kernel, state
from equipoise.replay.layout import BAD_RANK, NO_ROOM, STUCK
from equipoise.testing.strategies import costs, policies, pools, traces


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
        "series_rows": draw(st.sampled_from([2, 4, 16, 1024])),
        "snapshots": SnapshotPlan(
            draw(st.integers(0, 6)), first=draw(st.integers(0, 4)), every=draw(st.integers(1, 3))
        ),
    }
    if chosen["mode"] == "saturated":
        chosen["concurrency"] = draw(st.integers(1, 40))
    else:
        chosen["rate_scale"] = draw(st.sampled_from([0.5, 1.0, 7.0]))
    return chosen


@quick(200)
@given(traces(), pools(), policies(), costs(), options())
def test_kernel_equals_twin(trace, pool, policy, cost, chosen):
    fast = run_unchecked(trace, pool, policy, cost, engine="kernel", **chosen)
    slow = run_unchecked(trace, pool, policy, cost, engine="reference", **chosen)
    assert (fast is None) == (slow is None)
    if fast is not None:
        assert as_bytes(fast.outcome) == as_bytes(slow.outcome)


@quick(40)
@given(traces(max_output_tokens=40), pools(), policies(), costs(), options())
def test_short_calendars_change_nothing(trace, pool, policy, cost, chosen):
    """With a calendar of four slots every longer wait goes round it; the kernel's own source, run as Python."""
    whole = run_unchecked(trace, pool, policy, cost, engine="kernel", **chosen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "LONGEST_CALENDAR", 4)
        patch.setattr(kernel, "run", kernel.run.py_func)
        short = run_unchecked(trace, pool, policy, cost, engine="kernel", **chosen)
    assert (whole is None) == (short is None)
    if whole is not None:
        assert as_bytes(whole.outcome) == as_bytes(short.outcome)


@quick(30)
@given(traces(min_requests=6), pools(), policies(), costs(), st.integers(1, 20))
def test_stopping_before_the_drain_changes_no_average(trace, pool, policy, cost, concurrency):
    """Steps of the drain are never counted, so leaving them out is only faster."""
    runs = [
        run_unchecked(
            trace, pool, policy, cost, concurrency=concurrency, warmup_turnovers=0.2, drain=drain
        )
        for drain in (True, False)
    ]  # fmt: skip
    if runs[0] is not None:
        assert runs[0].outcome.totals.tobytes() == runs[1].outcome.totals.tobytes()
        assert runs[1].steps <= runs[0].steps


@placement
def breaks_the_rules(ranks, requests, prices, params, memory, out):
    """Every fourth choice is one of the wrong ones, by params[0]."""
    for i in range(len(out)):
        memory.ints[0] += 1
        out[i] = i % len(ranks.batch)
        if memory.ints[0] % 4 == 0:
            out[i] = (len(ranks.batch), -2, 0, -1)[int(params[0])]


@pytest.mark.parametrize(("kind", "code"), [(0, BAD_RANK), (1, BAD_RANK), (2, NO_ROOM), (3, 0)])
@pytest.mark.parametrize("groups", [1, 2])
def test_twins_agree_on_forbidden_choices(kind, code, groups):
    spec = PolicySpec("bad", breaks_the_rules, "", "", memory_size=lambda context: (1, 0))
    policy = Policy(spec, {})
    trace = trace_of(np.arange(40) * 0.2, 9, 7)
    pool = Pool(instances=2, ranks=2, max_batch=3, groups=groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "param_array", lambda self: np.array([float(kind)]))
        fast, slow = (
            run_unchecked(trace, pool, policy, CONSTANT, mode="timed", engine=e)
            for e in ("kernel", "reference")
        )
    assert as_bytes(fast.outcome) == as_bytes(slow.outcome)
    # the fourth kind only waits; its modulo choices run into the batch limit
    assert ended(fast)["ERROR"] in ((code,) if code else (NO_ROOM,))


@placement
def never(ranks, requests, prices, params, memory, out):
    for i in range(len(out)):
        out[i] = -1


@pytest.mark.parametrize("mode", ["saturated", "timed"])
def test_twins_agree_on_a_policy_that_never_places(mode):
    trace, policy = trace_of(np.arange(5.0), 9, 7), Policy(PolicySpec("never", never, "", ""), {})
    fast, slow = (
        run_unchecked(trace, Pool(ranks=2), policy, LINEAR, mode=mode, engine=e)
        for e in ("kernel", "reference")
    )
    assert as_bytes(fast.outcome) == as_bytes(slow.outcome)
    assert ended(fast)["ERROR"] == STUCK


def test_twins_agree_beyond_one_round():
    """More requests at once than a round holds: the oldest 1,024 first."""
    trace = trace_of(0.0, 1 + np.arange(1300) % 50, 1 + np.arange(1300) % 3)
    for pool in (Pool(ranks=2), Pool(ranks=2, max_batch=500), Pool(instances=2, ranks=1, groups=2)):
        fast, slow = (
            run_unchecked(trace, pool, "dualpath", LINEAR, mode="timed", engine=e)
            for e in ("kernel", "reference")
        )
        assert as_bytes(fast.outcome) == as_bytes(slow.outcome)
        assert ended(fast)["FINISHED"] == 1300

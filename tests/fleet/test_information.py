"""What a router knows: exact where it should be, late where it is told to be, and never a lost request."""

from __future__ import annotations

import numpy as np
import pytest
from fleet_cases import as_bytes, quick
from hypothesis import given
from hypothesis import strategies as st

from equipoise.cost.step_cost import StepCost, Term
from equipoise.errors import InputError, PolicyError
from equipoise.fleet import Deployment, engine, simulate
from equipoise.policies import get
from equipoise.policies.api import PolicySpec
from equipoise.policies.registry import Policy
from equipoise.replay import Information, Pool, SnapshotPlan
from equipoise.testing.strategies import costs, policies, pools, traces
from equipoise.traces.trace import Trace

MODES = st.sampled_from(["saturated", "timed"])
CONSTANT = StepCost("one second a step", (Term("none", per_request=0.0),), constant=1.0, us_per_unit=1e6)
"""Every step takes a second, so the clock counts steps."""
EVERY_STEP = SnapshotPlan(2000)


def trace_of(arrival_s, context_tokens, output_tokens, **columns):
    n = max(np.size(arrival_s), np.size(context_tokens), np.size(output_tokens))
    spread = [np.broadcast_to(c, n) for c in (arrival_s, context_tokens, output_tokens)]
    return Trace.from_columns("test", *spread, **columns)


def run_unchecked(trace, pool, policy, cost, *, information=None, **options):
    """`simulate` without its verdict on the run, so that short runs can be looked at too; None where nothing fits."""
    layout = pool.layout()
    if trace.context_tokens.min() > layout.kv_capacity_tokens - layout.growth_reserve_tokens:
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_check", lambda *arguments, **named: None)
        deployment = Deployment(pool, information=information or Information())
        return simulate(trace, deployment, policy, cost, **options)


def anything():
    exact = st.builds(Information, st.just("exact"), replicas=st.integers(1, 5))
    return exact | st.builds(
        Information,
        st.sampled_from(["ledger", "extrapolated", "acknowledged", "erased"]),
        replicas=st.integers(1, 5),
        period_steps=st.integers(1, 9),
        delay_steps=st.integers(0, 9),
        delay_s=st.sampled_from([0.0, 1e-4, 0.05]),
    )


@quick(80)
@given(
    traces(), pools(max_instances=1), costs(), policies(), MODES,
    st.integers(1, 9), st.integers(0, 9), st.sampled_from([0.0, 0.05]),
)  # fmt: skip
def test_a_ledger_of_all_requests_is_the_truth_however_old_the_reports(
    trace, pool, cost, policy, mode, period_steps, delay_steps, delay_s
):
    """One writer that counts what it placed needs no reports: bit for bit the run with oracle state."""
    informed = Information("ledger", 1, period_steps, delay_steps, delay_s)
    plain, ledger = (
        run_unchecked(trace, pool, policy, cost, mode=mode, information=i) for i in (None, informed)
    )
    if plain is not None:
        assert as_bytes(plain.outcome) == as_bytes(ledger.outcome)


@quick(60)
@given(
    traces(), pools(max_instances=1), costs(), policies(), MODES, st.sampled_from(["acknowledged", "erased"])
)
def test_reports_of_every_step_without_delay_are_the_truth(trace, pool, cost, policy, mode, knows):
    plain, reported = (
        run_unchecked(trace, pool, policy, cost, mode=mode, information=i) for i in (None, Information(knows))
    )
    if plain is not None:
        assert as_bytes(plain.outcome) == as_bytes(reported.outcome)


@quick(90)
@given(traces(), pools(), costs(), policies(), MODES, anything())
def test_no_request_is_lost_whatever_is_believed(trace, pool, cost, policy, mode, informed):
    """`simulate` refuses to end with a request or a load unaccounted for."""
    try:
        run = simulate(
            trace,
            Deployment(pool, information=informed),
            policy,
            cost,
            mode=mode,
            warmup_turnovers=0,
            snapshots=EVERY_STEP,
        )
    except PolicyError:
        raise
    except InputError:  # no request fits, or no step could be counted
        return
    assert run.finished + run.rejected == len(trace)
    if pool.max_batch is not None:  # engines keep what has no room in their queues
        assert run.snapshots.batch.max(initial=0) <= pool.max_batch


def noting(notes):
    def place(ranks, requests, prices, params, memory, out):
        notes.append(
            ranks._replace(**{n: getattr(ranks, n).copy() for n in ("unseen_requests", "report_age_steps")})
        )
        for i in range(len(out)):
            out[i] = requests.request[i] % len(ranks.batch)
            ranks.batch[out[i]] += 1

    return Policy(PolicySpec("noting", place, "", ""), {})


@pytest.mark.parametrize(("period", "delay"), [(1, 0), (1, 3), (4, 0), (4, 6)])
def test_reports_have_the_age_that_was_asked_for(period, delay):
    notes = []
    trace = trace_of(np.arange(200) * 0.5, 9, 20)
    informed = Information("acknowledged", period_steps=period, delay_steps=delay)
    run_unchecked(trace, Pool(ranks=2), noting(notes), CONSTANT, mode="timed", information=informed)
    ages = {int(a) for n in notes[40:-40] for a in n.report_age_steps}
    assert ages == set(range(delay, delay + period))


def test_unseen_requests_are_those_since_the_report():
    """Two arrivals a step, reports of every step four steps late: about eight dispatches are on their way."""
    notes = []
    trace = trace_of(np.arange(400) * 0.5, 9, 20)
    informed = Information("acknowledged", delay_steps=4)
    run_unchecked(trace, Pool(ranks=2), noting(notes), CONSTANT, mode="timed", information=informed)
    assert {int(n.unseen_requests.sum()) for n in notes[40:-40]} == {8}


def test_a_wrong_picture_fills_engine_queues_and_breaks_nothing():
    """Room for one request a rank, and nobody hears of the others: engines hold what comes too many, in order."""
    trace = trace_of(np.zeros(12), 5, 4)
    pool = Pool(ranks=3, max_batch=1)
    blind = Information("acknowledged", replicas=4, period_steps=1000)
    run = run_unchecked(trace, pool, "least_batch", CONSTANT, mode="timed", information=blind)
    assert run.finished == 12
    assert run.outcome.rank.tolist().count(0) >= 4  # all replicas thought of the first rank
    on_first = np.flatnonzero(run.outcome.rank == 0)
    starts = np.sort(run.outcome.start_s[on_first])
    assert (np.diff(starts) >= 4).all()  # one after the other


def test_replicas_keep_conversations_and_have_memories_of_their_own():
    """Round robin in four replicas, conversations of one replica each: every replica begins at rank 0."""
    trace = trace_of(np.zeros(8), 5, 4, session=np.array([0, 0, 1, 1, 2, 2, 3, 3]))
    run = run_unchecked(
        trace, Pool(ranks=4), get("round_robin"), CONSTANT, mode="timed", information=Information("ledger", 4)
    )
    assert run.outcome.rank.tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"knows": "all"}, "use one of exact, ledger"),
        ({"replicas": 0}, "replicas = 0"),
        ({"replicas": 65}, "from 1 to 64"),
        ({"period_steps": 0}, "period_steps = 0"),
        ({"delay_steps": -1}, "delay_steps = -1"),
        ({"delay_s": float("nan")}, "delay_s = nan"),
        ({"knows": "exact", "period_steps": 2}, "leave period and delay out"),
    ],
)
def test_senseless_information(values, message):
    with pytest.raises(InputError, match=message):
        Information(**values)

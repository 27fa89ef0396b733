"""Laws of replay that hold for every trace, pool, policy and cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_cases import CONSTANT, EVERY_STEP, ended, quick, run_unchecked, trace_of

from equipoise._jit import compiled
from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.replay import Pool, SnapshotPlan, kernel
from equipoise.replay.layout import SERIES
from equipoise.testing.strategies import costs, policies, pools, traces

MODES = st.sampled_from(["saturated", "timed"])


def whole_run(trace, pool, policy, cost, mode, **options):
    """A run with everything kept; None where nothing fits."""
    if mode == "saturated":
        options.setdefault("concurrency", 3 * pool.total_ranks)
    return run_unchecked(
        trace, pool, policy, cost, mode=mode, keep_requests=True, snapshots=EVERY_STEP, **options
    )  # fmt: skip


@quick(50)
@given(traces(), pools(), policies(), costs(), MODES)
def test_every_request_is_accounted_for_and_nothing_is_left(trace, pool, policy, cost, mode):
    run = whole_run(trace, pool, policy, cost, mode)
    if run is None:
        return
    end, o = ended(run), run.outcome
    largest = (pool.kv_capacity_tokens or 1 << 40) - pool.growth_reserve_tokens
    too_large = trace.context_tokens > largest
    assert end["ARRIVED"] == len(trace) == end["FINISHED"] + end["REJECTED"]
    assert end["REJECTED"] == too_large.sum()
    assert end["QUEUED"] == end["RUNNING"] == end["RESIDUE"] == end["ERROR"] == 0
    served = trace.output_tokens[~too_large]
    assert end["TOKENS"] == end["FINISHED_TOKENS"] == served.sum()
    for never in (np.isnan(o.start_s), np.isnan(o.finish_s), o.rank < 0):
        assert never.tolist() == too_large.tolist()


@quick(50)
@given(traces(), pools(), policies(), costs(), MODES)
def test_time_runs_forward_and_no_step_is_free(trace, pool, policy, cost, mode):
    run = whole_run(trace, pool, policy, cost, mode)
    if run is None:
        return
    o, shots = run.outcome, run.snapshots
    assert (np.diff(run.series[:, SERIES.START_S]) >= 0).all()
    assert (np.diff(shots.start_s) >= 0).all()
    shortest = cost.constant * cost.us_per_unit * 1e-6
    assert (shots.length_s >= shortest * (1 - 1e-9)).all()
    served = o.rank >= 0
    spent = (o.finish_s - o.start_s)[served]
    assert (spent >= trace.output_tokens[served] * shortest * (1 - 1e-9)).all()
    if mode == "timed":
        assert (o.start_s[served] >= run.arrival_s[served]).all()
    for instance in range(pool.instances):
        starts = shots.start_s[shots.instance == instance]
        ends = (shots.start_s + shots.length_s)[shots.instance == instance]
        assert (starts[1:] >= ends[:-1] - 1e-9 * ends[:-1]).all()


@quick(50)
@given(traces(), pools(max_instances=1), policies(), costs(), MODES)
def test_state_at_every_step_follows_from_the_requests(trace, pool, policy, cost, mode):
    """B, C, K and the queue at every step, counted again from when each request started, finished and where."""
    run = whole_run(trace, pool, policy, cost, mode)
    if run is None:
        return
    o, shots = run.outcome, run.snapshots
    assert len(shots.step) == run.steps
    served = np.flatnonzero(o.rank >= 0)
    first_step = np.searchsorted(shots.start_s, o.start_s)
    for k, now in enumerate(shots.start_s):
        running = served[(o.start_s[served] <= now) & (now < o.finish_s[served])]
        length = trace.context_tokens[running] + k - first_step[running]
        ranks = o.rank[running]
        assert np.array_equal(shots.batch[k], np.bincount(ranks, minlength=pool.ranks))
        context = np.zeros(pool.ranks, dtype=np.int64)
        np.add.at(context, ranks, length)
        assert np.array_equal(shots.context_tokens[k], context)
        for s, bound in enumerate(cost.saturation_tokens):
            saturated = np.zeros(pool.ranks, dtype=np.int64)
            np.add.at(saturated, ranks, np.minimum(length, bound))
            assert np.array_equal(shots.saturated_tokens[k, :, s], saturated)
        if mode == "timed":  # arrived = finished + running + queued + rejected, at this step
            arrived = (run.arrival_s <= now).sum()
            rejected = ((run.arrival_s <= now) & (o.rank < 0)).sum()
            finished = (o.finish_s <= now).sum()
            assert run.series[k, SERIES.QUEUED] == arrived - rejected - finished - len(running)


@quick(50)
@given(traces(), pools(), policies(), costs(), MODES)
def test_every_step_costs_what_the_model_says_and_no_less_than_ideal(trace, pool, policy, cost, mode):
    run = whole_run(trace, pool, policy, cost, mode)
    if run is None:
        return
    rows, shots = run.series, run.snapshots
    loads = (shots.batch, shots.context_tokens, shots.saturated_tokens)
    paid, ideal = cost.cost(*loads), cost.ideal(*loads)
    assert np.allclose(rows[:, SERIES.COST], paid, rtol=1e-12, atol=0)
    assert np.allclose(rows[:, SERIES.IDEAL], ideal, rtol=1e-12, atol=0)
    assert np.allclose(shots.length_s, paid * cost.us_per_unit * 1e-6, rtol=1e-6, atol=1e-9)
    slack = 1e-12 * rows[:, SERIES.COST]
    assert (rows[:, SERIES.COST] >= rows[:, SERIES.IDEAL] - slack).all()
    assert (rows[:, SERIES.COST] >= rows[:, SERIES.WORK] - slack).all()
    assert np.array_equal(rows[:, SERIES.MAX_BATCH], shots.batch.max(axis=1))
    assert np.array_equal(rows[:, SERIES.MEAN_CONTEXT], shots.context_tokens.sum(axis=1) / pool.ranks)


@quick(40)
@given(traces(min_requests=8), pools(), policies(), costs(), MODES, st.sampled_from([2, 6, 32]))
def test_merged_series_keep_their_sums(trace, pool, policy, cost, mode, series_rows):
    """A short series is the long one with neighbours added up."""
    long, short = (
        whole_run(trace, pool, policy, cost, mode, series_rows=rows, warmup_turnovers=0.5)
        for rows in (2048, series_rows)
    )
    if long is None:
        return
    merged = ended(short)["SERIES_STEPS"]
    assert len(short.series) <= series_rows
    starts = np.arange(0, len(long.series), merged)
    for column in range(SERIES.STEPS, SERIES.OVER_CAPACITY + 1):
        assert np.allclose(
            short.series[:, column], np.add.reduceat(long.series[:, column], starts), rtol=1e-12
        )
    assert np.array_equal(short.series[:, SERIES.START_S], long.series[starts, SERIES.START_S])
    lowest, highest = (f.reduceat(long.series[:, SERIES.INSTANCE], starts) for f in (np.minimum, np.maximum))
    assert np.array_equal(short.series[:, SERIES.INSTANCE], np.where(lowest == highest, lowest, -1))
    assert short.outcome.totals.tobytes() == long.outcome.totals.tobytes()


@quick(40)
@given(traces(min_requests=8), pools(max_instances=1), policies(), costs(), MODES)
def test_averages_are_over_the_counted_steps(trace, pool, policy, cost, mode):
    """Totals are sums over the counted rows; counting begins after a turnover and ends where the drain begins."""
    run = whole_run(trace, pool, policy, cost, mode, warmup_turnovers=1.0)
    if run is None or run.counted_steps == 0:
        return
    rows, o = run.series, run.outcome
    counted = rows[:, SERIES.COUNTED] == 1
    first, last = run.counted_range
    assert np.array_equal(np.flatnonzero(counted)[[0, -1]], [first, last])
    assert run.counted_steps == counted.sum()
    assert run.excess == pytest.approx(
        rows[counted, SERIES.COST].sum() / rows[counted, SERIES.IDEAL].sum() - 1
    )
    assert run.balance * (1 + run.excess) == pytest.approx(1)
    assert run.mean_cost == pytest.approx(rows[counted, SERIES.COST].mean())
    assert run.mean_batch == pytest.approx(rows[counted, SERIES.MEAN_BATCH].mean())
    assert run.bubble_share >= -1e-12
    # steps count once as many have finished as ever ran at once, then and ever after; none starts in the drain
    starts = rows[:, SERIES.START_S]
    running = np.array([((o.start_s <= t) & (o.finish_s > t)).sum() for t in starts])
    finished = np.array([(o.finish_s <= t).sum() for t in starts])
    fewer = finished < np.maximum.accumulate(running)
    turned_over = ~np.logical_or.accumulate(fewer[::-1])[::-1]
    draining = starts >= np.nanmax(o.start_s)
    assert np.array_equal(counted, turned_over & ~draining)


def test_a_short_first_request_does_not_end_the_warm_up():
    """One request comes and goes alone, then the pool fills: the averages are of the full pool."""
    arrivals = np.concatenate([[0.0], 5 + np.arange(400) * 0.5])
    outputs = np.concatenate([[1], np.full(400, 60)])
    run = run_unchecked(
        trace_of(arrivals, 10, outputs),
        Pool(ranks=2),
        "least_batch",
        CONSTANT,
        mode="timed",
        keep_requests=True,
    )
    assert run.counted_s[0] == pytest.approx(
        5 + 60 + 60, abs=3
    )  # 120 run at once, as many have finished after as long
    assert run.mean_batch == pytest.approx(60, abs=0.5)
    assert run.series[:, SERIES.COUNTED].sum() == run.counted_steps


def test_outputs_longer_than_the_calendar():
    """Waits of several laps round the calendar of 2**17 slots, finishes and saturation crossings, to the step."""
    outputs = np.array([400_000, 131_072, 131_071, 131_073, 262_145, 3])
    contexts = np.array([10, 20, 150_000, 40, 5, 131_199])
    lengths = (131_200, 300_007)
    term = Term("none", per_request=0.0, saturations=tuple(Saturation(length, 0.0) for length in lengths))
    cost = StepCost("counted", (term,), constant=1.0, us_per_unit=1e6)
    plan = SnapshotPlan(1000, first=1, every=997)
    run = run_unchecked(
        trace_of(0.0, contexts, outputs), Pool(ranks=2), "least_batch", cost, mode="timed", snapshots=plan
    )
    assert np.array_equal(run.outcome.finish_s - run.outcome.start_s, outputs)
    shots = run.snapshots
    assert len(shots.step) == 1 + (400_000 - 2) // 997
    for step, saturated in zip(shots.step, shots.saturated_tokens, strict=True):
        alive = outputs > step
        for s, length in enumerate(lengths):
            held = np.where(alive, np.minimum(contexts + step, length), 0)
            assert saturated[:, s].tolist() == [held[run.outcome.rank == r].sum() for r in (0, 1)]
    assert ended(run)["RESIDUE"] == 0


def test_due_steps_beyond_32_bits():
    """Calendars keep the low 32 bits of a step; a run of more steps (one request at a time, a week of them) goes on."""

    @compiled("boolean(int32[:, :, ::1], int32[:, ::1], int32[:, ::1], int64)")
    def is_due(first, following, due_step, step):
        kernel.schedule(first, following, due_step, 0, 0, 0, step)
        return due_step[0, 0] == np.int32(step)

    first, (following, due_step) = np.full((1, 1, 4), -1, np.int32), np.zeros((2, 1, 1), np.int32)
    for step in (5, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 3):
        assert is_due(first, following, due_step, step)
        assert first[0, 0, step % 4] == 0


def test_requests_larger_than_a_rank_are_rejected_and_counted():
    """At the front, in the middle and at the end of the trace; the others are served as if these were not there."""
    contexts = np.array([500, 10, 20, 101, 30, 100, 999])
    small = contexts <= 100
    for mode in ("saturated", "timed"):
        options = {"mode": mode, "concurrency": 2} if mode == "saturated" else {"mode": mode}
        pool = Pool(ranks=2, kv_capacity_tokens=120, growth_reserve_tokens=20)
        run = run_unchecked(
            trace_of(0.0, contexts, 4), pool, "least_tokens", CONSTANT, keep_requests=True, **options
        )
        assert ended(run)["REJECTED"] == 3
        assert np.array_equal(run.outcome.rank >= 0, small)
        without = run_unchecked(
            trace_of(0.0, contexts[small], 4), pool, "least_tokens", CONSTANT, keep_requests=True, **options
        )
        assert np.array_equal(run.outcome.finish_s[small], without.outcome.finish_s)
        for column in (SERIES.START_S, SERIES.COST, SERIES.IDEAL, SERIES.MAX_CONTEXT, SERIES.QUEUED):
            assert np.array_equal(run.series[:, column], without.series[:, column])

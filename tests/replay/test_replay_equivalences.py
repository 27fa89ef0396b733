"""Runs that must be equal, or equal up to a known change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from replay_cases import CONSTANT, LINEAR, as_bytes, quick, run_unchecked, trace_of

from equipoise.policies import get
from equipoise.policies.groups import place_in_groups
from equipoise.policies.registry import BUILT_IN, Policy
from equipoise.policies.views import copy_ranks
from equipoise.replay import Pool, SnapshotPlan, replay
from equipoise.replay.layout import SERIES
from equipoise.testing.rounds import rounds
from equipoise.testing.strategies import costs, lengths, policies, pools, traces

MODES = st.sampled_from(["saturated", "timed"])
MEMORYLESS = ("least_batch", "least_tokens", "dualpath")
SYMMETRIC = (*MEMORYLESS, "length_split")


def arrays(trace, pool, policy, cost, mode, **options):
    """All arrays of a run; None where nothing fits."""
    if mode == "saturated":
        options.setdefault("concurrency", 3 * pool.total_ranks)
    run = run_unchecked(trace, pool, policy, cost, mode=mode, warmup_turnovers=0, **options)
    return None if run is None else as_bytes(run.outcome)


CHOOSE_WHOM = ("trtllm_kv_admission", "br0", "brh", "bf_io")
"""Policies that place a later request before an earlier one where not all have room."""


@quick(15)
@given(traces(), pools(max_instances=1, max_ranks=1), costs(), MODES)
def test_one_rank_leaves_no_choice(trace, pool, cost, mode):
    runs = [arrays(trace, pool, get(name), cost, mode) for name in BUILT_IN if name not in CHOOSE_WHOM]
    assert all(run == runs[0] for run in runs)


@quick(15)
@given(traces(), costs(), MODES)
def test_one_rank_with_room_for_all_leaves_no_choice_of_requests(trace, cost, mode):
    runs = [arrays(trace, Pool(ranks=1), get(name), cost, mode) for name in ("least_batch", *CHOOSE_WHOM)]
    assert all(run == runs[0] for run in runs)


@quick(30)
@given(traces(), pools(), costs(), MODES)
def test_dualpath_between_its_limits(trace, pool, cost, mode):
    """No threshold: fewest requests. A threshold of nothing: fewest tokens. Under both readings of the average."""
    by_batch, by_tokens = (arrays(trace, pool, get(n), cost, mode) for n in ("least_batch", "least_tokens"))
    for z in (1e12, 1e300, float("inf")):
        assert arrays(trace, pool, get("dualpath", z=z), cost, mode) == by_batch
        assert arrays(trace, pool, get("dualpath", z=z, average="current"), cost, mode) == by_batch
    for average in ("projected", "current"):
        assert arrays(trace, pool, get("dualpath", z=0, average=average), cost, mode) == by_tokens


@quick(40)
@given(traces(max_requests=20), pools(), costs(), MODES, st.booleans())
def test_length_split_between_its_limits(trace, pool, cost, mode, swapped):
    """Lengths that only fall are never above the 100th percentile: all short. Lengths that only rise are all long."""
    by_batch, by_tokens = (get(n) for n in ("least_batch", "least_tokens"))
    contexts = np.unique(trace.context_tokens)
    short = replace(trace.take(slice(0, len(contexts))), context_tokens=contexts[::-1].copy())
    long = replace(short, context_tokens=contexts)
    split = get("length_split", window=30, percentile=100, swapped=swapped)
    assert arrays(short, pool, split, cost, mode) == arrays(
        short, pool, by_batch if swapped else by_tokens, cost, mode
    )  # fmt: skip
    # the first request has nothing to be longer than; on an idle pool both rules take rank 0 for it
    assume(pool.groups == 1)  # (a group's window starts empty, and by then its pool may not be)
    split = get("length_split", window=30, percentile=0, swapped=swapped)
    assert arrays(long, pool, split, cost, mode) == arrays(
        long, pool, by_tokens if swapped else by_batch, cost, mode
    )  # fmt: skip


@quick(60)
@given(rounds(), policies())
def test_one_group_equals_no_groups(case, policy):
    """The group machinery with a single group hands the policy what it would have got without."""
    bounds = np.array([0, case.size[0]])
    direct, grouped = np.full(case.size[1], -1), np.full(case.size[1], -1)
    views, memories = (
        (copy_ranks(case.ranks), copy_ranks(case.ranks)),
        (case.memory(policy, 1), case.memory(policy, 1)),
    )
    place, params = policy.spec.place, policy.param_array()
    place(views[0], case.requests, case.prices, params, memories[0], direct)
    ints, floats = (np.stack([column]) for column in memories[1])
    place_in_groups(views[1], case.requests, case.prices, bounds, 0, place, params, ints, floats, grouped)
    assert direct.tolist() == grouped.tolist()
    assert all(np.array_equal(a, b) for a, b in zip(*views, strict=True))
    assert np.array_equal(ints[0], memories[0].ints)


@quick(40)
@given(traces(), st.integers(1, 5), costs(), policies(), MODES)
def test_groups_of_one_rank_leave_the_group_rule_alone(trace, instances, cost, policy, mode):
    """With one rank a group the choice of the group is the whole choice, whatever policy works inside."""
    grouped = Pool(instances=instances, ranks=1, groups=instances)
    for rule in ("least_batch", "least_tokens"):
        flat = arrays(trace, Pool(instances=instances, ranks=1), get(rule), cost, mode)
        assert arrays(trace, grouped, policy, cost, mode, group_policy=rule) == flat


@quick(40)
@given(traces(), pools(), costs(), policies(), MODES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_scaled_prices_scale_the_clock(trace, pool, cost, policy, mode, factor):
    """Prices and arrivals stretched by a power of two: the same decisions, every time stretched, to the last bit."""
    rate = {} if mode == "saturated" else {"rate_scale": 1 / factor}
    options = {
        "mode": mode,
        "keep_requests": True,
        "warmup_turnovers": 0,
        "concurrency": 2 * pool.total_ranks,
    }
    if mode == "timed":
        del options["concurrency"]
    plain = run_unchecked(trace, pool, policy, cost, **options)
    scaled = run_unchecked(trace, pool, policy, cost.scaled(factor), **options, **rate)
    if plain is None:
        return
    assert np.array_equal(plain.outcome.rank, scaled.outcome.rank)
    assert np.array_equal(plain.outcome.ended, scaled.outcome.ended)
    for name in ("start_s", "finish_s"):
        stretched = factor * getattr(plain.outcome, name)
        assert np.array_equal(stretched, getattr(scaled.outcome, name), equal_nan=True)
    assert np.array_equal(factor * plain.series[:, SERIES.COST], scaled.series[:, SERIES.COST])


def relabelled(policy, order):
    """The policy as it works where rank ``order[r]`` is called ``r``."""
    inner = policy.spec.place.py_func

    def place(ranks, requests, prices, params, memory, out):
        view = copy_ranks(ranks, order)
        inner(view, requests, prices, params, memory, out)
        for column, seen in zip(ranks, view, strict=True):
            column[order] = seen
        out[:] = [r if r < 0 else order[r] for r in out.tolist()]

    learn, name_of = getattr(policy.spec.finished, "py_func", None), np.argsort(order)

    def finished(memory, params, request, rank, context_tokens, output_tokens):
        learn(memory, params, request, int(name_of[rank]), context_tokens, output_tokens)

    return Policy(replace(policy.spec, place=place, finished=finished if learn else None), policy.params)


@quick(40)
@given(
    traces(),
    pools(max_instances=1, max_ranks=6),
    costs(),
    policies(),
    MODES,
    st.randoms(use_true_random=False),
)
def test_ranks_have_no_names(trace, pool, cost, policy, mode, random):
    """Called by other names, the ranks live the same lives: replay treats them alike.

    Ties go to the lowest name, so the policy works on the new names throughout; whether the policies themselves look at
    names where no ranks tie is a clause of the policy contract.
    """
    order = np.arange(pool.ranks)
    random.shuffle(order)
    options = {"mode": mode, "snapshots": SnapshotPlan(200), "warmup_turnovers": 0, "engine": "reference"}
    if mode == "saturated":
        options["concurrency"] = 3 * pool.ranks
    plain = run_unchecked(trace, pool, policy, cost, **options)
    other = run_unchecked(trace, pool, relabelled(policy, order), cost, **options)
    if plain is None:
        return
    served = plain.outcome.rank >= 0
    assert np.array_equal(other.outcome.rank[served], order[plain.outcome.rank[served]])
    assert np.array_equal(other.outcome.ended, plain.outcome.ended)
    for name in ("batch", "context_tokens", "saturated_tokens"):
        assert np.array_equal(getattr(other.snapshots, name)[:, order], getattr(plain.snapshots, name))
    exact = [SERIES.START_S, SERIES.COST, SERIES.IDEAL, SERIES.MAX_BATCH, SERIES.MAX_CONTEXT]
    assert np.array_equal(other.series[:, exact], plain.series[:, exact])
    assert np.allclose(other.series, plain.series, rtol=1e-12)  # the sum over ranks is taken in another order


@quick(30)
@given(traces(min_requests=4), pools(), costs(), policies(names=MEMORYLESS), st.data())
def test_an_idle_instant_splits_a_run(trace, pool, cost, policy, data):
    """A gap long enough to empty the pool: what follows runs as if it were alone (policies without memory)."""
    cut = data.draw(st.integers(1, len(trace) - 1))
    gap = np.where(np.arange(len(trace)) >= cut, 2.0**30, 0.0)
    ticks = np.round(trace.arrival_s * 64) / 64  # so that adding the gap is exact
    cost = replace(cost, us_per_unit=1e6, constant=1.0, terms=CONSTANT.terms)
    joined = replace(trace, arrival_s=ticks + gap)
    parts = [joined.take(slice(0, cut)), joined.take(slice(cut, None))]
    whole, *alone = (
        run_unchecked(t, pool, policy, cost, mode="timed", warmup_turnovers=0) for t in (joined, *parts)
    )
    if None in (whole, *alone):
        return
    assert np.array_equal(whole.outcome.rank, np.concatenate([run.outcome.rank for run in alone]))
    spent = [run.outcome.finish_s - run.arrival_s for run in (whole, *alone)]
    assert np.array_equal(spent[0], np.concatenate(spent[1:]), equal_nan=True)


def busy_trace(n=400):
    rng = np.random.default_rng(7)
    return trace_of(np.cumsum(rng.random(n)), lengths(rng, n, 90), lengths(rng, n, 25))


@pytest.mark.parametrize("name", BUILT_IN)
def test_equal_runs_are_equal_in_any_thread(name):
    trace, pool = busy_trace(), Pool(instances=2, ranks=4, max_batch=9, groups=2)

    def run(seed):
        return as_bytes(replay(trace, pool, get(name), LINEAR, seed=seed, concurrency=60).outcome)

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(run, [1, 2, 1, 2, 1, 2, 1, 2]))
    alone = [run(1), run(2)]
    assert together == 4 * alone
    assert (alone[0] != alone[1]) == (name in ("random", "power_of_two"))


def test_groups_and_seeds_draw_from_streams_of_their_own():
    """No group of one seed repeats a group of another seed: averages over seeds count on it."""
    from equipoise.policies.calling import stream

    streams = {stream(seed, group) for seed in range(50) for group in range(20)}
    assert len(streams) == 50 * 20
    pool, trace = Pool(instances=2, ranks=8, groups=2), busy_trace()
    run = run_unchecked(trace, pool, "random", CONSTANT, concurrency=32, seed=3)
    first, second = run.outcome.rank[run.outcome.rank < 8], run.outcome.rank[run.outcome.rank >= 8] - 8
    n = min(len(first), len(second))
    assert (first[:n] == second[:n]).mean() < 0.5


def test_snapshots_do_not_disturb():
    trace, pool = busy_trace(), Pool(ranks=4)
    plain = arrays(trace, pool, "dualpath", LINEAR, "saturated", concurrency=30)
    looked = arrays(
        trace,
        pool,
        "dualpath",
        LINEAR,
        "saturated",
        concurrency=30,
        snapshots=SnapshotPlan(9),
        keep_requests=True,
    )
    for name in ("totals", "series", "rank"):
        assert looked[name] == plain[name]

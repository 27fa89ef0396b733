"""Fleets that must be equal, or equal up to a known change."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fleet_cases import learn_nothing as never_told
from fleet_cases import padded, quick
from fleet_proofs import CONSTANT, LINEAR, by_status, lived, run_case, simulated, trace_of
from fleet_strategies import fleets
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_fleet_twins import run_kernel

from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.fleet import (
    Change,
    Clients,
    Deployment,
    Hardware,
    KvMemory,
    Losses,
    Prefill,
    Speculation,
    StepExtras,
    Transfer,
)
from equipoise.fleet.kernel.layout import ACKNOWLEDGED, COUNTS, ERASED, EXACT, LEDGER
from equipoise.policies import get
from equipoise.policies.api import placement
from equipoise.policies.least_batch import SPEC as LEAST_BATCH
from equipoise.policies.least_tokens import SPEC as LEAST_TOKENS
from equipoise.policies.registry import BUILT_IN
from equipoise.replay import Information, Pool, SnapshotPlan
from equipoise.replay.layout import ENDED, SERIES
from equipoise.types import Memory, Ranks

CHOOSE_WHOM = ("trtllm_kv_admission", "br0", "brh", "bf_io")
"""Policies that place a later request before an earlier one where not all have room."""
LOOKS_AHEAD = ("brh", "bf_io", "fast_phi", "equipoise")
"""Policies that ask when an instance starts its next step, which pictures of several instances do not say."""

DOUBTS = ("equipoise",)
"""Policies that trust an old report less: ends that they are not told of look like requests of others."""


def seeds(examples):
    """Examples that are seeds: nothing to shrink."""
    return settings(quick(examples), phases=[Phase.generate])


def everything(rng, n, *, scale=1.0, **parts):
    """A trace, a deployment with everything on, and a rate, all times `scale` times as long."""
    arrival_s = np.cumsum(rng.exponential(0.03, n))
    session = np.where(rng.random(n) < 0.7, rng.integers(0, n // 4, n), -1)
    trace = trace_of(
        arrival_s, rng.integers(1, 300, n), rng.geometric(1 / 25, n), session=session,
        think_s=rng.exponential(0.5, n) * scale,
    )  # fmt: skip
    s = scale
    on = {
        "pool": Pool(2, 3, kv_capacity_tokens=1500, max_batch=8),
        "hardware": (Hardware(1, 1, speed=0.75),),
        "prefill": Prefill("ranks", chunk_tokens=150, s_per_token=2e-5 * s),
        "transfer": Transfer(0.01 * s, 1e-4 * s),
        "memory": KvMemory(16, "swap", swap_s_per_token=1e-5 * s),
        "step": StepExtras(
            overhead_us=900.0 * s, graph_sizes=(2, 4, 8), ffn_us_per_mean_token=50.0 * s, ffn_us_per_max_token=90.0 * s,
            comm_us=300.0 * s, comm_us_per_mean_token=9.0 * s, comm_us_per_max_token=20.0 * s, ep_skew=1.3,
            ep_skew_sigma=0.2, rank_speed_sigma=0.1,
        ),
        "speculation": Speculation(3, 0.6, query_reads=0.3),
        "clients": Clients(abort_share=0.2, patience_s=1.5 * s),
        "changes": (
            Change(2.0 * s, "die", 0, 1, notice_s=0.2 * s), Change(5.0 * s, "return", 0, 1, stall_s=0.1 * s),
            Change(3.0 * s, "die", 1, notice_s=0.3 * s, stall_s=0.05 * s), Change(4.0 * s, "return", 1),
            Change(6.0 * s, "drain", 0, 2), Change(7.0 * s, "resume", 0, 2),
        ),
        "losses": Losses(retry_s=0.25 * s, most_tries=2),
    }  # fmt: skip
    return trace, Deployment(**(on | parts))


VIEWS = {
    "exact": Information(),
    "a ledger": Information("ledger", 2, delay_s=0.125),
    "acknowledged": Information("acknowledged", 3, period_s=0.0625, delay_steps=1),
    "erased, by instance": Information("erased", 2, delay_s=0.0625, split="instance"),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("factor", [0.25, 2.0, 1024.0])
@pytest.mark.parametrize("prefill", ["ranks", "pool", "delay"])
def test_scaled_prices_and_times_scale_everything(view, factor, prefill):
    """All that has seconds in it stretched by a power of two: the same decisions, every time stretched, to the bit."""
    runs = []
    for scale in (1.0, factor):
        informed = replace(
            VIEWS[view], delay_s=VIEWS[view].delay_s * scale, period_s=VIEWS[view].period_s * scale
        )
        trace, deployment = everything(np.random.default_rng(8), 300, scale=scale, information=informed)
        where = Prefill(prefill, 0.02 * scale, 2e-5 * scale, instances=2, ranks=2, chunk_tokens=150)
        deployment = replace(deployment, prefill=where)
        # larger prices, or a slower clock: all else is given in seconds and microseconds
        slower = replace(LINEAR, us_per_unit=LINEAR.us_per_unit * scale)
        cost = LINEAR.scaled(scale) if factor > 1.5 else slower
        runs.append(
            simulated(trace, deployment, "dualpath", cost, mode="sessions", rate_scale=1 / scale, seed=5)
        )
    plain, scaled = runs
    assert plain.counts["lost"] > 5
    assert plain.counts["aborted"] > 20
    assert plain.counts["preemptions"] > 0 or prefill == "delay"
    assert np.array_equal(plain.outcome.rank, scaled.outcome.rank)
    assert np.array_equal(plain.outcome.ended, scaled.outcome.ended)
    assert plain.counts == scaled.counts
    for name in ("status", "tokens", "tries", "preemptions"):
        assert np.array_equal(getattr(plain.more, name), getattr(scaled.more, name))
    for name in ("came_s", "queued_s", "placed_s", "first_s", "ended_s"):
        stretched = factor * getattr(plain.more, name)
        assert np.array_equal(stretched, getattr(scaled.more, name), equal_nan=True), name
    assert np.array_equal(factor * plain.outcome.start_s, scaled.outcome.start_s, equal_nan=True)
    assert np.array_equal(factor * plain.series[:, SERIES.START_S], scaled.series[:, SERIES.START_S])


least_batch, least_tokens = LEAST_BATCH.place, LEAST_TOKENS.place


@placement
def renamed(ranks, requests, prices, params, memory, out):
    """Least batch or least tokens as it works where rank ``order[r]`` is called ``r``; order is what it remembers."""
    order = memory.ints
    n = len(order)
    view = Ranks(
        ranks.batch[order], ranks.context_tokens[order], ranks.free_tokens[order], ranks.free_slots[order],
        ranks.saturated_tokens[order], ranks.unseen_requests[order], ranks.instance[order], ranks.rank[order],
        ranks.starts_in_s[order], ranks.report_age_steps[order],
    )  # fmt: skip
    if params[0] == 0.0:
        least_batch(view, requests, prices, params, Memory(memory.ints[:0], memory.floats), out)
    else:
        least_tokens(view, requests, prices, params, Memory(memory.ints[:0], memory.floats), out)
    for i in range(len(out)):
        if out[i] >= 0:
            out[i] = order[out[i]]
    for j in range(n):
        r = order[j]
        ranks.batch[r], ranks.context_tokens[r] = view.batch[j], view.context_tokens[j]
        ranks.free_tokens[r], ranks.free_slots[r] = view.free_tokens[j], view.free_slots[j]
        ranks.saturated_tokens[r] = view.saturated_tokens[j]


def test_ranks_of_an_instance_have_no_names():
    """Called by other names, ranks with their capacities, speeds and deaths live the same lives.

    Those of one instance that die at once lose their requests in the order of their names: not looked at.
    """
    seen = Counter()

    @seeds(100)
    @given(
        fleets(always=("changes", "prefill", "uneven"), never=("few_rows", "information", "by_instance")),
        st.booleans(),
        st.integers(0, 999),
    )
    def run(case, by_tokens, seed):
        if case is None:
            return
        case.layout = case.layout._replace(group_starts=np.array([0, case.layout.instances]))
        width, ranks = case.layout.ranks_per_instance, len(case.ranked.slowness)
        rng = np.random.default_rng(seed)
        order = np.concatenate([p * width + rng.permutation(width) for p in range(case.layout.instances)])
        case.place, case.params = renamed, np.array([float(by_tokens)])
        case.settings = case.settings._replace(tells_finished=0, keep_requests=1)
        case.memory_floats, case.memory_ints = np.zeros((1, 0)), np.arange(ranks)[None, :].copy()
        plain, more = run_case(case, run_kernel)
        if (case.changes.rank < 0).any() and more.counts[COUNTS.LOST]:
            return

        case.memory_ints = order[None, :].copy()
        name_of = np.argsort(order)  # rank r of the other fleet is what rank name_of[r] is here
        columns = ("kv_capacity_tokens", "max_batch", "slowness")
        case.ranked = case.ranked._replace(**{c: getattr(case.ranked, c)[name_of] for c in columns})
        inside = case.changes.rank.copy()
        for c in np.flatnonzero(inside >= 0):
            inside[c] = order[case.changes.instance[c] * width + inside[c]] % width
        case.changes = case.changes._replace(rank=inside)
        other, more_other = run_case(case, run_kernel)
        served = plain.rank >= 0
        assert np.array_equal(other.rank[served], order[plain.rank[served]])
        assert np.array_equal(
            np.delete(other.ended, ENDED.ERROR_RANK), np.delete(plain.ended, ENDED.ERROR_RANK)
        )
        assert np.array_equal(more.counts, more_other.counts)
        for name in ("status", "tries", "tokens"):
            assert np.array_equal(getattr(more, name), getattr(more_other, name))
        # the mean over ranks is taken in another order
        for a, b in ((plain.start_s, other.start_s), (more.ended_s, more_other.ended_s)):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        seen["moved"] += not np.array_equal(other.rank, plain.rank)
        seen["lost"] += more.counts[COUNTS.LOST] > 0

    run()
    assert seen["moved"] > 12
    assert seen["lost"] > 5


@pytest.mark.parametrize("seed", range(3))
def test_one_rank_leaves_no_choice(seed):
    """All policies that take requests in order are one where there is one rank, whatever is switched on."""
    rng = np.random.default_rng(seed)
    trace, deployment = everything(
        rng, 250, pool=Pool(1, 1, kv_capacity_tokens=4000, max_batch=24), hardware=(),
        changes=(Change(2.0, "die", 0, notice_s=0.2), Change(3.0, "return", 0)),
    )  # fmt: skip
    runs = {
        name: lived(simulated(trace, deployment, name, LINEAR, mode="sessions"))
        for name in BUILT_IN
        if name not in CHOOSE_WHOM
    }
    first = runs["least_batch"]
    for name, run in runs.items():
        different = [column for column in run if run[column] != first[column]]
        assert different == [], name
    roomy = replace(deployment, pool=Pool(1, 1), clients=Clients(abort_share=0.2))
    first = lived(simulated(trace, roomy, "least_batch", LINEAR, mode="sessions"))
    for name in CHOOSE_WHOM:
        assert lived(simulated(trace, roomy, name, LINEAR, mode="sessions")) == first, name


CONTEXT_ONLY = StepCost(
    "context alone",
    (Term("c", 1.0, per_request=0.0, per_100k_context=700.0, saturations=(Saturation(150, 300.0),)),),
    constant=1.0,
    us_per_unit=1e4,
)


@pytest.mark.parametrize("drafts", [1, 4])
@pytest.mark.parametrize("memory", ["none", "recompute", "swap"])
def test_drafts_that_are_never_accepted_and_cost_nothing_change_nothing(drafts, memory):
    trace, deployment = everything(np.random.default_rng(3), 400, step=StepExtras(overhead_us=500.0))
    deployment = replace(deployment, memory=KvMemory(16, memory), clients=Clients(abort_share=0.2))
    runs = [
        simulated(trace, replace(deployment, speculation=s), "dualpath", CONTEXT_ONLY, mode="sessions")
        for s in (Speculation(), Speculation(drafts, 0.0, query_reads=0.0))
    ]
    plain, speculative = (lived(run) for run in runs)
    counts = [run.more.counts.copy() for run in runs]
    assert counts[0][COUNTS.QUERY_TOKENS] * (1 + drafts) == counts[1][COUNTS.QUERY_TOKENS]
    del plain["counts"], speculative["counts"]
    assert plain == speculative
    for a in counts:
        a[COUNTS.QUERY_TOKENS] = 0
    assert counts[0].tolist() == counts[1].tolist()
    assert runs[0].outcome.totals.tobytes() == runs[1].outcome.totals.tobytes()
    assert (counts[0][COUNTS.PREEMPTIONS] > 0) == (memory != "none")


@pytest.mark.parametrize("drafts", [1, 2, 7, 32])
def test_drafts_that_are_always_accepted_divide_the_steps(drafts):
    rng = np.random.default_rng(drafts)
    outputs = rng.integers(1, 90, 300)
    trace = trace_of(np.cumsum(rng.exponential(1.0, 300)), 10, outputs)
    for abort_share in (0.0, 0.5):
        deployment = Deployment(
            Pool(2, 2), speculation=Speculation(drafts, 1.0), clients=Clients(abort_share=abort_share)
        )
        run = simulated(trace, deployment, "least_batch", CONSTANT, mode="timed")
        took = run.more.ended_s - run.outcome.start_s
        assert np.allclose(took, np.ceil(run.more.tokens / (drafts + 1)), atol=1e-6)
        assert np.allclose(run.more.first_s - run.outcome.start_s, 1.0)
        assert by_status(run)["aborted"] == (run.more.tokens < outputs).sum()
        assert (by_status(run)["aborted"] > 50) == (abort_share > 0)


def blocks(case, shift):
    return case.life._replace(block_tokens=1 << shift, block_shift=shift)


@seeds(40)
@given(fleets(never=("blocks", "few_rows"), drain=True), st.integers(1, 5))
def test_blocks_of_a_token_or_of_ranks_without_limit_are_none(case, shift):
    if case is None:
        return
    plain = run_case(case, run_kernel)
    case.life = blocks(case, 0)
    assert [x.tobytes() for o in run_case(case, run_kernel) for x in o] == [
        x.tobytes() for o in plain for x in o
    ]
    case.ranked = case.ranked._replace(
        kv_capacity_tokens=np.full_like(case.ranked.kv_capacity_tokens, 1 << 40)
    )
    case.layout = case.layout._replace(kv_capacity_tokens=1 << 40)
    case.place, case.finished, case.params = least_tokens, never_told, np.zeros(0)
    case.settings = case.settings._replace(tells_finished=0)
    plain = run_case(case, run_kernel)
    case.life = blocks(case, shift)
    assert [x.tobytes() for o in run_case(case, run_kernel) for x in o] == [
        x.tobytes() for o in plain for x in o
    ]


@pytest.mark.parametrize("preemption", ["none", "recompute", "swap"])
def test_memory_is_worth_its_whole_blocks(preemption):
    """A rank of 1503 tokens in blocks of 16 is one of 1488; unlike one of 1504."""
    runs = []
    for capacity in (1488, 1503, 1504):
        trace, deployment = everything(
            np.random.default_rng(6), 400, pool=Pool(2, 3, kv_capacity_tokens=capacity)
        )
        deployment = replace(deployment, memory=KvMemory(16, preemption))
        # not dualpath, whose projected mean adds up what is free on all ranks, odd tokens included
        runs.append(lived(simulated(trace, deployment, "least_tokens", LINEAR, mode="sessions")))
    assert runs[0] == runs[1]
    assert runs[1] != runs[2]


def with_view(case, **how):
    return replace(case, settings=case.settings._replace(**how))


def memoryless(case):
    """The case under least tokens, with memories for any number of replicas and groups."""
    case.place, case.finished, case.params = least_tokens, never_told, np.zeros(0)
    case.settings = case.settings._replace(tells_finished=0, keep_requests=1)
    case.memory_ints, case.memory_floats = padded([np.zeros(0, np.int64)] * 64), padded([np.zeros(0)] * 64)
    return case


def same(one, other):
    """Both runs, bit for bit."""
    for a, b in zip(one, other, strict=True):
        for name, x in a._asdict().items():
            assert x.tobytes() == getattr(b, name).tobytes(), (name, x, getattr(b, name))


@seeds(80)
@given(
    fleets(always=("changes",), never=("information", "by_instance", "few_rows")),
    st.integers(1, 5), st.integers(0, 5), st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_a_ledger_of_all_requests_is_the_truth_however_old_the_reports(case, period, delay_steps, delay_s):
    if case is None:
        return
    memoryless(case)
    exact = run_case(with_view(case, knows=EXACT, replicas=1), run_kernel)
    ledger = with_view(
        case, knows=LEDGER, replicas=1, report_period_steps=period, report_delay_steps=delay_steps,
        report_delay_s=delay_s,
    )  # fmt: skip
    same(exact, run_case(ledger, run_kernel))


@seeds(60)
@given(
    fleets(always=("preemption", "leaving"), never=("information", "by_instance", "few_rows", "changes")),
    st.sampled_from([ACKNOWLEDGED, ERASED]),
)
def test_reports_of_every_step_without_delay_are_the_truth(case, knows):
    if case is None or case.layout.instances > 1:
        return
    case.life = case.life._replace(report_period_s=0.0)
    memoryless(case)
    exact = run_case(with_view(case, knows=EXACT, replicas=1), run_kernel)
    same(exact, run_case(with_view(case, knows=knows, replicas=1), run_kernel))


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_ledger_is_the_truth_for_every_policy(name):
    dies, comes = Change(2.0, "die", 0, 1, 0.2), Change(5.0, "return", 0, 1)
    one = {"pool": Pool(1, 4, kv_capacity_tokens=1500, max_batch=8), "hardware": (), "changes": (dies, comes)}
    if name in DOUBTS:
        one |= {"changes": (), "clients": Clients()}
    pools = [one]
    if name not in LOOKS_AHEAD:
        pools.append({})
    for parts in pools:
        runs = []
        for informed in (
            Information(),
            Information("ledger"),
            Information("ledger", delay_s=0.3, period_steps=7, delay_steps=2),
        ):
            trace, deployment = everything(np.random.default_rng(9), 250, information=informed, **parts)
            runs.append(lived(simulated(trace, deployment, get(name), LINEAR, mode="sessions", seed=2)))
        assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize("rule", ["least_batch", "least_tokens"])
@pytest.mark.parametrize("policy", ["least_batch", "dualpath", "round_robin", "vllm_033", "fast_phi"])
def test_one_writer_that_chooses_instance_then_rank_is_one_group_an_instance(policy, rule):
    """`split = "instance"` with one replica, whatever it is said to know, is the two-level choice on the truth."""
    pool = Pool(3, 2, kv_capacity_tokens=1500, max_batch=8)
    dies, comes = Change(2.0, "die", 0, 1, 0.2), Change(5.0, "return", 0, 1)
    changes = (dies, comes, Change(3.0, "drain", 2), Change(4.0, "resume", 2))
    runs = {}
    for name, groups, informed in (
        ("groups", 3, Information()),
        ("exact", 1, Information("exact", split="instance")),
        ("ledger", 1, Information("ledger", delay_steps=9, split="instance")),
    ):
        trace, deployment = everything(
            np.random.default_rng(10), 300, pool=replace(pool, groups=groups), hardware=(), information=informed,
            changes=changes,
        )  # fmt: skip
        runs[name] = lived(simulated(trace, deployment, policy, LINEAR, mode="sessions", group_policy=rule))
    assert runs["groups"] == runs["exact"] == runs["ledger"]


@pytest.mark.parametrize("replicas", [2, 3, 8])
@pytest.mark.parametrize("policy", ["least_batch", "least_tokens", "dualpath"])
def test_writers_with_exact_pictures_are_one_router(policy, replicas):
    """One writer an instance, exact pictures, nobody waits: it does not matter through whom a request comes."""
    pool = Pool(3, 4)
    rng = np.random.default_rng(replicas)
    trace = trace_of(
        np.cumsum(rng.exponential(0.03, 500)), rng.integers(1, 300, 500), rng.geometric(1 / 25, 500)
    )
    # instances that never idle would place several at once, turn by turn: a step shorter than any gap does not
    fast = replace(LINEAR, us_per_unit=1.0)
    runs = []
    for count, split in ((1, "instance"), (replicas, "instance")):
        deployment = Deployment(pool, information=Information("exact", count, split=split))
        runs.append(lived(simulated(trace, deployment, policy, fast, mode="timed")))
    assert runs[0] == runs[1]


def test_snapshots_kept_requests_and_the_series_do_not_disturb():
    trace, deployment = everything(np.random.default_rng(12), 300)
    plain = simulated(trace, deployment, "dualpath", LINEAR, mode="sessions")
    looked = simulated(
        trace, deployment, "dualpath", LINEAR, mode="sessions", snapshots=SnapshotPlan(500), series_rows=64
    )
    bare = simulated(trace, deployment, "dualpath", LINEAR, mode="sessions", keep_requests=False)
    for other in (looked, bare):
        assert other.outcome.totals.tobytes() == plain.outcome.totals.tobytes()
        assert other.outcome.rank.tobytes() == plain.outcome.rank.tobytes()
        assert other.more.counts.tobytes() == plain.more.counts.tobytes()
        assert other.more.status.tobytes() == plain.more.status.tobytes()

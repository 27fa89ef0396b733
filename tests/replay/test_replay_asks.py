"""What a policy is asked, and told: when it is called, what the clocks and waits say, what it learns from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_cases import CONSTANT, as_bytes, quick, run_unchecked, trace_of

from equipoise.policies.api import PolicySpec, fewest_requests, learning, one_by_one, placement
from equipoise.policies.registry import Policy
from equipoise.replay import Pool
from equipoise.replay import engine as engine_module
from equipoise.replay.kernel import sort_ascending
from equipoise.testing.strategies import costs, pools, traces

BOTH = ("kernel", "reference")
FEWEST, TOLD = 0, 1


@learning
def hash_what_ended(memory, params, request, rank, context_tokens, output_tokens):
    """Mix everything told, in the order told, into one number."""
    for value in (request, rank, context_tokens, output_tokens):
        memory.ints[FEWEST] = (31 * memory.ints[FEWEST] + value) % 1_000_003
    memory.ints[TOLD] += 1
    memory.floats[0] += output_tokens


def by_what_ended(ranks, requests, i, prices, params, memory):
    """A rank drawn by the hash: any difference in what was told shows in the placements."""
    rank = (memory.ints[FEWEST] + requests.request[i]) % len(ranks.batch)
    if ranks.free_tokens[rank] >= requests.reserve_tokens[i]:
        return rank
    return fewest_requests(ranks, requests.reserve_tokens[i], 1 << 62)


LEARNER = Policy(
    PolicySpec(
        "learner",
        one_by_one(by_what_ended),
        "",
        "",
        memory_size=lambda context: (2, 1),
        finished=hash_what_ended,
    ),
    {},
)


@quick(60)
@given(traces(min_requests=8), pools(), costs(), st.sampled_from(["saturated", "timed"]))
def test_kernel_and_twin_tell_the_same_in_the_same_order(trace, pool, cost, mode):
    fast, slow = (run_unchecked(trace, pool, LEARNER, cost, mode=mode, engine=e) for e in BOTH)
    if fast is not None:
        assert as_bytes(fast.outcome) == as_bytes(slow.outcome)


@pytest.mark.parametrize("engine", BOTH)
def test_everything_that_ended_is_told_once(engine, monkeypatch):
    trace = trace_of(np.arange(50) * 0.7, 5, 1 + np.arange(50) % 7)
    made = []
    new_memory = Policy.new_memory

    def noted(self, *arguments, **named):
        made.append(new_memory(self, *arguments, **named))
        return made[-1]

    stacked = []
    monkeypatch.setattr(Policy, "new_memory", noted)
    memories = engine_module.group_memories
    monkeypatch.setattr(
        engine_module,
        "group_memories",
        lambda *arguments, **named: stacked.extend(memories(*arguments, **named)) or stacked,
    )
    run_unchecked(trace, Pool(instances=2, ranks=2, groups=2), LEARNER, CONSTANT, mode="timed", engine=engine)
    ints, floats = stacked
    assert ints[:, TOLD].sum() == 50
    assert floats.sum() == trace.output_tokens.sum()


def waits(steps):
    """Place a request only after it has waited so many steps, and never on an idle pool's account."""

    def place(ranks, requests, prices, params, memory, out):
        for i in range(len(out)):
            out[i] = -1
            if requests.waited_steps[i] >= steps or ranks.batch.sum() == 0:
                out[i] = 0
                ranks.batch[0] += 1

    return place


def noting(inner, notes):
    """A policy in plain Python that keeps what it was shown."""

    def place(ranks, requests, prices, params, memory, out):
        notes.append((ranks, requests))
        inner(ranks, requests, prices, params, memory, out)

    return Policy(PolicySpec("noting", place, "", ""), {})


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("mode", ["saturated", "timed"])
def test_a_kept_request_is_offered_once_an_event_and_waits_whole_steps(steps, mode):
    notes = []
    trace = trace_of(np.arange(9) * 0.25, 4, 40)
    run_unchecked(trace, Pool(ranks=1), noting(waits(steps), notes), CONSTANT, mode=mode, keep_requests=True)
    for request in range(1, 9):
        offers = [
            (int(asked.waited_steps[k]), float(asked.waited_s[k]))
            for _, asked in notes
            for k in np.flatnonzero(asked.request == request)
        ]
        assert [s for s, _ in offers] == list(range(steps + 1))
        seconds = np.diff([s for _, s in offers])
        assert np.allclose(seconds, 1.0), "a step takes a second here"


def test_the_clock_of_other_instances_is_shown():
    """Instances of one rank whose steps take a second: what starts when is what the ranks said."""
    notes = []

    def alternate(ranks, requests, prices, params, memory, out):
        for i in range(len(out)):
            out[i] = requests.request[i] % 2
            ranks.batch[out[i]] += 1

    trace = trace_of(np.arange(12) * 0.3, 4, 3)
    run = run_unchecked(trace, Pool(instances=2, ranks=1), noting(alternate, notes), CONSTANT, mode="timed")
    seen = 0
    for ranks, asked in notes:
        assert ranks.rank.tolist() == [0, 1]
        assert ranks.instance.tolist() == [0, 1]
        assert (ranks.starts_in_s >= 0).all()
        for i, request in enumerate(asked.request.tolist()):
            promised = trace.arrival_s[request] + asked.waited_s[i] + ranks.starts_in_s[request % 2]
            assert run.outcome.start_s[request] == pytest.approx(promised, abs=1e-9)
            seen += 1
    assert seen == 12
    assert any(r.starts_in_s.max() > 0 for r, _ in notes)


def test_a_group_sees_its_ranks_by_their_own_numbers():
    notes = []

    def first(ranks, requests, prices, params, memory, out):
        out[:] = 0

    pool = Pool(instances=3, ranks=2, groups=3)
    run_unchecked(trace_of(np.zeros(9), 4, 3), pool, noting(first, notes), CONSTANT, mode="timed")
    shown = {(tuple(r.rank.tolist()), tuple(r.instance.tolist())) for r, _ in notes}
    assert shown == {((0, 1), (0, 0)), ((2, 3), (1, 1)), ((4, 5), (2, 2))}


def test_the_queue_beyond_a_round_stays_behind_a_kept_request():
    """A round that was not placed whole ends the event: nobody in the next thousand slips past."""
    offered = []

    @placement
    def keep_the_fifth(ranks, requests, prices, params, memory, out):
        for i in range(len(out)):
            out[i] = -1 if requests.request[i] == 5 and requests.waited_steps[i] < 2 else 0

    def noted(ranks, requests, prices, params, memory, out):
        keep_the_fifth.py_func(ranks, requests, prices, params, memory, out)
        offered.append(requests.request.tolist())

    policy = Policy(PolicySpec("noted", noted, "", ""), {})
    run_unchecked(trace_of(np.zeros(1500), 1, 2), Pool(ranks=1), policy, CONSTANT, mode="timed")
    assert offered[0] == list(range(1024))
    assert offered[1][0] == 5
    assert offered[1][1:] == list(range(1024, 1500))


@quick(100)
@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 60))
def test_what_ended_is_sorted(values, count):
    count = min(count, len(values))
    array = np.array(values, dtype=np.int64)
    sort_ascending(array, count)
    assert array.tolist() == sorted(values[:count]) + values[count:]


@pytest.mark.parametrize("engine", BOTH)
def test_memories_of_unequal_groups(engine):
    """Three instances in two groups: one memory is sized for four ranks, the other for two."""

    def in_turn(ranks, requests, i, prices, params, memory):
        memory.ints[len(ranks.batch) - 1] += 1  # the last place of its own memory
        return memory.ints[len(ranks.batch) - 1] % len(ranks.batch)

    spec = PolicySpec("sized", one_by_one(in_turn), "", "", memory_size=lambda context: (context.ranks, 0))
    pool = Pool(instances=3, ranks=2, groups=2)
    run = run_unchecked(
        trace_of(np.zeros(30), 5, 4), pool, Policy(spec, {}), CONSTANT, mode="timed", engine=engine
    )
    assert run.finished == 30

"""``dualpath,z=auto``: its imagined pools are what `dualpath` would have made, and it follows the cheapest."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cost import StepCost, Term, load
from equipoise.errors import InputError, PolicyError
from equipoise.policies import get, parse
from equipoise.policies.api import Parameter
from equipoise.policies.dualpath_auto import threshold
from equipoise.policies.imagined import (
    CLOCK,
    COUNT,
    INSTANCES,
    RUNNING,
    THRESHOLDS,
    enter,
    imagined_of,
    remove,
    slot,
)
from equipoise.policies.registry import Policy
from equipoise.replay import Pool, replay
from equipoise.testing.rounds import make_round
from equipoise.testing.strategies import costs, pools, traces
from equipoise.traces import Trace
from equipoise.types import Memory

AUTO = parse("dualpath,z=auto")
BATCH_ALONE = StepCost("batch alone", (Term("all"),), constant=5.0)
CONTEXT_ALONE = StepCost("context alone", (Term("all", per_request=0.0, per_100k_context=9.0),), constant=5.0)


def watched(policy: Policy, note, **changed) -> Policy:
    """The policy in plain Python; ``note(ranks, memory, prices)`` is called at the end of every round."""
    place = policy.spec.place.py_func

    def place_and_note(ranks, requests, prices, params, memory, out):
        place(ranks, requests, prices, params, memory, out)
        note(ranks, memory, prices)

    finished = policy.spec.finished and policy.spec.finished.py_func
    return replace(
        policy, spec=replace(policy.spec, **{"place": place_and_note, "finished": finished, **changed})
    )


def with_thresholds(*values: float) -> Policy:
    """Other thresholds in its memory."""

    def start(memory: Memory, context) -> None:
        AUTO.spec.start(memory, context)
        imagined_of(memory).thresholds[:] = np.resize(values, COUNT)

    return replace(AUTO, spec=replace(AUTO.spec, start=start))


def outcome(trace, pool, policy, cost, **how):
    return replay(trace, pool, policy, cost, warmup_turnovers=0, **how).outcome


def agentic(requests=400, seed=1):
    """Long and uneven contexts, outputs short enough for the slow twin."""
    rng = np.random.default_rng(seed)
    contexts = np.clip(rng.lognormal(10.5, 0.9, requests), 1, 1e6).astype(np.int64)
    return Trace.from_columns("short", np.arange(requests) / 20, contexts, rng.integers(2, 40, requests))


@pytest.mark.parametrize("average", ["projected", "current"])
@pytest.mark.parametrize("how", [{"mode": "timed"}, {"concurrency": 60}], ids=["timed", "saturated"])
@pytest.mark.parametrize("z", [1.0, 1.2, 2.5])
def test_with_one_threshold_it_is_plain_dualpath(z, how, average):
    only = with_thresholds(z)
    only = replace(only, params={**only.params, "average": average})
    pool, cost = Pool(instances=2, ranks=4), load("v2")
    auto = outcome(agentic(), pool, only, cost, **how)
    plain = outcome(agentic(), pool, get("dualpath", z=z, average=average), cost, **how)
    for name, array in auto._asdict().items():
        assert array.tobytes() == getattr(plain, name).tobytes(), name


@pytest.mark.parametrize("max_batch", [None, 9])
@pytest.mark.parametrize("k", [0, 5, 9])
def test_an_imagined_pool_is_the_pool_its_threshold_makes(k, max_batch):
    """Saturated, one instance: the same requests at the same steps, so the same loads after every round."""
    imagined, real = [], []

    def note_imagined(ranks, memory, prices):
        found = imagined_of(memory)
        context = found.base[k] + found.batch[k] * found.header[CLOCK]
        imagined.append((found.batch[k].tolist(), context.tolist()))

    def note_real(ranks, memory, prices):
        real.append((ranks.batch.tolist(), ranks.context_tokens.tolist()))

    pool = Pool(ranks=4, max_batch=max_batch)
    for policy, note in ((AUTO, note_imagined), (get("dualpath", z=THRESHOLDS[k]), note_real)):
        replay(agentic(150), pool, watched(policy, note), load("v1"), concurrency=30, warmup_turnovers=0)
    assert len(real) > 50
    assert imagined == real


@pytest.mark.parametrize(
    ("cost", "low", "high"), [(BATCH_ALONE, 1.5, 3.0), (CONTEXT_ALONE, 1.01, 1.15)], ids=["batch", "context"]
)
def test_it_goes_to_the_threshold_that_the_cost_asks_for(cost, low, high):
    chosen = []
    policy = watched(
        AUTO, lambda ranks, memory, prices: chosen.append(threshold(imagined_of(memory), ranks, prices))
    )
    replay(agentic(800), Pool(ranks=8), policy, cost, concurrency=96, warmup_turnovers=0)
    assert low <= np.median(chosen[len(chosen) // 2 :]) <= high


def test_it_changes_its_mind_with_the_traffic():
    """A threshold that was cheap does not stay the choice once another has been cheaper for long."""
    memory = AUTO.new_memory(0, load("v1").prices(), 4)
    found = imagined_of(memory)
    found.learnt[:] = (9.0, 100.0, 10_000.0, 5.0, 10.0, 1e6)  # long watched, a life of ten steps
    place, params = AUTO.spec.place, AUTO.param_array()
    for cheap in (2, 8, 5):
        for _ in range(1500):
            found.last[:] = 1.0 + np.abs(np.arange(COUNT) - cheap)
            case = make_round([[5]] * 4, [], load("v1"))
            place(case.ranks, case.requests, case.prices, params, memory, np.empty(0, np.int64))
        found.learnt[5] = 320.0
        assert threshold(found, case.ranks, case.prices) == THRESHOLDS[cheap]


def test_where_nobody_tells_of_ends_the_sizes_and_the_cost_say_it():
    chosen = []
    deaf = watched(AUTO, lambda r, m, p: chosen.append(threshold(imagined_of(m), r, p)), finished=None)
    run = replay(agentic(), Pool(ranks=8), deaf, load("v1"), concurrency=60, warmup_turnovers=0)
    assert run.finished == 400
    assert (
        len({round(z, 3) for z in chosen}) > 20
    )  # it follows the load, which the list of thresholds does not
    assert all(THRESHOLDS[0] <= z <= THRESHOLDS[-1] for z in chosen)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 500), st.integers(0, 2)), max_size=60))
def test_what_is_imagined_adds_up_whatever_comes_and_goes(events):
    """Requests that end, end twice, come twice, or take the place of an older one."""
    memory = AUTO.new_memory(0, load("v2").prices(), 3)
    found, alive = imagined_of(memory), {}
    rng = np.random.default_rng(1)
    for request, tokens, steps in events:
        found.header[CLOCK] += steps
        at = slot(found, request)
        if steps == 2 and found.request[at] == request + 1:
            remove(found, at)
            alive.pop(at)
            continue
        ranks = rng.integers(0, 3, (1, COUNT))
        enter(found, request, tokens, ranks, 0)
        alive[at] = (tokens, int(found.header[CLOCK]), ranks[0])
    assert found.header[RUNNING] == len(alive) == np.count_nonzero(found.request)
    for k in range(COUNT):
        mine = [(t - c, t, r[k]) for t, c, r in alive.values()]
        for rank in range(3):
            here = [(base, tokens) for base, tokens, r in mine if r == rank]
            assert found.batch[k, rank] == len(here)
            assert found.base[k, rank] == sum(base for base, _ in here)
            for s, length in enumerate(found.lengths):
                assert found.saturated[k, rank, s] == sum(min(t, length) for _, t in here)
    assert found.header[INSTANCES] == 1


@settings(max_examples=25, deadline=None, derandomize=True)
@given(traces(max_requests=30), pools(), costs(), st.sampled_from(["saturated", "timed"]))
def test_all_that_was_imagined_is_gone_at_the_end(trace, pool, cost, mode):
    kept = {}
    policy = watched(AUTO, lambda ranks, memory, prices: kept.update({id(memory.ints): memory}))
    try:
        replay(
            trace,
            pool,
            policy,
            cost,
            mode=mode,
            concurrency=9 if mode == "saturated" else None,
            warmup_turnovers=0,
        )
    except PolicyError:
        raise
    except InputError:  # no request fits, or the run is too short to count a step
        return
    for memory in kept.values():
        found = imagined_of(memory)
        assert found.header[RUNNING] == found.batch.sum() == found.base.sum() == found.saturated.sum() == 0


def test_its_memory_is_bounded():
    for ranks, most in ((64, 2 << 20), (6400, 28 << 20)):
        memory = AUTO.new_memory(0, load("h200").prices(), ranks)
        assert 8 * (memory.ints.size + memory.floats.size) < most


def test_the_word_stands_beside_numbers():
    assert AUTO.label == "dualpath z=auto"
    assert AUTO.text == "dualpath,z=auto,average=projected"
    assert parse(AUTO.text).text == AUTO.text
    assert pickle.loads(pickle.dumps(AUTO)).spec.finished is AUTO.spec.finished
    assert AUTO.params["z"] == "auto"
    plain = get("dualpath", z=1.2)
    assert plain.spec is get("dualpath").spec
    assert plain.spec.finished is None
    for bad in ("automatic", "", -1, float("nan")):
        with pytest.raises(PolicyError, match="number from 0 to inf, or auto"):
            get("dualpath", z=bad)
    with pytest.raises(PolicyError, match="give low=0 or more"):
        Parameter("z", 1.0, "", words=("auto",))

"""The simulated ranks of the mock engine: lock-step, capacity, conservation."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.cost import StepCost, Term
from equipoise.errors import InputError
from equipoise.testing.mock_engine import Job, LockStep, State

COST = StepCost("lin", (Term("t", per_request=1.0, per_100k_context=100.0),), constant=10.0, unit="us")


def test_a_light_rank_is_as_slow_as_the_heaviest() -> None:
    """The law of the barrier: a short request beside a long one on another rank takes the long one's steps."""

    def time_of_light(heavy_tokens: int) -> float:
        core = LockStep(2, COST)
        light = Job(1, 10, 5)
        core.submit(light)
        if heavy_tokens:
            core.submit(Job(0, heavy_tokens, 50))
        while light.state is not State.FINISHED:
            core.step()
        assert core.steps == 5
        return core.now_s

    alone, beside = time_of_light(0), time_of_light(500_000)
    # 10 + 1 + 0.001 * context against 10 + 1 + 0.001 * 500,000, microseconds a step
    assert alone == pytest.approx(sum(11 + 0.001 * (10 + i) for i in range(5)) * 1e-6)
    assert beside == pytest.approx(sum(11 + 0.001 * (500_000 + i) for i in range(5)) * 1e-6)


def test_the_same_load_spread_evenly_is_faster() -> None:
    def total(ranks: tuple[int, ...]) -> float:
        core = LockStep(2, COST)
        for rank in ranks:
            core.submit(Job(rank, 100_000, 10))
        core.run()
        return core.now_s

    assert total((0, 1, 0, 1)) < total((0, 0, 0, 1)) < total((0, 0, 0, 0))


def test_prompts_take_time_on_the_busiest_rank() -> None:
    core = LockStep(2, COST, prefill_us_per_token=2.0)
    core.submit(Job(0, 100, 1))
    core.submit(Job(1, 300, 1))
    core.step()
    assert core.now_s == pytest.approx((11 + 0.3 + 600) * 1e-6)


def test_a_full_rank_lets_wait_and_preempts_the_youngest() -> None:
    core = LockStep(1, COST, kv_capacity_tokens=100)
    first, second, third = Job(0, 40, 30), Job(0, 50, 30), Job(0, 30, 5)
    for job in (first, second, third):
        core.submit(job)
    core.step()
    assert [j.state for j in (first, second, third)] == [State.RUNNING, State.RUNNING, State.WAITING]
    core.run()
    assert core.preempted[0] >= 1
    assert [j.made for j in (first, second, third)] == [30, 30, 5]
    assert first.finished_s < second.finished_s


def test_what_never_fits_is_refused() -> None:
    core = LockStep(1, COST, kv_capacity_tokens=100)
    with pytest.raises(InputError, match="holds 100"):
        core.submit(Job(0, 90, 11))
    with pytest.raises(InputError, match="ranks = 0"):
        LockStep(0, COST)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 2), st.integers(1, 60), st.integers(1, 20)),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("half")),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_nothing_is_lost_or_doubled(events: list[tuple[object, ...]]) -> None:
    core = LockStep(3, COST, kv_capacity_tokens=120, max_batch=4)
    jobs: list[Job] = []
    told: list[int] = []

    def on_token(job: Job) -> None:
        told[job.number] += 1
        assert told[job.number] == job.made

    def check() -> None:
        for rank in range(3):
            running = core.running[rank].values()
            assert core.held_tokens[rank] == sum(j.context_tokens for j in running)
            assert 0 <= core.held_tokens[rank] <= 120
            assert len(running) <= 4
        assert sum(j.made for j in jobs) == core.generated.sum()
        held = set(map(id, core.jobs()))
        for job in jobs:
            assert (id(job) in held) == (job.state in (State.RUNNING, State.WAITING))
            assert (job.made == job.output_tokens) == (job.state is State.FINISHED)

    for event in events:
        if event[0] == "submit":
            job = Job(int(event[1]), int(event[2]), int(event[3]), on_token)  # type: ignore[call-overload]
            core.submit(job)
            jobs.append(job)
            told.append(0)
        elif event[0] == "abort" and jobs:
            core.abort(jobs[int(event[1]) % len(jobs)])  # type: ignore[call-overload]
        elif event[0] == "half":
            core.begin()  # what comes next, comes in the middle of a step
            continue
        elif event[0] == "step":
            for _ in range(int(event[1])):  # type: ignore[call-overload]
                core.end()
                core.step()
        core.end()
        check()
    core.run()
    check()
    assert not core.busy
    assert core.held_tokens.sum() == 0
    assert all(j.state in (State.FINISHED, State.ABORTED) for j in jobs)

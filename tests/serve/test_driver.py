"""The driver: a round a turn of the loop, leases that end once, requests that leave, the simulator's decisions."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from replay_log import recorded, router_for

from equipoise.cost.step_cost import StepCost, Term
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.router import Arrival, InstanceSpec, RankReport, Reject, Router, Settings
from equipoise.serve.driver import Driver, Lease
from equipoise.traces.trace import Trace

COST = StepCost("c", (Term("t", 1.0, per_100k_context=90.0),), us_per_unit=1e4)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def driver(
    policy="least_batch", *, ranks=2, instances=1, capacity=1_000, batch=4, clock=None, **settings
) -> Driver:
    specs = [InstanceSpec(f"i{k}", ranks, capacity, batch) for k in range(instances)]
    options = {"reports": "none"} | settings
    clock = clock or Clock()
    router = Router(specs, policy, COST, Settings(**options), clock())
    return Driver(router, clock=clock, timers=False)


def run(test):
    """Run an async test on a loop of its own."""
    return lambda *given, **named: asyncio.run(asyncio.wait_for(test(*given, **named), 60))


async def turns(n=3):
    for _ in range(n):
        await asyncio.sleep(0)


def residue(d: Driver) -> dict[str, int]:
    view = d.router.view()
    return {
        "leases": view.leases,
        "queued": view.queued_requests,
        "held": len(d.leases),
        "waiting": d.waiting,
        "batch": int(view.own_batch.sum()),
        "context": int(view.own_context_tokens.sum()),
    }


EMPTY = dict.fromkeys(("leases", "queued", "held", "waiting", "batch", "context"), 0)


def test_requests_of_one_turn_are_one_round():
    async def body():
        d = driver()
        rounds = []
        d.on_round = lambda n, seconds: rounds.append(n)
        placed = await asyncio.gather(*(d.place(Arrival(f"r{k}", 10)) for k in range(5)))
        assert rounds == [5]
        assert sorted(lease.rank for lease in placed) == [0, 0, 0, 1, 1]
        await d.place(Arrival("later", 10))
        assert rounds == [5, 1]

    run(body)()


def test_a_lease_ends_once_however_often_it_is_ended():
    async def body():
        d = driver()
        with await d.place(Arrival("a", 10)) as lease:
            lease.first_token()
            lease.tokens(3)
            lease.usage(11, 3)
            assert lease.finished()
            assert not lease.finished()
            assert not lease.aborted("late")
            lease.tokens(5)
        assert lease.ended == "finished"
        counts = d.router.view().counts
        assert (counts["finished"], counts["aborted"], counts["stale_keys"]) == (1, 0, 0)
        assert residue(d) == EMPTY

    run(body)()


def test_how_a_block_is_left_is_how_the_lease_ended():
    async def body():
        d = driver()
        with pytest.raises(ValueError, match="mine"), await d.place(Arrival("a", 10)) as failed:
            raise ValueError("mine")
        with await d.place(Arrival("b", 10)) as left:
            pass
        with pytest.raises(asyncio.CancelledError), await d.place(Arrival("c", 10)) as gone:
            raise asyncio.CancelledError
        assert [failed.ended, left.ended, gone.ended] == ["error", "error", "client_gone"]
        assert residue(d) == EMPTY

    run(body)()


def test_who_leaves_the_queue_leaves_nothing():
    async def body():
        d = driver(ranks=1, batch=1)
        first = await d.place(Arrival("first", 10))
        waits = [asyncio.ensure_future(d.place(Arrival(f"w{k}", 10))) for k in range(3)]
        await turns()
        assert d.router.view().queued_requests == 3
        waits[1].cancel()
        await turns()
        assert d.router.view().queued_requests == 2
        first.finished()
        second = await waits[0]
        assert second.request_id == "w0"
        second.finished()
        (await waits[2]).finished()
        assert residue(d) == EMPTY

    run(body)()


@pytest.mark.parametrize("when", range(6))
def test_who_leaves_in_the_very_turn_it_is_placed(when):
    async def body():
        d = driver()
        task = asyncio.ensure_future(d.place(Arrival("a", 10)))
        await turns(when)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await turns()
        if not task.cancelled():
            task.result().finished()
        assert residue(d) == EMPTY

    run(body)()


def test_a_dispatch_meets_a_cancelled_waiter():
    async def body():
        d = driver(ranks=1, batch=1)
        first = await d.place(Arrival("first", 10))
        waits = asyncio.ensure_future(d.place(Arrival("waits", 10)))
        await turns()
        first.finished()  # dispatches the one that waits, in this turn
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert residue(d) == EMPTY

    run(body)()


def test_a_request_twice():
    async def body():
        d = driver()
        both = await asyncio.gather(d.place(Arrival("a", 10)), d.place(Arrival("a", 10)))
        assert isinstance(both[0], Lease)
        assert isinstance(both[1], Reject)
        assert both[1].status == 409
        again = await d.place(Arrival("a", 10))
        assert isinstance(again, Reject)
        assert again.reason == "duplicate"
        both[0].finished()
        assert residue(d) == EMPTY

    run(body)()


def test_the_router_takes_leases_away():
    async def body():
        d = driver(instances=2)
        placed = [await d.place(Arrival(f"r{k}", 10)) for k in range(4)]
        told = []
        for lease in placed:
            lease.on_abort = lambda reason, lease=lease: told.append((lease.request_id, reason))
        placed[0].on_abort = None  # who does not listen is no reason to fail
        d.instance_lost(0)
        lost = [lease for lease in placed if lease.instance == 0]
        assert len(lost) == 2
        assert all(lease.ended == "instance_lost" for lease in lost)
        assert told == [(lease.request_id, "instance_lost") for lease in lost if lease.on_abort]
        assert not lost[0].finished()
        assert residue(d)["leases"] == 2

    run(body)()


def test_a_listener_that_fails_does_not_spoil_the_rest(caplog):
    async def body():
        d = driver()
        placed = [await d.place(Arrival(f"r{k}", 10)) for k in range(2)]
        placed[0].on_abort = lambda reason: 1 / 0
        d.instance_lost(0)
        assert all(lease.ended == "instance_lost" for lease in placed)
        assert residue(d) == EMPTY

    run(body)()
    assert "could not be told" in caplog.text


def test_a_round_that_fails_answers_everybody(caplog):
    async def body():
        d = driver()

        def broken(*arguments):
            raise RuntimeError("a bug")

        d.router.arrived_many = broken
        found = await asyncio.gather(d.place(Arrival("a", 10)), d.place(Arrival("b", 10)))
        assert [one.status for one in found] == [500, 500]
        assert d.waiting == 0

    run(body)()
    assert "a round of 2 requests failed" in caplog.text


def test_elsewhere():
    async def body():
        d = driver(instances=2)
        d.drain(0, 1)
        for k in range(4):
            lease = await d.place(Arrival(f"r{k}", 10), avoid="i0")
            assert lease.instance == 1
        assert d.router.view().drained.tolist() == [False, True, False, False]
        both = [await d.place(Arrival(f"b{k}", 10)) for k in range(2)]
        assert {lease.instance for lease in both} == {0}
        d.drain(1)
        nobody = await d.place(Arrival("x", 10), avoid="i0")
        assert isinstance(nobody, Reject)
        assert nobody.status == 503
        d.drain(1, undo=True)
        for k in range(4):
            await d.place(Arrival(f"c{k}", 10), avoid="i0")
        full = await d.place(Arrival("y", 10), avoid="i0")
        assert (full.status, full.reason) == (503, "no_other_room")
        assert d.waiting == d.router.view().queued_requests == 0

    run(body)()


def test_timers_turn_away_who_waited_too_long():
    async def body():
        router = Router(
            [InstanceSpec("a", 1, 1_000, 1)],
            "least_batch",
            COST,
            Settings(reports="none", queue_ttl_s=0.05),
            0.0,
        )
        loop = asyncio.get_running_loop()
        d = Driver(router, clock=loop.time)
        first = await d.place(Arrival("first", 10))
        late = await d.place(Arrival("late", 10))
        assert (late.status, late.reason) == (429, "queue_timeout")
        first.finished()
        d.close()
        assert residue(d) == EMPTY

    run(body)()


def test_closing_answers_who_waits():
    async def body():
        d = driver(ranks=1, batch=1)
        lease = await d.place(Arrival("first", 10))
        waits = asyncio.ensure_future(d.place(Arrival("waits", 10)))
        await turns()
        d.close()
        assert (await waits).reason == "draining"
        lease.finished()
        assert residue(d) == EMPTY

    run(body)()


def test_a_pool_that_begins_and_ends_empty():
    async def body():
        d = Driver(Router([], "equipoise", COST, Settings(reports="none")), clock=Clock(), timers=False)
        assert (await d.place(Arrival("a", 10))).status == 503
        d.set_instances([InstanceSpec("n", 2, 1_000)], ["there"])
        lease = await d.place(Arrival("b", 10))
        assert lease.target == "there"
        d.set_instances([])
        assert (await d.place(Arrival("c", 10))).status == 503
        assert lease.finished()  # what runs on an instance that is gone runs on
        assert residue(d) == EMPTY

    run(body)()


def test_the_target_of_a_lease_stays_when_the_list_changes():
    async def body():
        d = driver(instances=2)
        d.targets[:] = ["zero", "one"]
        d.drain(0)
        lease = await d.place(Arrival("a", 10))
        d.set_instances([InstanceSpec("i1", 2, 1_000, 4)], ["one"])
        assert lease.target == "one"
        assert d.router.view().own_batch.sum() == 1
        d.report([RankReport(0, 0, 1, taken_at_s=0.0)])
        lease.finished()
        assert residue(d) == EMPTY

    run(body)()


def trace_of(requests, seed):
    random = np.random.default_rng(seed)
    return Trace.from_columns(
        "parity",
        np.cumsum(random.exponential(0.02, requests)),
        np.minimum(random.lognormal(6.0, 1.2, requests).astype(int) + 1, 6_000),
        np.minimum(random.geometric(0.06, requests), 80),
        session=random.integers(0, 12, requests),
    )


async def follow(log, d: Driver, clock: Clock, trace, pool) -> int:
    """Tell the driver what happened in a replay, and hold every decision against it."""
    tasks, leases, count = {}, {}, 0
    for event in log.events:
        if event[0] == "steps":
            _, p, clock.now, ends_s = event
            d.act(d.router.step_started(d.now_s(), p, ends_s))
        elif event[0] == "stepped":
            _, p, clock.now, rows = event
            d.act(d.router.step_ended(d.now_s(), p))
            for row, done in rows:
                leases[row].tokens(1)
                if done:
                    leases.pop(row).finished()
        else:
            _, clock.now, arrivals, expected = event
            for row, at in arrivals:
                session = int(trace.session[row]) if trace.session[row] >= 0 else None
                one = Arrival(str(row), int(trace.context_tokens[row]), session=session, arrived_s=at)
                tasks[row] = asyncio.ensure_future(d.place(one))
            if not arrivals:
                d.offer()
            await turns(4)
            chosen = {}
            for row in [row for row, task in tasks.items() if task.done()]:
                placed = tasks.pop(row).result()
                if isinstance(placed, Lease):
                    chosen[row] = placed.instance * pool.ranks + placed.rank
                    leases[row] = placed
                else:
                    assert placed.reason == "too_large"
            assert chosen == expected, clock.now
            count += len(chosen)
    return count


@pytest.mark.parametrize("mode", ["saturated", "timed"])
@pytest.mark.parametrize("policy", ["dualpath", "equipoise", "equipoise,hold_steps=2", "brh", "round_robin"])
def test_the_decisions_of_the_simulator(policy, mode):
    async def body():
        pool = Pool(instances=2, ranks=3, kv_capacity_tokens=9_000, max_batch=5)
        options = {"concurrency": 26} if mode == "saturated" else {"rate_scale": 2.0}
        trace, rule = trace_of(160, 11), parse(policy)
        log = recorded(trace, pool, rule, COST, mode=mode, seed=3, **options)
        clock = Clock()
        d = Driver(router_for(pool, rule, COST, seed=3), clock=clock, timers=False)
        placed = await follow(log, d, clock, trace, pool)
        assert placed == d.router.view().counts["dispatched"] > 50
        assert residue(d) == EMPTY

    run(body)()

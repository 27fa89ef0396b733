"""Health of instances, the fallback ladder, affinity, and a table that does not grow."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from router_cases import COST, Driver, router_of

from equipoise.errors import InputError
from equipoise.policies import Policy
from equipoise.policies.api import PolicySpec
from equipoise.router import Arrival, InstanceSpec, RankSpec, Router, Settings
from equipoise.router.kernel import calls


def broken(driver, instance, times):
    """So many requests fail on an instance."""
    done = 0
    while done < times:
        name = driver.send()
        if driver.where[name][0] == instance:
            done += 1
            driver.abort(name)
        else:
            driver.finish(name)


def test_failures_in_a_row_eject_an_instance_and_a_few_try_it_again():
    driver = Driver(router_of(1, 1, breaker_failures=3, breaker_open_s=5.0, half_open_requests=2, half_open_successes=2,
                              slow_start_s=4.0, policy="round_robin"))  # fmt: skip
    broken(driver, 1, 3)
    assert driver.view().instance_states == ("up", "open")
    assert driver.view().instance_reasons[1] == "reset"
    names = [driver.send() for _ in range(6)]
    assert {driver.where[n][0] for n in names} == {0}
    assert driver.router.next_wakeup_s() == 5.0
    driver.wait(5.0)
    assert driver.view().instance_states[1] == "half_open"
    tried = [n for n in (driver.send() for _ in range(8)) if driver.where[n][0] == 1]
    assert len(tried) == 2  # no more at once
    for name in tried:
        driver.finish(name)
    assert driver.view().instance_states[1] == "slow_start"
    driver.wait(4.0)
    assert driver.view().instance_states[1] == "up"


def test_a_failure_of_the_few_ejects_it_for_twice_as_long():
    driver = Driver(router_of(1, 1, breaker_failures=2, breaker_open_s=5.0, policy="round_robin"))
    broken(driver, 1, 2)
    driver.wait(5.0)
    broken(driver, 1, 1)
    assert driver.view().instance_states[1] == "open"
    driver.wait(9.9)
    assert driver.view().instance_states[1] == "open"
    driver.wait(0.2)
    assert driver.view().instance_states[1] == "half_open"


def test_clients_that_leave_are_no_failures():
    driver = Driver(router_of(1, 1, breaker_failures=1))
    for _ in range(9):
        driver.abort(driver.send(), "client_gone")
    assert driver.view().instance_states == ("up", "up")
    assert driver.view().aborted == {"client_gone": 9}


def test_a_lost_instance_loses_its_requests_and_comes_back_slowly():
    driver = Driver(router_of(2, 2, slow_start_s=10.0, policy="least_tokens"))
    names = [driver.send() for _ in range(40)]
    gone = [n for n in names if driver.where[n][0] == 1]
    driver.take(driver.router.instance_lost(driver.now, 1, "probe"))
    assert driver.aborts == dict.fromkeys(gone, "instance_lost")
    assert driver.view().leases == 20
    assert driver.router.aborted(driver.now, driver.leases[gone[0]], "reset") == []  # ended already
    driver.take(driver.router.instance_ok(driver.now, 1))
    driver.wait(1.0)
    sent = [driver.where[driver.send()][0] for _ in range(10)]
    assert sent.count(1) == 2  # a tenth of the others' mean batch of 10 on each of its ranks
    driver.wait(9.5)
    sent = [driver.where[driver.send()][0] for _ in range(10)]
    assert sent.count(1) == 10


def test_a_lost_rank_stalls_its_instance():
    driver = Driver(router_of(2, 2))
    names = [driver.send() for _ in range(8)]
    driver.take(driver.router.rank_lost(0.0, 0, 1))
    assert set(driver.aborts) == {n for n in names if driver.where[n] == (0, 1)}
    assert driver.view().instance_states[0] == "lost"
    assert driver.where[driver.send()][0] == 1


def test_a_drained_rank_gets_nothing_and_keeps_what_it_has():
    driver = Driver(router_of(2))
    name = driver.send()
    driver.take(driver.router.drain(0.0, 0, 0))
    assert {driver.where[driver.send()] for _ in range(5)} == {(0, 1)}
    assert driver.view().batch.tolist() == [1, 5]
    driver.take(driver.router.undrain(0.0, 0, 0))
    assert driver.where[driver.send()] == (0, 0)
    driver.finish(name)


@pytest.mark.parametrize(("panic", "served"), [("none", False), ("all", True)])
def test_panic(panic, served):
    driver = Driver(router_of(1, 1, panic=panic, breaker_failures=1, policy="round_robin"))
    broken(driver, 0, 1)
    broken(driver, 1, 1)
    assert (driver.send() in driver.where) is served


def test_the_ladder():
    driver = Driver(
        router_of(2, reports="expected", trust_after_s=5.0, stale_after_s=2.0, policy="least_batch")
    )
    reasons = []

    def look():
        driver.count += 1
        (action,) = driver.take(driver.router.arrived(driver.now, Arrival(f"r{driver.count}", 10)))
        reasons.append(action.reason)
        return driver.view().rung

    driver.now = 1.0
    assert look() == "round_robin"  # nothing is known of what runs there
    driver.report(0, 0, 0, 0)
    assert look() == "round_robin"  # of one rank only
    driver.report(0, 1, 0, 0)
    assert look() == "fresh"
    driver.now = 3.5
    assert look() == "ledger"
    driver.report(0, 0, 2, 20)
    assert look() == "fresh"
    assert reasons == ["round_robin/round_robin"] * 2 + ["policy/fresh", "policy/ledger", "policy/fresh"]
    driver.router._tables.world.ranks["context"][0] += 7  # a bug, say
    assert not driver.router.integrity(driver.now).sound
    assert look() == "round_robin"
    assert driver.router.integrity(driver.now).sound  # it was mended
    assert look() == "fresh"
    assert driver.view().own_context_tokens.sum() == 10 * driver.count


def test_without_reports_an_instance_is_trusted_after_a_while():
    driver = Driver(router_of(1, reports="expected", trust_after_s=5.0))
    assert driver.view().rung == "round_robin"
    assert driver.router.next_wakeup_s() == 5.0
    driver.wait(5.0)
    assert driver.view().rung == "ledger"


def test_an_instance_of_which_nothing_is_known_waits_while_others_serve():
    driver = Driver(router_of(1, 1, reports="expected", trust_after_s=5.0))
    driver.report(0, 0, 5, 500)
    assert {driver.where[driver.send()][0] for _ in range(4)} == {0}
    driver.now = 1.0
    driver.report(1, 0, 0, 0)
    assert driver.where[driver.send()][0] == 1


def bad(rank):
    def place(ranks, requests, prices, params, memory, out):
        if rank is None:
            raise ValueError("no idea")
        out[:] = rank

    return Policy(PolicySpec("bad", place, "", ""), {})


@pytest.mark.parametrize("rank", [None, 99, -7, 0])
def test_a_policy_that_fails_costs_no_request(rank):
    driver = Driver(router_of(2, policy=bad(rank), max_batch=2))
    names = [driver.send() for _ in range(4)]
    assert set(driver.where) == set(names)
    assert driver.view().batch.tolist() == [2, 2]
    assert (driver.view().counts["policy_errors"] > 0) is True


COMPILED = """
def pick(ranks, requests, i, prices, params, memory):
    if requests.context_tokens[i] == 13:
        return ranks.batch[1 << 40]
    return 5 if requests.context_tokens[i] == 14 else 0
"""


def test_a_compiled_policy_that_fails_costs_no_request_either(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(COMPILED)
    driver = Driver(router_of(2, policy=f"{path}:pick"))
    reasons = []
    for context in (10, 13, 14, 10):
        driver.count += 1
        (action,) = driver.take(driver.router.arrived(0.0, Arrival(f"r{driver.count}", context)))
        reasons.append(action.reason)
    assert reasons == ["policy/ledger", "round_robin/ledger", "round_robin/ledger", "policy/ledger"]
    assert driver.view().counts["policy_errors"] == 2
    assert driver.view().own_context_tokens.sum() == 47
    assert driver.router.integrity().sound


HUGE = 10**30


def test_numbers_of_any_size_are_taken():
    driver = Driver(router_of(1, capacity=None))
    name = driver.send(10, budget_tokens=HUGE, body_bytes=HUGE, session=HUGE)
    driver.send(10, budget_tokens=-HUGE, body_bytes=-HUGE, session=-HUGE)
    assert driver.rejects[driver.send(HUGE)].reason == "bad_length"
    for lease in (HUGE, -HUGE):
        driver.router.tokens(0.0, lease)
        driver.router.first_token(0.0, lease)
        driver.router.usage(0.0, lease, prompt_tokens=1)
        assert driver.router.finished(0.0, lease) == driver.router.aborted(0.0, lease, "reset") == []
    driver.router.usage(0.0, driver.leases[name], prompt_tokens=HUGE, output_tokens=-HUGE)
    driver.router.tokens(0.0, driver.leases[name], -HUGE)
    driver.now = 1.0
    driver.report(
        0, 0, HUGE, HUGE, sequence=HUGE, seen_dispatches=-HUGE, kv_capacity_tokens=HUGE, max_batch=HUGE
    )
    driver.report(0, 0, 3, 30, ago=float("nan"))
    driver.report(0, 0, 3, 30, ago=float("inf"))
    driver.now = 2.0
    driver.report(0, 0, -HUGE, -HUGE, kv_usage=float("nan"))
    assert driver.view().batch.tolist() == [2]
    assert driver.view().context_tokens.tolist() == [20]
    driver.finish(name)
    assert driver.router.integrity().sound


def test_a_session_stays_unless_it_is_dear():
    driver = Driver(router_of(4, affinity_bonus=0.1, policy="least_batch"))
    first = driver.send(100, session="s")
    others = [driver.send(100) for _ in range(7)]
    assert driver.where[first] == (0, 0)
    driver.finish(first)
    driver.finish(others[2])  # rank 3 has one, as rank 0: both are cheapest
    again = driver.send(100, session="s")
    assert driver.where[again] == (0, 0)
    for _ in range(5):
        driver.send(100, session="s")
    assert driver.view().batch.max() - driver.view().batch.min() <= 2
    assert driver.view().counts["affinity"] > 0
    assert driver.router.integrity().sound


def test_affinity_is_off_by_default():
    driver = Driver(router_of(4, policy="round_robin"))
    places = [driver.where[driver.send(session="s")] for _ in range(4)]
    assert len(set(places)) == 4
    assert driver.view().counts["affinity"] == 0


def test_silent_and_leaked_leases_end():
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0, lease_ttl_s=60.0, leak_after_s=20.0))
    silent = driver.send()
    for _ in range(9):
        driver.wait(8.0)
    assert driver.aborts == {silent: "expired"}
    leaked = driver.send()
    driver.wait(30.0)
    driver.report(0, 0, 0, 0)
    driver.wait(10.0)
    assert driver.aborts[leaked] == "leaked"
    assert driver.view().leases == 0


def test_instances_come_and_go():
    driver = Driver(router_of(2, 2))
    names = [driver.send() for _ in range(8)]
    stay = [n for n in names if driver.where[n][0] == 1]
    specs = [
        InstanceSpec("new", [RankSpec(5_000), RankSpec(max_batch=3)], 9_000),
        InstanceSpec("i1", 2, 10_000),
    ]
    assert driver.take(driver.router.set_instances(0.0, specs)) == []
    view = driver.view()
    assert view.instance_names == ("new", "i1")
    assert view.batch.tolist() == [0, 0, 2, 2]
    assert view.capacity_tokens.tolist() == [5_000, 9_000, 10_000, 10_000]
    assert view.leases == 8  # those of the one that went run on
    for name in names:
        driver.finish(name, 3)
    assert driver.view().leases == 0
    assert not driver.view().own_context_tokens.any()
    assert stay


def test_lists_of_instances_are_checked():
    for specs in ([InstanceSpec("a", 1), InstanceSpec("a", 1)], [InstanceSpec("a", 0)], [InstanceSpec("a", 40_000)],
                  [InstanceSpec("a", 1, kv_capacity_tokens=0)]):  # fmt: skip
        with pytest.raises(InputError):
            Router(specs, "least_batch", COST, Settings())


def test_leases_can_be_taken_over():
    driver = Driver(router_of(2))
    for _ in range(5):
        driver.send(50)
    heir = Driver(router_of(2))
    for row in driver.router.snapshot():
        lease = heir.router.adopt(
            0.0, row["request_id"], 0, row["rank"], row["context_tokens"], row["output_tokens"]
        )
        assert lease is not None
    assert heir.view().batch.tolist() == driver.view().batch.tolist()
    assert heir.router.adopt(0.0, "r1", 0, 0, 10) is None


@pytest.mark.proof
def test_nothing_grows_over_a_million_leases():
    router = router_of(8, policy="dualpath", capacity=None)
    arrived, finished, aborted = router.arrived, router.finished, router.aborted
    sizes, open_leases, old = None, deque(), []
    for k in range(100_000):
        now = k * 1e-4
        (action,) = arrived(now, Arrival(f"{k % 8} {k % 4096}", 100 + k % 7, session=k))
        open_leases.append(action.lease)
        if len(open_leases) > 500:
            lease = open_leases.popleft()
            finished(now, lease) if k % 3 else aborted(now, lease, "client_gone")
            if k % 997 == 0:
                old.append(lease)
        if k == 70_000:
            sizes = measures(router)
    at, place_at, finished_at = router._at, router._place_at, router._finished_at
    for _ in range(900_000):  # the same, without the names
        key = calls.arrive(at, 0, now, 100, -1, -1, 0, 0, -1, now)
        assert calls.decide(at, place_at, now) == 1
        calls.end(at, finished_at, key, 1, now)
    assert measures(router) == sizes
    before = router.view().leases
    for lease in old:  # stale keys find nothing
        finished(100.0, lease)
    assert router.view().leases == before == 500
    assert router.view().counts["stale_keys"] == len(old) > 50
    assert router.integrity().sound


def measures(router):
    """Sizes of all that could grow."""
    world = router._tables.world
    arrays = [np.size(column) for part in world for column in (part if isinstance(part, tuple) else (part,))]
    return (*arrays, len(router._names), len(router._talks), len(router._sessions), len(router._keys))

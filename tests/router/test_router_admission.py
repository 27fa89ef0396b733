"""Queues: bounds, order within and between classes, time limits, and what clients are told."""

from __future__ import annotations

import pytest
from router_cases import Driver, router_of

from equipoise.errors import InputError
from equipoise.router import HARMLESS, STATUS, Arrival, RejectReason, Settings


def full(**settings):
    """A router whose only slot is taken."""
    driver = Driver(router_of(1, max_batch=1, **settings))
    return driver, driver.send()


def test_a_full_pool_queues_and_places_in_order():
    driver, first = full()
    names = [driver.send() for _ in range(3)]
    assert driver.view().queued_requests == 3
    driver.finish(first)
    assert driver.order == [first, names[0]]
    driver.finish(names[0])
    assert driver.order[-1] == names[1]


@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        ({"max_queued_requests": 2}, "queue_requests"),
        ({"max_queued_tokens": 250}, "queue_tokens"),
        ({"max_queued_bytes": 25}, "queue_bytes"),
    ],
)
def test_queues_are_bounded(bound, reason):
    driver, _ = full(**bound)
    names = [driver.send(100, body_bytes=10) for _ in range(4)]
    turned_away = {name: driver.rejects[name] for name in names[2:]}
    assert driver.view().queued_requests == 2
    for reject in turned_away.values():
        assert (reject.status, reject.reason) == (429, reason)
        assert reject.retry_after_s >= 1.0
    assert driver.view().rejected == {reason: 2}


def test_retry_after_follows_the_rate_of_releases():
    driver, name = full(max_queued_requests=1, retry_after_max_s=600.0)
    for _ in range(400):  # one every two seconds
        driver.now += 2.0
        driver.finish(name)
        name = driver.send()
    driver.send()
    refused = driver.send()
    assert 3.0 <= driver.rejects[refused].retry_after_s <= 5.0


def test_requests_that_wait_too_long_are_turned_away():
    driver, _ = full(queue_ttl_s=5.0)
    name = driver.send()
    assert driver.router.next_wakeup_s() <= 5.0
    driver.wait(4.9)
    assert name not in driver.rejects
    driver.wait(0.2)
    assert (driver.rejects[name].status, driver.rejects[name].reason) == (429, "queue_timeout")


def test_a_client_that_leaves_is_taken_out():
    driver, first = full()
    left, stays = driver.send(), driver.send()
    assert driver.router.cancelled(0.0, left) == []
    driver.finish(first)
    assert driver.order[-1] == stays
    assert driver.take(driver.router.cancelled(0.0, stays))[0].reason == "cancelled"  # too late: it runs
    assert driver.view().leases == 0
    assert driver.router.cancelled(0.0, "unknown") == []


def test_nothing_can_serve():
    driver = Driver(router_of(1))
    driver.take(driver.router.drain(0.0, 0))
    assert (driver.rejects[driver.send()].status, driver.rejects["r1"].reason) == (503, "draining")
    driver.take(driver.router.instance_lost(0.0, 0, "probe"))
    assert driver.rejects[driver.send()].reason == "no_instance"


def test_what_waits_when_the_last_instance_goes_is_told_so():
    driver, _ = full(queue_ttl_s=5.0)
    name = driver.send()
    driver.take(driver.router.instance_lost(0.0, 0, "probe"))
    driver.wait(6.0)
    assert (driver.rejects[name].status, driver.rejects[name].reason) == (503, "no_instance")


@pytest.mark.parametrize(
    ("context", "reason"), [(10_001, "too_large"), (0, "bad_length"), (-5, "bad_length")]
)
def test_what_can_never_run(context, reason):
    driver = Driver(router_of(2))
    name = driver.send(context)
    assert driver.rejects[name].reason == reason
    assert driver.rejects[name].retry_after_s == 0.0


def test_the_growth_reserve_counts_against_the_largest():
    driver = Driver(router_of(1, growth_reserve_tokens=1_000))
    assert driver.send(9_001) in driver.rejects
    assert driver.send(9_000) not in driver.rejects


def test_an_id_in_use_is_refused_and_free_again_afterwards():
    driver = Driver(router_of(1))
    driver.take(driver.router.arrived(0.0, Arrival("x", 10)))
    (again,) = driver.router.arrived(0.0, Arrival("x", 10))
    assert again.status == 409
    driver.finish("x")
    assert driver.take(driver.router.arrived(0.0, Arrival("x", 10)))


def test_the_pool_takes_so_many_requests_and_no_more():
    driver = Driver(router_of(1, max_requests=2))
    driver.send(), driver.send()
    assert driver.rejects[driver.send()].reason == "too_many"


CLASSES = {"gold": 3.0, "plain": 1.0}


def drained_order(driver, first, names):
    """Requests in the order in which one slot takes them."""
    while driver.leases:
        driver.finish(next(iter(driver.leases)))
    return [name for name in driver.order if name != first]


def test_strict_classes_wait_for_those_before_them():
    driver, first = full(classes=CLASSES, class_order="strict")
    plain = [driver.send(request_class="plain") for _ in range(3)]
    gold = [driver.send(request_class="gold") for _ in range(3)]
    assert drained_order(driver, first, plain + gold) == gold + plain


def test_weighted_classes_get_their_share_in_order():
    driver, first = full(classes=CLASSES)
    plain = [driver.send(request_class="plain") for _ in range(8)]
    gold = [driver.send(request_class="gold") for _ in range(24)]
    order = drained_order(driver, first, plain + gold)
    assert [name for name in order if name in plain] == plain
    assert [name for name in order if name in gold] == gold
    for k in range(4, 33, 4):
        assert abs(sum(name in plain for name in order[:k]) - k / 4) <= 1


def test_an_unknown_class_counts_as_the_last():
    driver, _ = full(classes=CLASSES)
    driver.send(request_class="copper")
    assert driver.view().queued == {"gold": 0, "plain": 1}


def test_a_large_request_at_the_head_is_not_starved():
    driver = Driver(router_of(1, capacity=1_000))
    first = driver.send(600)
    large, small = driver.send(900), driver.send(100)
    assert driver.order == [first]
    driver.finish(first)
    assert driver.order == [first, large, small]


def test_settings_are_checked():
    for wrong in (
        {"counts": "guess"},
        {"queue_ttl_s": -1.0},
        {"queue_ttl_s": float("nan")},
        {"max_queued_requests": 1.5},
        {"affinity_bonus": True},
        {"classes": {}},
        {"classes": {"a": 0.0}},
        {"panic_share": 2},
    ):
        with pytest.raises(InputError):
            Settings(**wrong)


def test_every_refusal_has_a_status():
    assert set(STATUS) == set(RejectReason)
    assert "client_gone" in HARMLESS


def test_the_queue_is_offered_no_more_often_than_set():
    driver, first = full(round_every_s=0.5)
    driver.now = 1.0
    name = driver.send()
    driver.now = 1.1
    driver.finish(first)
    assert driver.order == [first]
    assert driver.router.next_wakeup_s() == 1.5
    driver.wait(0.4)
    assert driver.order == [first, name]

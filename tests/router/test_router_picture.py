"""The picture of a rank: own leases exactly, others by what a report shows beyond those it has seen."""

from __future__ import annotations

import numpy as np
import pytest
from router_cases import Driver, router_of

from equipoise.errors import InputError


def test_a_report_never_erases_a_dispatch_it_has_not_seen():
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0, settle_s=0.05))
    driver.now = 1.0
    driver.send(1_000)
    driver.now = 1.01
    driver.report(0, 0, 0, 0, ago=0.005)  # taken after the dispatch, too soon to have seen it
    view = driver.view()
    assert (view.batch[0], view.context_tokens[0], view.others_batch[0]) == (1, 1_000, 0)
    driver.now = 1.2
    driver.report(0, 0, 1, 1_000)
    assert (driver.view().batch[0], driver.view().others_batch[0]) == (1, 0)


def test_what_a_report_shows_beyond_own_leases_is_of_others():
    driver = Driver(router_of(2, reports="expected", trust_after_s=0.0))
    driver.now = 1.0
    name = driver.send(1_000)
    driver.now = 2.0
    driver.router.tokens(2.0, driver.leases[name], 40)
    driver.now = 3.0
    driver.report(0, 0, 4, 5_040)
    view = driver.view()
    assert (view.others_batch[0], view.others_context_tokens[0]) == (3, 4_000)
    assert (view.batch[0], view.context_tokens[0]) == (4, 5_040)
    driver.finish(name)
    assert (driver.view().batch[0], driver.view().context_tokens[0]) == (3, 4_000)


def test_a_request_that_ended_after_the_report_was_taken_is_in_it():
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0))
    driver.now = 1.0
    name = driver.send(500)
    driver.now = 5.0
    driver.finish(name)
    driver.now = 5.5
    driver.report(0, 0, 1, 500, ago=1.0)
    assert driver.view().others_batch[0] == 0
    driver.now = 6.0
    driver.report(0, 0, 1, 500, ago=0.1)  # now it must be someone else's
    assert driver.view().others_batch[0] == 1


def test_requests_seen_are_counted_where_the_engine_counts_them():
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0, settle_s=100.0))
    for k in range(3):
        driver.now = 1.0 + k * 0.001
        driver.send(100 * (k + 1))
    driver.now = 1.01
    driver.report(0, 0, 2, 300, seen_dispatches=2)
    assert driver.view().others_batch[0] == 0
    assert driver.view().batch[0] == 3
    driver.now = 1.02
    driver.report(0, 0, 5, 1_600, seen_dispatches=3)
    assert (driver.view().others_batch[0], driver.view().others_context_tokens[0]) == (2, 1_000)


@pytest.mark.parametrize("again", ["older", "same", "numbered"])
def test_late_repeated_and_disordered_reports_change_nothing(again):
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0))
    driver.now = 2.0
    driver.report(0, 0, 3, 300, sequence=7)
    before = driver.view()
    driver.now = 2.5
    if again == "older":
        driver.report(0, 0, 9, 900, ago=1.0, sequence=6)
    elif again == "same":
        driver.report(0, 0, 9, 900, ago=0.5)
    else:
        driver.report(0, 0, 9, 900, sequence=7)
    after = driver.view()
    assert after.others_batch.tolist() == before.others_batch.tolist() == [3]
    assert after.counts["old_reports"] == 1


def test_a_report_older_than_what_is_kept_is_no_news():
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0, capacity=None))
    for k in range(1_200):
        driver.now = 1.0 + k * 0.01
        driver.finish(driver.send(10))
    driver.report(0, 0, 5, 50, ago=11.0)
    assert driver.view().others_batch[0] == 0
    driver.report(0, 0, 5, 50, ago=0.1)
    assert driver.view().others_batch[0] in (4, 5)


def test_capacity_and_usage_come_from_reports():
    driver = Driver(router_of(1, capacity=None, reports="expected", trust_after_s=0.0))
    assert driver.view().capacity_tokens[0] == -1
    driver.now = 1.0
    driver.report(0, 0, 2, None, kv_usage=0.25, kv_capacity_tokens=8_000, max_batch=3)
    view = driver.view()
    assert (view.capacity_tokens[0], view.free_slots[0], view.others_context_tokens[0]) == (8_000, 1, 2_000)
    assert view.free_tokens[0] == 6_000
    assert driver.send(9_000) in driver.rejects
    assert driver.rejects["r1"].status == 413


def test_what_others_have_is_forgotten_after_a_while():
    driver = Driver(router_of(1, reports="expected", trust_after_s=0.0, forget_after_s=30.0))
    driver.now = 1.0
    driver.report(0, 0, 3, 300)
    driver.wait(29.0)
    assert driver.view().batch[0] == 3
    driver.wait(2.0)
    assert driver.view().batch[0] == 0


def test_contexts_are_extrapolated_at_the_pace_of_requests_that_finished():
    driver = Driver(router_of(1, counts="extrapolated"))
    first = driver.send(100)
    driver.now = 10.0
    driver.router.usage(10.0, driver.leases[first], output_tokens=200)
    driver.finish(first)
    driver.send(1_000)
    driver.now = 15.0
    driver.send(10)  # a round looks at the clock
    assert driver.view().batch[0] == 2
    assert abs(driver.view().context_tokens[0] - (1_000 + 100 + 10)) <= 1
    assert driver.view().own_context_tokens[0] == 1_010


def test_budgets_and_waits_reach_the_policy():
    seen = []
    from equipoise.policies import Policy
    from equipoise.policies.api import PolicySpec

    def place(ranks, requests, prices, params, memory, out):
        seen.append([column.tolist() for column in requests])
        out[:] = -1

    driver = Driver(router_of(1, policy=Policy(PolicySpec("looks", place, "", ""), {})))
    driver.send(10, budget_tokens=77, session=5)
    driver.wait(2.5)
    context, reserve, budget, session, request, waited, waited_s = seen[-1]
    assert (context, reserve, budget, session, request, waited) == ([10], [10], [77], [5], [0], [0])
    assert waited_s == [2.5]
    driver.router.step_ended(3.0, 0, steps=4)
    assert seen[-1][5] == [4]


def test_own_sums_stay_exact_over_a_storm():
    driver = Driver(router_of(4, policy="dualpath", capacity=None))
    random, names = np.random.default_rng(2), []
    for _ in range(3_000):
        driver.now += 0.001
        names.append(driver.send(int(random.integers(1, 900))))
        if len(names) > 40:
            name = names.pop(int(random.integers(len(names))))
            if random.random() < 0.3:
                driver.abort(name, "client_gone")
            else:
                driver.finish(name, int(random.integers(1, 50)))
    batch, context, _ = driver.router._tables.sums()
    assert driver.view().batch.tolist() == batch.tolist()
    assert driver.view().context_tokens.tolist() == context.tolist()


def test_who_knows_what_others_have_says_so_and_own_leases_stay():
    driver = Driver(router_of(3, reports="none"))
    driver.now = 1.0
    name = driver.send(1_000)
    rank = int(np.flatnonzero(driver.view().own_batch)[0])
    driver.router.others(1.1, [2, 0, 1], [500, 0, 70])
    own = np.zeros(3, np.int64)
    own[rank] = 1
    assert driver.view().batch.tolist() == (own + np.array([2, 0, 1])).tolist()
    assert driver.view().context_tokens.tolist() == (own * 1_000 + [500, 0, 70]).tolist()
    assert driver.view().missing.tolist() == [0, 0, 0]
    driver.finish(name)
    driver.router.others(1.2, np.array([0, 0, -5]), np.array([0, 0, -1]))
    assert driver.view().batch.tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="2 values for 3 ranks"):
        driver.router.others(1.3, [1, 2], [1, 2])

"""Shadows live in pools of their own: what they would have done is what they do when they lead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from router_cases import COST, QUIET, Driver, router_of

from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.router import InstanceSpec, Router, Settings

POLICIES = ("least_tokens", "dualpath", "equipoise", "round_robin", "iqr_lex")
STEPS = 120


def traffic(seed):
    """Requests that come at each step, with lengths; the same whoever places them."""
    rng = np.random.default_rng(seed)
    return [
        [(int(rng.integers(1, 900)), int(rng.integers(1, 40))) for _ in range(rng.integers(0, 4))]
        for _ in range(STEPS)
    ]


def run(policy, shadows, arrivals, *, widths=(3, 3), cost=COST, **more):
    """Steps of one second each, a token for everybody in each: how long a request takes depends on nobody's choices."""
    seen, left, names = [], {}, []
    capacity = more.pop("capacity", None)
    specs = [InstanceSpec(f"i{k}", w, capacity) for k, w in enumerate(widths)]
    router = Router(specs, policy, cost, Settings(**QUIET | more), sink=seen.append, shadows=shadows)
    driver, prices = Driver(router), []
    for now, requests in enumerate(arrivals):
        driver.now = float(now)
        for name in [name for name in left if name in driver.leases]:  # the others are queued
            driver.take(router.tokens(driver.now, driver.leases[name], 1))
            left[name] -= 1
            if not left[name]:
                del left[name]
                driver.finish(name)
        for context, output in requests:
            name = driver.send(context)
            left[name] = output
            names.append(name)
        view = driver.view()
        prices.append((view.step_price.copy(), [one.step_price for one in router.shadows(driver.now)]))
    return seen, prices, router


@pytest.mark.parametrize("scope", ["pool", "instance"])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_shadow_does_what_it_would_do_in_the_lead(policy, scope):
    arrivals = traffic(7)
    led, prices_led, _ = run(policy, (), arrivals, scope=scope)
    followed, prices, router = run("least_batch", (policy, "least_batch"), arrivals, scope=scope)
    assert len(led) == len(followed) > 100
    for one, other in zip(led, followed, strict=True):
        shadow, mirror = other.shadows
        assert (shadow.instance, shadow.rank) == (one.instance, one.rank), one.request_id
        assert (mirror.instance, mirror.rank, mirror.step_price) == (
            other.instance,
            other.rank,
            other.step_price,
        )
        assert shadow.step_price == one.step_price
    for (own, _), (_, (shadow, _)) in zip(prices_led, prices, strict=True):
        assert shadow.tolist() == own.tolist()
    assert any((own != shadow).any() for own, (shadow, _) in prices), "the two policies differ at all"
    shadow, mirror = router.shadows(float(STEPS))
    assert (mirror.other, mirror.waits, shadow.same + shadow.other) == (0, 0, len(led))
    samples, total = router.shadow_samples
    assert samples > 60
    assert mirror.price_sum == total


def test_its_steps_are_priced_with_saturated_tokens_and_without():
    cost = StepCost("k", (Term("a", 1.0, per_100k_context=50.0, saturations=(Saturation(200, 100.0),)),))
    arrivals = traffic(8)
    led, prices_led, _ = run("least_tokens", (), arrivals, cost=cost)
    _, prices, _ = run("least_batch", ("least_tokens",), arrivals, cost=cost)
    assert led
    for (own, _), (_, (shadow,)) in zip(prices_led, prices, strict=True):
        assert shadow.tolist() == own.tolist()


@settings(max_examples=15)
@given(st.integers(0, 1 << 20), st.sampled_from(POLICIES))
def test_a_full_pool_is_full_for_shadows_too(seed, policy):
    seen, _, router = run("least_batch", (policy,), traffic(seed)[:50], widths=(2,), capacity=2_000)
    (shadow,) = router.shadows(float(STEPS))
    assert len(seen) == shadow.same + shadow.other + shadow.waits
    for one in seen:
        (other,) = one.shadows
        assert (other.rank == -1) == (other.instance == -1) == (other.step_price == 0.0)


def test_what_it_holds_is_what_runs():
    driver = Driver(
        router_of(3, 2, policy="least_batch", capacity=None, shadows=("round_robin", "least_tokens"))
    )
    rng = np.random.default_rng(3)
    names = []
    for k in range(200):
        driver.now += 1.0 if k % 3 else 0.001  # looked up anew, and not
        names.append(driver.send(int(rng.integers(1, 500))))
        if k == 90:  # other ranks: shadows begin anew, with what runs where it really runs
            driver.take(
                driver.router.set_instances(driver.now, [InstanceSpec("i1", 2), InstanceSpec("i2", 4)])
            )
            view = driver.view()
            for one in driver.router.shadows(driver.now):
                assert one.batch.tolist() == view.batch.tolist()
            names = [name for name in names if name not in driver.aborts]
        if len(names) > 9:
            name = names.pop(int(rng.integers(len(names))))
            (driver.abort if k % 3 == 0 else driver.finish)(name)
        view = driver.view()
        for one in driver.router.shadows(driver.now):
            assert one.batch.min() >= 0
            assert one.context_tokens.min() >= 0
            assert one.batch.sum() == view.batch.sum()
            assert one.context_tokens.sum() == view.context_tokens.sum()


def test_what_others_run_counts_for_shadows():
    driver = Driver(
        router_of(2, policy="least_batch", capacity=None, reports="expected", shadows=("least_tokens",))
    )
    driver.now = 1.0
    driver.report(0, 0, 3, 5_000)
    driver.report(0, 1, 1, 9_000)
    driver.now = 1.1
    name = driver.send(100)
    assert driver.where[name] == (0, 1)
    (shadow,) = driver.router.shadows(driver.now)
    assert (shadow.batch.tolist(), shadow.context_tokens.tolist()) == ([4, 1], [5_100, 9_000])


def test_a_shadow_that_fails_harms_nobody():
    from equipoise.policies import PolicySpec
    from equipoise.policies.registry import Policy

    def place(ranks, requests, prices, params, memory, out):
        ranks.batch[:] = 77  # it may spoil what it is shown
        raise ZeroDivisionError

    bad = Policy(PolicySpec(name="bad", place=place, summary="fails", source="a test"), {})
    driver = Driver(router_of(2, shadows=(bad, "least_batch")))
    for _ in range(4):
        driver.send(100)
    first, second = driver.router.shadows(driver.now)
    assert (first.waits, second.same) == (4, 4)
    assert first.batch.tolist() == [2, 2]
    assert driver.router._shadows.errors == 4

"""The decision log and shadows; prompt lengths."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_cases import COST, Driver, router_of

from equipoise import traces
from equipoise.router import DecisionLog, PromptLengths


def test_a_decision_says_what_was_known_and_chosen():
    seen = []
    driver = Driver(
        router_of(2, policy="least_batch", sink=seen.append, shadows=["least_tokens", "round_robin"])
    )
    driver.send(900, budget_tokens=7, session="s")
    driver.send(100)
    driver.now = 2.0
    name = driver.send(300, arrived_s=1.5)
    decision = seen[-1]
    assert (decision.request_id, decision.at_s, decision.arrived_s) == (name, 2.0, 1.5)
    assert (decision.batch, decision.context_tokens_by_rank) == ([1, 1], [900, 100])
    assert (decision.instance, decision.rank, decision.reason) == (0, 0, "policy/ledger")
    assert decision.step_price == pytest.approx(COST.cost([2, 1], [1_200, 100]))
    by_tokens, in_turn = decision.shadows
    assert (by_tokens.policy, by_tokens.rank) == ("least_tokens", 1)
    assert by_tokens.step_price == pytest.approx(COST.cost([1, 2], [900, 400]))
    assert (in_turn.policy, in_turn.rank) == ("round_robin", 0)
    assert (seen[0].budget_tokens, seen[0].session, seen[1].session) == (7, 0, -1)


@pytest.mark.parametrize("scope", ["pool", "instance"])
def test_shadows_change_no_decision(scope):
    drivers = [
        Driver(router_of(3, 3, policy="equipoise", scope=scope, **more))
        for more in ({}, {"shadows": ["equipoise", "brh", "dualpath"], "sink": lambda decision: None})
    ]
    for driver in drivers:
        names = []
        for k in range(300):
            driver.now += 0.01
            names.append(driver.send(1 + k * 7919 % 900))
            if k % 5 == 4:
                for name in names[:4]:
                    driver.finish(name, 1 + k % 11)
                del names[:4]
    assert drivers[0].where == drivers[1].where
    assert drivers[1].view().counts["policy_errors"] == 0
    assert drivers[1].router._shadows.errors == 0


def test_a_policy_agrees_with_its_own_shadow():
    seen = []
    driver = Driver(router_of(4, policy="dualpath", capacity=None, sink=seen.append, shadows=["dualpath"]))
    for k in range(100):
        driver.send(1 + k * 7919 % 900)
    assert len(seen) == 100
    for decision in seen:
        (shadow,) = decision.shadows
        assert (shadow.instance, shadow.rank) == (decision.instance, decision.rank)
        assert shadow.step_price == decision.step_price


def test_the_log_is_a_trace(tmp_path):
    file = io.BytesIO()
    log = DecisionLog(file)
    driver = Driver(router_of(2, sink=log))
    for k in range(20):
        driver.now += 0.5
        name = driver.send(100 + k, session=k % 3)
        if k == 7:
            driver.abort(name)
        elif k != 9:
            driver.finish(name, 3 + k)
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(file.getvalue())
    trace = traces.read(path)
    kept = [k for k in range(20) if k not in (7, 9)]
    assert trace.context_tokens.tolist() == [100 + k for k in kept]
    assert trace.output_tokens.tolist() == [3 + k for k in kept]
    assert trace.arrival_s.tolist() == [0.5 * k for k in kept]
    assert len(set(trace.session.tolist())) == 3


def test_exact_lengths_reach_what_learns():
    seen = []
    log = DecisionLog(io.BytesIO())
    log.finished = lambda *arguments: seen.append(arguments)
    driver = Driver(router_of(2, sink=log))
    name = driver.send(100)
    driver.router.usage(0.0, driver.leases[name], prompt_tokens=123, output_tokens=45)
    assert driver.view().own_context_tokens.tolist() == [168, 0]
    driver.finish(name)
    assert seen == [(name, 123, 45)]


def test_ratios_are_learnt_by_model():
    lengths = PromptLengths()
    assert lengths.estimate("a", prompt_bytes=400) == 100
    for _ in range(300):
        lengths.learn("a", prompt_bytes=900, prompt_tokens=300)
    assert lengths.estimate("a", prompt_bytes=900) == 300
    assert lengths.estimate("b", prompt_bytes=400) == 100
    assert lengths.estimate("a", prompt_bytes=0) == 1


def test_models_are_bounded_and_nonsense_is_not_learnt():
    lengths = PromptLengths(most_models=8)
    for k in range(1_000):
        lengths.learn(f"m{k}", prompt_bytes=400, prompt_tokens=100)
    assert len(lengths) == 8
    for size, tokens in ((0, 5), (5, 0), (-1, 5), (10, 10_000), (10_000_000, 1)):
        lengths.learn("m999", prompt_bytes=size, prompt_tokens=tokens)
    assert lengths.bytes_per_token("m999") == pytest.approx(4.0)


def test_a_tokenizer_is_asked_first_and_may_fail():
    def tokenizer(model, text):
        if model == "broken":
            raise ValueError
        return len(text.split()) if model == "known" else None

    lengths = PromptLengths(tokenizer)
    assert lengths.estimate("known", prompt_bytes=400, text="one two three") == 3
    assert lengths.estimate("known", prompt_bytes=400) == 100
    assert lengths.estimate("unknown", prompt_bytes=400, text="one") == 100
    assert lengths.estimate("broken", prompt_bytes=400, text="one") == 100
    assert lengths.tokenizer_errors == 1


@given(st.floats(1.5, 9.0), st.lists(st.integers(100, 50_000), min_size=200, max_size=200))
def test_the_ratio_converges(ratio, sizes):
    lengths = PromptLengths()
    for size in sizes:
        lengths.learn("m", prompt_bytes=size, prompt_tokens=max(1, round(size / ratio)))
    assert lengths.bytes_per_token("m") == pytest.approx(ratio, rel=0.05)

"""Verify lengths in an engine: one rank's part of a plan, learnt survivals, SGLang's log, and what a plan may know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.control import RankDrafts, VerifyPrice, allocate, worth
from equipoise.control.state import Snapshot
from equipoise.cost import load
from equipoise.engines.verify import LearntSurvivals, RankControl, read_dspark_log, survival_of
from equipoise.engines.verify.versions import check_version
from equipoise.errors import InputError

SEEDS = st.integers(0, 2**32 - 1)
PRICE = VerifyPrice(load("h200"))


def drawn(rng: np.random.Generator, drafts: int = 4) -> tuple[list[str], Any, Any]:
    n = int(rng.integers(0, 30))
    context = rng.lognormal(10, 1.5, n).astype(np.int64)
    return [f"r{i}" for i in range(n)], context, survival_of(rng.uniform(0.2, 1.0, (n, drafts)))


def planned(ranks: list[tuple[list[str], Any, Any]], step: int, horizon: int) -> list[RankControl]:
    controls = [RankControl(PRICE, 4, horizon) for _ in ranks]
    messages = [control.observe(step, *rank) for control, rank in zip(controls, ranks, strict=True)]
    assert {len(m) for m in messages} == {controls[0].message_bytes}
    assert len({control.agree(messages).to_bytes() for control in controls}) == 1
    return controls


@settings(max_examples=25)
@given(SEEDS, st.integers(1, 4), st.sampled_from([1, 2]))
def test_ranks_that_see_only_messages_plan_like_one_that_sees_all(
    seed: int, count: int, horizon: int
) -> None:
    rng = np.random.default_rng(seed)
    ranks = [drawn(rng) for _ in range(count)]
    controls = planned(ranks, 7, horizon)
    lengths = []
    for control, (names, _, _) in zip(controls, ranks, strict=True):
        found = control.lengths(7 + horizon)
        assert list(found) == names
        lengths += [found[name] for name in names]
    whole = Snapshot.of([RankDrafts(context, survival, 7) for _, context, survival in ranks])
    if lengths:
        assert worth(whole, PRICE, np.array(lengths)).rate >= 0.98 * allocate(whole, PRICE).rate


@settings(max_examples=25)
@given(SEEDS, st.sampled_from([1, 2]))
def test_lengths_of_a_step_know_nothing_of_its_drafts(seed: int, horizon: int) -> None:
    """Whatever the drafts of the step turn out to be, its lengths were said before; and for no other step."""
    rng = np.random.default_rng(seed)
    ranks = [drawn(rng), drawn(rng)]
    control = planned(ranks, 7, horizon)[0]
    before = dict(control.lengths(7 + horizon))
    # the survivals of the step itself arrive: nothing it may still verify changes
    control.observe(7 + horizon, ranks[0][0], ranks[0][1], np.zeros_like(ranks[0][2]))
    assert dict(control.lengths(7 + horizon)) == before
    for step in (7 - 1, 7, 7 + horizon - 1, 7 + horizon + 1):
        assert not control.lengths(step) or step == 7 + horizon
    with pytest.raises(InputError, match="may not depend on the drafts"):
        RankControl(PRICE, 4, 0)


def test_bad_observations_are_said() -> None:
    control = RankControl(PRICE, 2)
    with pytest.raises(InputError, match="nothing was observed"):
        control.agree([b""])
    for names, context, survival, words in (
        (["a"], [1, 2], [[0.5, 0.1], [0.5, 0.1]], "1 names"),
        (["a", "a"], [1, 2], [[0.5, 0.1], [0.5, 0.1]], "1 of them different"),
        (["a"], [1], [[0.5, 0.1, 0.1]], r"it must be \[requests, 2\]"),
        (["a"], [1], [[0.5, 0.6]], "never rise"),
    ):
        with pytest.raises(InputError, match=words):
            control.observe(3, names, context, survival)
    with pytest.raises(InputError, match="drafts = 0"):
        RankControl(PRICE, 0)
    with pytest.raises(InputError, match="shape"):
        survival_of([0.5])
    with pytest.raises(InputError, match="no probability"):
        survival_of([[1.5]])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_learnt_survivals_are_survivals(seen: list[tuple[int, int, int]]) -> None:
    learnt = LearntSurvivals(4)
    for name, verified, accepted in seen:
        learnt.saw(name, max(verified, accepted), min(verified, accepted))
    found = learnt.survival([0, 1, 2, 3])
    assert found.shape == (4, 4)
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found, axis=1) <= 0).all()


def test_learnt_survivals_come_near_the_chances() -> None:
    rng, learnt = np.random.default_rng(4), LearntSurvivals(3, memory=0.99)
    chance = {"sure": np.array([0.95, 0.9, 0.9]), "unsure": np.array([0.5, 0.3, 0.3])}
    for _ in range(2000):
        for name, of in chance.items():
            learnt.saw(name, 3, int(np.cumprod(rng.random(3) < of).sum()))
    for name, of in chance.items():
        assert learnt.survival([name])[0] == pytest.approx(np.cumprod(of), abs=0.1)
    # one that is new is like the average, and one that left is forgotten
    new = learnt.survival(["new"])[0]
    assert np.cumprod(chance["unsure"])[0] < new[0] < np.cumprod(chance["sure"])[0]
    learnt.forget(["sure", "never there"])
    assert (learnt.survival(["sure"])[0] == new).all()


def test_drafts_that_were_never_offered_yield_nothing() -> None:
    few, full = LearntSurvivals(3), LearntSurvivals(3)
    for _ in range(30):
        few.saw("a", 1, 1, offered=1)
        full.saw("a", 1, 1, offered=3)  # cut by a plan: nothing is known of the others
    assert few.survival(["a"])[0, 1] < 0.1 < full.survival(["a"])[0, 1]
    assert few.survival([]).shape == (0, 3)
    with pytest.raises(InputError, match="3 accepted of 2 verified"):
        few.saw("a", 2, 3)
    with pytest.raises(InputError, match="memory"):
        LearntSurvivals(3, memory=2)


HEAD = "[2026-11-30 10:00:00] [DSPARK-CPS] num_reqs=2 budget=3 gamma=3 verify_len_range=[1,4]"
ROWS = [
    "[DSPARK-CPS]   req=3 prefix=41210 verify_len=3 sort_survival=[0.912, 0.804, 0.805]",
    "[DSPARK-CPS]   req=7 prefix=120 verify_len=2 sort_survival=[0.700, 0.300, 0.100]",
]


def test_a_dspark_log_is_read() -> None:
    (step,) = read_dspark_log(
        [ROWS[0], "something else", HEAD, ROWS[0], "something else", ROWS[1], HEAD, ROWS[1]]
    )
    assert step.requests.tolist() == [3, 7]
    assert step.verified.tolist() == [2, 1]
    assert step.budget == 3
    assert step.survival[0].tolist() == [0.912, 0.804, 0.804]
    assert allocate([step.drafts(5)], PRICE).for_step == 6
    assert read_dspark_log([]) == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([HEAD, ROWS[0], HEAD, *ROWS], "line 1: 1 requests of 2"),
        ([HEAD, ROWS[0].replace("0.804, ", "")], "must be 3 probabilities"),
        ([HEAD, ROWS[0].replace("0.804", "1.804")], "line 2: sort_survival"),
        ([HEAD, ROWS[0].replace("0.804", "0.8.4")], "must be 3 probabilities"),
    ],
)
def test_a_damaged_dspark_log_is_said(lines: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_dspark_log(lines)


def test_versions_it_was_never_run_on_are_refused() -> None:
    known = {"1.2.0": "how", "1.3.0": "how"}
    check_version("Engine", "1.2.0+cpu", known)
    check_version("Engine", "9.0.0", known, any_version=True)
    with pytest.raises(InputError, match=r"Engine 9.0.0 was never run .* use 1.2.0, 1.3.0, or any_version"):
        check_version("Engine", "9.0.0", known)
    with pytest.raises(InputError, match="it has no schedule"):
        check_version("Engine", "1.2.0", known, "it has no schedule", any_version=True)

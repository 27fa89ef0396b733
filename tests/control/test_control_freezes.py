"""Second means in the simulation: what holds whatever happens, and that a bound of nothing changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.control import Freezes, Pauses, RankDrafts, VerifyPrice, simulate_control
from equipoise.control.acceptance import Acceptance
from equipoise.control.instance import Instance
from equipoise.control.skewed import placement
from equipoise.cost import load
from equipoise.errors import InputError, PolicyError
from equipoise.traces import synth

PRICE = VerifyPrice(load("v2"))
TRACE = synth("agentic-coding", requests=3000, seed=1, steady_state=64)


def run(policy: str = "random", **more):  # type: ignore[no-untyped-def]
    options = {"ranks": 8, "per_rank": 8, "drafts": 2, "steps": 60, "warmup_steps": 20, "seed": 3} | more
    return simulate_control(TRACE, placement(policy), PRICE, options.pop("name", "fixed,1"), **options)


def test_a_rank_is_frozen_for_so_long_at_most_and_never_are_all() -> None:
    freezes = Freezes(freeze_steps=3)
    ranks = [RankDrafts([1000], [[0.5]]), RankDrafts([900_000], [[0.5]])]
    frozen = [freezes.decide(ranks, PRICE).tolist() for _ in range(8)]
    assert [f[1] for f in frozen] == [True, True, True, False, True, True, True, False]
    assert not any(f[0] for f in frozen)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6))
def test_no_new_request_waits_longer_whatever_is_frozen(seed: int, longest: int) -> None:
    """Ranks freeze and requests come as they like, within the bound on freezes: so is the wait."""
    rng = np.random.default_rng(seed)
    instance = Instance(TRACE, placement("skewed,spread=1"), PRICE, 4, 6, 2, Acceptance(), seed)
    frozen_for = np.zeros(4, dtype=int)
    frozen = np.zeros(4, dtype=bool)
    waits = np.zeros(24, dtype=int)
    for _ in range(40):
        instance.release(frozen)
        waits = np.where(instance.held, waits + 1, 0)
        assert waits.max() <= longest
        assert instance.waited.max() <= longest
        assert not instance.held[~frozen[instance.rank]].any()
        running = np.flatnonzero(~instance.held)
        done = instance.advance(
            running, np.minimum(instance.left[running], rng.integers(1, 400, len(running)))
        )
        assert not instance.held[done].any()
        wanted = rng.random(4) < 0.8
        frozen = wanted & (frozen_for < longest)
        frozen_for = np.where(frozen, frozen_for + 1, 0)
        instance.replace(done, frozen, detours=False)
    assert instance.longest_wait_steps <= longest


def test_freezes_hold_requests_back_and_detours_do_not() -> None:
    for longest in (2, 8):
        found = run(freezes=Freezes(longest, above=0.0))
        assert 0 < found.longest_wait_steps <= longest
        assert found.sat_out_share > 0
    detours = run(freezes=Freezes(8, above=0.0), detours=True)
    assert (detours.longest_wait_steps, detours.sat_out_share) == (0, 0)
    assert detours != run()


def test_a_bound_of_nothing_changes_nothing() -> None:
    plain = run()
    assert run(freezes=Freezes(0)) == plain
    assert run(freezes=Freezes(0), detours=True) == plain
    assert run(pauses=Pauses(0)) == plain
    assert run(freezes=Freezes(8, above=1e9)) == plain


@pytest.mark.parametrize(("most", "rest"), [(1, 1), (4, 12), (6, 2)])
def test_pauses_in_a_run_keep_their_bound(most: int, rest: int) -> None:
    found = run(pauses=Pauses(most, rest, most_share=0.3, least_gain=0.0), name="equipoise", steps=120)
    assert 0 < found.longest_pause_steps <= most
    # a life of n steps begins at most n / (most + rest) pauses, rounded up, and never ends in one
    lives = np.arange(64, 200)
    assert found.least_share_run >= 1 - (most * np.ceil(lives / (most + rest)) / lives).max()
    assert found.sat_out_share > 0


def test_skewed_ranks_get_less_and_less() -> None:
    def shares(text: str) -> np.ndarray:  # type: ignore[type-arg]
        policy = placement(text)
        instance = Instance(
            synth("agentic-coding", requests=8000, seed=2), policy, PRICE, 4, 2000, 1, Acceptance(), 1
        )
        return np.bincount(instance.rank, minlength=4) / 8000

    # linear from 1.6 to 0.4 over four ranks
    assert shares("skewed,spread=0.6") == pytest.approx([0.3625, 0.2875, 0.2125, 0.1375], abs=0.02)
    assert shares("skewed,spread=0") == pytest.approx([0.25] * 4, abs=0.02)
    assert run("skewed,spread=0.5").bubble_share > run("least_batch").bubble_share
    for text in ("skewed,spread=-1", "skewed,spread=x", "skewed,z=1", "skewed,spread=nan", "skew"):
        with pytest.raises(PolicyError):
            placement(text)


def test_bad_bounds_are_said() -> None:
    for make in (lambda: Freezes(-1), lambda: Freezes(1.5), lambda: Freezes(above=float("nan"))):  # type: ignore[arg-type]
        with pytest.raises(InputError):
            make()

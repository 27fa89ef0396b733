"""Told survivals are as old and as wrong as was asked."""

from __future__ import annotations

import numpy as np
import pytest

from equipoise.control import Acceptance, Snapshot, VerifyPrice, simulate_control
from equipoise.control import simulation as module
from equipoise.control.calibration import calibration_error, survivals
from equipoise.control.told import Told
from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.traces import synth


def binned(told: np.ndarray, accepted: np.ndarray) -> float:  # type: ignore[type-arg]
    """The textbook's error, in bins of equal width and with drawn outcomes: another estimate of the same."""
    total = 0.0
    for low in np.arange(0, 1, 0.05):
        inside = (told >= low) & (told < low + 0.05)
        if inside.any():
            total += inside.sum() * abs(told[inside].mean() - accepted[inside].mean())
    return total / len(told)


def test_a_planted_error_is_found() -> None:
    rng = np.random.default_rng(0)
    true = rng.uniform(0.2, 0.8, 50_000)
    accepted = (rng.random(50_000) < true).astype(float)
    assert calibration_error(true, true) == 0
    assert calibration_error(true, accepted) < 0.01
    assert calibration_error(true + 0.07, accepted) == pytest.approx(0.07, abs=0.01)
    assert calibration_error(true - 0.07, true) == pytest.approx(0.07)
    # half too high and half too low: no error of the mean, all of it in the bins
    crossed = np.where(true > 0.5, true + 0.05, true - 0.05)
    assert calibration_error(crossed, true) == pytest.approx(0.05, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "ece"),
    [("shifted", -0.08), ("shifted", 0.01), ("shifted", 0.08), ("noisy", 0.01), ("noisy", 0.08)],
)
def test_drawn_survivals_have_the_error_that_was_asked(kind: str, ece: float) -> None:
    acceptance = Acceptance(ece=ece, ece_kind=kind)
    rng = np.random.default_rng(7)
    logits = acceptance.sample(rng, 40_000, 5)
    off = acceptance.wrong_by(5)
    told = survivals(logits + off.shift + off.noise_sd * rng.standard_normal(logits.shape))
    true = survivals(logits)
    accepted = np.cumprod(rng.random(logits.shape) < 1 / (1 + np.exp(-logits)), axis=1)
    assert calibration_error(told.ravel(), true.ravel()) == pytest.approx(abs(ece), abs=0.004)
    assert binned(told.ravel(), accepted.ravel()) == pytest.approx(abs(ece), abs=0.008)
    bias = float(told.mean() - true.mean())
    assert bias == pytest.approx(ece if kind == "shifted" else 0.0, abs=0.004)
    assert (np.diff(told, axis=1) <= 0).all()


def test_without_an_error_survivals_are_the_chances() -> None:
    assert Acceptance().wrong_by(5) == (0.0, 0.0)
    assert Acceptance(ece=0.05).wrong_by(0) == (0.0, 0.0)


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_what_is_told_is_exactly_so_old(horizon: int) -> None:
    told = Told(horizon, np.array([0.5]))
    for step in range(8):
        known = told.swap(np.full((3, 1), float(step)))
        assert known[0, 0] == (step - horizon if step >= horizon else 0.5)
        if step == 4:
            told.forget(np.array([1]))
        # nothing of the slot's last request is ever told of the next one
        expected = 0.5 if 4 < step <= 4 + horizon or step < horizon else step - horizon
        assert known[1, 0] == expected


def test_a_simulated_decision_sees_survivals_exactly_so_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is verified, so all horizons go through the same states and the same drafts."""
    trace = synth("agentic-coding", requests=400, seed=1, steady_state=32)
    make = module.strategy

    def seen(horizon: int) -> list[Snapshot]:
        snapshots: list[Snapshot] = []

        def spied(name: str, *more):  # type: ignore[no-untyped-def]
            rule = make(name, *more)
            if name == "none":
                plain = rule.lengths
                rule.lengths = lambda s: (snapshots.append(s), plain(s))[1]
            return rule

        monkeypatch.setattr(module, "strategy", spied)
        simulate_control(
            trace, parse("least_batch"), VerifyPrice(load("v2")), "none", ranks=4, per_rank=8, horizon=horizon,
            steps=12, warmup_steps=0, acceptance=Acceptance(level_sd=0.0, drift_sd=0.0),
        )  # fmt: skip
        return snapshots

    runs = {horizon: seen(horizon) for horizon in (1, 2, 3)}
    mean = Acceptance().mean(5).astype(np.float32)
    for horizon, snapshots in runs.items():
        assert all((s.survival == mean).all() for s in snapshots[:horizon])
        for step in range(horizon, 12):
            now, one = snapshots[step], runs[1][step - horizon + 1]
            # rows of requests that were there all the time; those that came since are not known of
            known = (now.survival != mean).any(axis=1)
            assert known.any()
            earlier = {row.tobytes() for row in one.survival}
            assert all(row.tobytes() in earlier for row in now.survival[known])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ece": 0.3}, "must be from -0.25 to 0.25"),
        ({"ece": -0.01, "ece_kind": "noisy"}, "must be from 0 to 0.15"),
        ({"ece": float("nan")}, "ece = nan"),
        ({"ece_kind": "loud"}, "no kind of calibration error named 'loud'"),
    ],
)
def test_bad_errors_are_said(options: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Acceptance(**options)  # type: ignore[arg-type]

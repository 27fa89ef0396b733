"""The simulation of strategies: conservation, order, and what the command prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from equipoise.cli.app import main
from equipoise.control import Acceptance, VerifyPrice, simulate_control
from equipoise.control.acceptance import survivals
from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.study.statistics import over_seeds
from equipoise.traces import synth

TRACE = synth("agentic-coding", requests=2000, seed=1, steady_state=128)


def run(name: str, seed: int = 0, **more):  # type: ignore[no-untyped-def]
    options = {"ranks": 8, "per_rank": 16, "steps": 30, "warmup_steps": 10, "seed": seed} | more
    price = options.pop("price", VerifyPrice(load("h200")))
    return simulate_control(TRACE, parse("dualpath,z=1.05"), price, name, **options)


def test_tokens_are_accepted_drafts_and_one_a_request() -> None:
    found = run("none")
    assert found.tokens == 30 * 8 * 16
    assert (found.drafts_verified, found.drafts_accepted) == (0, 0)
    found = run("fixed,2")
    assert found.drafts_verified == 30 * 8 * 16 * 2
    # but for the last tokens of requests that end inside their accepted drafts
    assert 0 <= found.tokens - 30 * 8 * 16 <= found.drafts_accepted
    assert run("fixed,2") == found


def test_ours_beats_every_rank_for_itself_and_waits_less() -> None:
    ours, alone = ([run(n, s) for s in range(3)] for n in ("equipoise", "argmax"))
    assert over_seeds([a.tokens_per_s / b.tokens_per_s for a, b in zip(ours, alone, strict=True)]).low > 1
    assert all(a.bubble_share < b.bubble_share for a, b in zip(ours, alone, strict=True))
    assert all(a.slack_turned > 0.6 for a in ours)


def test_calibration_errors_are_as_asked() -> None:
    for ece in (-0.05, 0.05):
        acceptance = Acceptance(ece=ece)
        rng = np.random.default_rng(1)
        logits = acceptance.logits(rng, acceptance.levels(rng, 20_000), np.zeros(20_000), 5)
        off = survivals(logits + acceptance.shift(5)).mean() - survivals(logits).mean()
        assert off == pytest.approx(ece, abs=0.01)


def test_pauses_and_waits_run() -> None:
    from equipoise.control import Pauses

    assert run("equipoise", steps=20, pauses=Pauses()).longest_pause_steps <= 4
    assert run("argmax_waits", steps=20).tokens > 0
    assert run("argmax_own", steps=20, price=VerifyPrice(load("v2"), graph_sizes=range(8, 200, 8))).tokens > 0


def test_bad_input_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ({"ranks": 0}, {"horizon": 0}, {"ranks": 500}):
        with pytest.raises(InputError):
            run("none", **more)
    for name in ("fixed", "argmax,3", "equipose", "fixed,x"):
        with pytest.raises(InputError):
            run(name)
    for options in (
        ["--strategy", "argmx"],
        ["--ece", "0.9"],
        ["--query-reads", "2"],
        ["--graph-interval", "-1"],
    ):
        assert main(["control", "simulate", "--quiet", *options]) == 2
        assert "Traceback" not in capsys.readouterr().err


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    small = ["control", "simulate", "--ranks", "4", "--load-per-rank", "8", "--steps", "10", "--warmup-steps", "5",
             "--seeds", "2", "--strategy", "argmax", "--strategy", "equipoise", "--quiet"]  # fmt: skip
    assert main([*small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "equipoise.control/1"
    assert [c["strategy"] for c in found["cells"]] == ["argmax", "equipoise"]
    assert found["cells"][1]["gain"]["low"] is not None
    assert main(small) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "equipoise" in out

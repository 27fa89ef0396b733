"""The simulation of strategies: conservation, order, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from equipoise.cli.app import main
from equipoise.control import Acceptance, VerifyPrice, simulate_control
from equipoise.control.instance import Instance
from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.study import engine_control
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


def test_a_run_adds_up() -> None:
    found = run("equipoise")
    # ranks that decide together may stop earlier, light ones too: what is gone need not be filled
    assert found.slack_filled < found.slack_turned <= 1
    assert 0 < found.drafts_accepted < found.drafts_verified
    assert found.finished > 0
    assert (found.sat_out_share, found.longest_pause_steps, found.longest_wait_steps) == (0, 0, 0)
    assert run("argmax_own", price=VerifyPrice(load("v2"), graph_sizes=range(8, 200, 8))).tokens > 0


def test_correcting_a_profile_with_waiting_verifies_less() -> None:
    waits, plain = (run(name, warmup_steps=60) for name in ("argmax_waits", "argmax"))
    assert waits.drafts_verified < plain.drafts_verified


def test_padding_costs_what_is_run_and_filling_it_verifies_more() -> None:
    padded, filled, plain = (run(name) for name in ("padded", "padded_filled", "argmax"))
    assert padded.tokens_per_s < plain.tokens_per_s
    assert filled.drafts_verified > padded.drafts_verified


def test_all_strategies_see_the_same_luck() -> None:
    """What a strategy does to one slot changes nothing in another."""
    price, policy = VerifyPrice(load("v2")), parse("least_batch")
    one, other = (
        Instance(TRACE, policy, price, 4, 8, 3, Acceptance(ece=0.05, ece_kind="noisy"), 7) for _ in range(2)
    )
    assert not one.held.any()
    for _ in range(3):
        other.replace(np.array([5, 9]), np.zeros(4, dtype=bool), detours=False)
        untouched = np.delete(np.arange(32), [5, 9])
        for a, b in zip(one.draw(), other.draw(), strict=True):
            assert np.array_equal(a[untouched], b[untouched])
    assert other.number[5] == 36
    assert other.left[5] == TRACE.output_tokens[36]


def test_bad_input_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ({"ranks": 0}, {"horizon": 0}, {"ranks": 500}):
        with pytest.raises(InputError):
            run("none", **more)
    for name in ("fixed", "argmax,3", "equipose", "fixed,x"):
        with pytest.raises(InputError):
            run(name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strategy", "argmx"], "no strategy named 'argmx'; did you mean"),
        (["--strategy", "equipoise+pause"], "no means named 'pause'"),
        (["--strategy", "argmax", "--strategy", "argmax"], "strategy 'argmax' twice"),
        (["--policy", "dualpth"], "no policy named 'dualpth'"),
        (["--policy", "skewed,spread=2"], "skewed takes spread from 0 to 1"),
        (["--policy", "skewed,0.3"], "skewed takes spread from 0 to 1"),
        (["--policy", ""], "an empty value"),
        (["--ece", "0.9"], "must be from -0.25 to 0.25"),
        (["--ece", "-0.1", "--ece-kind", "noisy"], "must be from 0 to 0.15"),
        (["--ece-kind", "loud"], "loud"),
        (["--query-reads", "2"], "query_reads"),
        (["--graph-interval", "-1"], "--graph-interval"),
        (["--ep-per-query", "nan"], "ep_per_query = nan"),
        (["--ranks", "0"], "ranks = 0"),
        (["--load-per-rank", "2.5"], "'2.5' is not a whole number"),
        (["--load-per-rank", "4000"], "requests in all"),
        (["--horizon", "0"], "horizon = 0"),
        (["--pause-steps", "-1"], "most_steps = -1"),
        (["--rest-steps", "0"], "rest_steps = 0"),
        (["--freeze-steps", "9999999"], "freeze_steps = 9999999"),
        (["--seed", "-1"], "seed = -1"),
        (["--seeds", "0"], "seeds = 0"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
        (["--cost", "h2000"], "h2000"),
        (["--checkpoint-dir", "/dev/null/x"], "--checkpoint-dir"),
    ],
)  # fmt: skip
def test_bad_options_are_answered_in_a_line(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["control", "simulate", "--quiet", *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert words in err


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
    more = [*small, "--strategy", "equipoise+pauses+detours", "--strategy", "fixed,2+freezes",
            "--policy", "random", "--policy", "skewed"]  # fmt: skip
    assert main(more) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "placed by skewed" in out
    assert "longest wait" in out


def test_a_stopped_run_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["control", "simulate", "--ranks", "4", "--load-per-rank", "4", "--steps", "4", "--warmup-steps", "2",
             "--seeds", "2", "--strategy", "fixed,1", "--strategy", "equipoise+pauses", "--quiet", "--json",
             "--checkpoint-dir", str(tmp_path)]  # fmt: skip
    made: list[str] = []

    def counted(*given, **options):  # type: ignore[no-untyped-def]
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(given[3])
        return simulate_control(*given, **options)

    monkeypatch.setattr(engine_control, "simulate_control", counted)
    assert main(small) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "equipoise: interrupted\n")
    assert len(list(tmp_path.iterdir())) == 3
    made.clear()
    assert main(small) == 0
    assert made == ["equipoise+pauses"]
    whole = capsys.readouterr().out
    made.clear()
    assert main(small) == 0
    assert made == []
    assert capsys.readouterr().out == whole
    next(tmp_path.iterdir()).write_text("{")  # damaged: as good as none
    assert main(small) == 0
    assert len(made) == 1
    assert capsys.readouterr().out == whole

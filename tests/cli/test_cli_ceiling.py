"""`ceiling` and `compare --oracle` as a user meets them."""

from __future__ import annotations

import json

import jsonschema
import pytest

from equipoise.cli.app import main
from equipoise.study import schema
from equipoise.study.ceiling_words import ceiling_schema

FAST = [
    "--trace", "chat-short", "--cost", "v2", "--ranks", "4", "--concurrency", "24", "--requests", "400",
    "--seeds", "2", "--oracle-budget", "5000",
]  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "ceiling", *FAST, "--json")
    assert (code, err) == (0, "")
    jsonschema.validate(json.loads(out), ceiling_schema())


def test_table_and_verdict_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "ceiling", *FAST)
    assert code == 0
    assert "ceiling: 28 of 28 runs" in err
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "Is balancing worth doing here?" in out
    for name in ("random", "round_robin", "least_tokens", "dualpath z=", "hold_steps=4", "oracle"):
        assert name in out


def test_compare_says_what_share_was_won(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["compare", *FAST, "--policy", "least_batch", "--policy", "equipoise", "--oracle"]
    code, out, _ = run(capsys, *arguments, "--quiet")
    assert code == 0
    assert "won: share of what any router could win" in out
    assert "what is between them" in " ".join(out.split())
    code, out, _ = run(capsys, *arguments, "--json")
    summary = json.loads(out)
    jsonschema.validate(summary, schema())
    assert summary["cells"][0]["share_of_winnable"]["mean"] <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ceiling", "--oracle-budget", "soon"], "'soon' is no budget"),
        (["ceiling", "--seeds", "0"], "seeds = 0"),
        (["ceiling", "--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["compare", "--oracle", "--mode", "sessions"], "cannot play back sessions mode"),
        (["compare", "--oracle", "--deployment", "200p100d"], "cannot play back a deployment"),
        (["compare", "--oracle", "--oracle-budget", "0"], "budget of 0 candidates"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1

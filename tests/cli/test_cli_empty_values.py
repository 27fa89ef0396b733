"""An empty text on the command line: one sentence that names the option, before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.cli.app import main

CASES = [
    (["compare", "--trace", ""], "--trace: an empty value"),
    (["compare", "--trace="], "--trace: an empty value"),
    (["compare", "--trace", "  "], "--trace: an empty value"),
    (["compare", "--policy", "", "--seeds", "1"], "--policy: an empty value"),
    (["compare", "--baseline", ""], "--baseline: an empty value"),
    (["compare", "--ranks", ""], "--ranks: an empty value"),
    (["compare", "--output-dir", ""], "--output-dir: an empty value"),
    (["tune", ""], "an empty argument"),
    (["tune", "--range", ""], "--range: an empty value"),
    (["cost", "derive", "--config", ""], "--config: an empty value"),
    (["cost", "show", ""], "an empty argument"),
    (["trace", "info", ""], "an empty argument"),
    (["trace", "convert", "agentic-coding", ""], "an empty argument"),
    (["trace", "info", "agentic-coding", "--columns", ""], "--columns: an empty value"),
    (["policies", ""], "an empty argument"),
    ([""], "an empty argument"),
]


@pytest.mark.parametrize(("arguments", "expected"), CASES, ids=[" ".join(map(repr, a)) for a, _ in CASES])
def test_an_empty_value_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"equipoise: {expected}; ")


def test_an_equals_sign_at_the_end_of_a_value_is_no_empty_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--policy", "dualpath,z="]) == 2
    assert "empty value" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["no name", "a file"])
def test_an_output_folder_that_cannot_be_is_refused_before_the_replays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("replayed in vain")

    monkeypatch.setattr("equipoise.study.compare", never)
    target = Path()
    if kind == "a file":
        target = tmp_path / "out"
        target.write_text("")
    assert main(["compare", "--output-dir", str(target)]) == 2
    assert capsys.readouterr().err.startswith("equipoise: --output-dir: ")

"""`equipoise cost compare`: 80 columns, JSON, one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise import cost
from equipoise.cli.app import main


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["cost", "compare", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_tables_and_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cost.save(cost.load("h200"), tmp_path / "mine.toml")
    code, out, err = run(capsys, "v1", "h200", str(tmp_path / "mine.toml"))
    assert (code, err) == (0, "")
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "a request, in context tokens 279,100 91,260 91,260" in lines
    assert "Placement: a request is worth 91,300 tokens under h200 (1)" in " ".join(out.split())


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "v1", "deepseek-v3:v1", "--json")
    values = json.loads(out)
    assert code == 0
    assert values["schema"] == "equipoise.cost-compare/1"
    assert [c["name"] for c in values["costs"]] == ["v1", "deepseek-v3:v1"]
    largest = max(values["grid"], key=lambda cell: cell["ratio"])
    assert values["largest_ratio"]["ratio"] == largest["ratio"]
    assert values["questions"][0]["question"] == "placement"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("v1",), "give two or more"),
        ((), "requires an argument"),
        (("v1", "nothere.toml"), "nothere.toml: cannot be read"),
        (("v1", "v9"), "did you mean"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err

"""`equipoise live analyse`: its files, its JSON, and what it answers to bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "live"))

from made_runs import POLICIES, mixture, write_folder

from equipoise.cli.app import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("run")
    write_folder(found, policies=POLICIES[:2], repeats=2, trace=mixture(60))
    return found


def test_json_is_the_file_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["live", "analyse", str(folder), "--no-html", "--json", "--measure", "itl_ms.mean,ttft_ms.p50"])
        == 0
    )
    out = capsys.readouterr().out
    assert out == (folder / "analysis.json").read_text("utf-8")
    document = json.loads(out)
    assert {p["measure"] for p in document["pairs"]} == {"itl_ms.mean", "ttft_ms.p50"}
    assert not (folder / "live.html").exists()


def test_files_go_elsewhere(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    assert main(["live", "analyse", str(folder), "--output-dir", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"analysis.json", "live.html"}
    assert "Nothing is predicted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], "run.json"),
        (["FOLDER", "--margin-percent", "-1"], "--margin-percent"),
        (["FOLDER", "--measure", "itl"], "no measure 'itl'"),
        (["FOLDER", "--measure", "itl_ms.mean,"], "--measure"),
        (["FOLDER", "--cost", "no-such-cost"], "no-such-cost"),
        (["FOLDER", "--ttft-ms", "nan"], "--ttft-ms"),
    ],
)
def test_bad_input(
    folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(folder) if a == "FOLDER" else a for a in arguments]
    assert main(["live", "analyse", "--no-html", *given]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1

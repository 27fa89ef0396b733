"""`equipoise trace`, run as a user runs it: results, messages, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from equipoise.cli.app import main
from equipoise.traces import read, synth
from equipoise.traces.presets import PRESETS
from equipoise.traces.readers import FORMATS


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def run(*arguments: object) -> int:
    return main(["trace", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text("ts,prompt_len,gen\n1,10,5\n2,x,5\n0.5,10,0\n4,30,7\n")
    return path


MAP = "context_tokens=prompt_len,output_tokens=gen,arrival_s=ts"


def test_info_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", "chat-short", "--requests", 2000, "--seed", 3) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "chat-short: 2,000 requests" in out
    assert "context while decoding" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


@pytest.mark.parametrize("preset", PRESETS)
def test_info_as_json_is_json_only(preset: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", f"preset:{preset}", "--requests", 500, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    values = json.loads(out)
    assert values["schema"] == "equipoise.trace-info/1"
    assert values["requests"] == 500
    assert values["read"] is None
    assert values["decode"].keys() == {"mean", "cv", "p50", "p90", "p99"}


def test_skipped_lines_are_named_and_counted(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", table, "--columns", MAP, "--skip-bad", 2, "--json") == 0
    out, _ = capsys.readouterr()
    values = json.loads(out)
    assert values["requests"] == 2
    assert values["read"]["skipped"] == 2
    assert run("info", table, "--columns", MAP, "--skip-bad", 2) == 0
    out, err = capsys.readouterr()
    assert f"skipped {table}:3, column prompt_len: 'x' is not a number" in err
    assert "2 bad lines skipped" in out


def test_columns_may_be_given_one_by_one(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [word for pair in MAP.split(",") for word in ("--columns", pair)]
    assert run("info", table, *pairs, "--skip-bad", 2, "--json") == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["info", "agentic-codin"], "did you mean 'agentic-coding'?"),
        (["info", "preset:nope"], "the workload preset 'nope' is unknown"),
        (["info", "no/such.csv"], "there is no such file"),
        (["info", "TABLE"], "is in no known trace format, its first line is 'ts,prompt_len,gen'"),
        (["info", "TABLE", "--format", "azur"], "did you mean 'azure'"),
        (["info", "TABLE", "--format", "vidur"], "there is no column 'arrived_at'"),
        (
            ["info", "TABLE", "--columns", MAP],
            "mine.csv:3, column prompt_len: 'x' is not a number; expected a whole",
        ),
        (["info", "TABLE", "--columns", MAP, "--skip-bad", "1"], "mine.csv:4, column gen: '0' is below 1"),
        (["info", "TABLE", "--columns", "context_tokens"], "'context_tokens' is no pair"),
        (["info", "TABLE", "--columns", "turn=a,turn=b"], "turn is mapped twice"),
        (["info", "TABLE", "--columns", MAP, "--skip-bad", "-1"], "skip_bad = -1"),
        (["info", "chat-short", "--requests", "0"], "requests = 0"),
        (["info", "chat-short", "--requests", "1.5"], "'1.5' is not a whole number"),
        (["info", "chat-short", "--rate-per-s", "nan"], "rate_per_s = nan"),
        (["info", "chat-short", "--skip-bad", "1"], "is a preset"),
        (["convert", "chat-short", "OUT.xls"], "the ending .xls says no format"),
        (["convert", "chat-short", "OUT.csv", "--rate-scale", "0"], "factor = 0"),
        (["convert", "chat-short", "OUT.csv", "--prefill-s", "-1"], "is not a delay"),
        (["convert", "TABLE", "OUT.csv"], "is in no known trace format"),
        (["synth", "chat", "--output", "OUT.csv"], "did you mean"),
        (["synth", "chat-long", "--output", "none/OUT.csv"], "cannot be written"),
        (["synth", "chat-long", "--output", "OUT.csv", "--steady-state", "-1"], "steady_state = -1"),
        (["synth", "chat-long"], "--output"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    text: str,
    table: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*(str(table) if a == "TABLE" else a for a in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [table]  # nothing written, nothing left over


def test_convert_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.parquet", tmp_path / "b.jsonl.gz"
    assert run("convert", "agentic-coding", first, "--requests", 300, "--seed", 2) == 0
    assert read(first).context_tokens.tolist() == synth("agentic-coding", 300, 2).context_tokens.tolist()
    options = ["--rate-scale", 2, "--prefill-s", 1.5, "--prefill-s-per-token", 0, "--requests", 450]
    assert run("convert", first, second, *options) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "sessions, turns and think times are not part of the Mooncake format" in err
    assert f"wrote 450 requests to {second}" in err
    back, once = read(second), read(first)
    assert back.arrival_s[299] == pytest.approx(once.arrival_s[299] / 2, abs=1e-8)
    assert back.context_tokens[:300].tolist() == once.context_tokens.tolist()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "b.jsonl.gz"]


def test_spreading_a_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid.jsonl"
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 9}}\n'
    path.write_text("".join(line.format(i // 5 * 2000) for i in range(100)))
    assert run("info", path) == 0
    assert "time grid" in capsys.readouterr().out
    assert run("convert", path, tmp_path / "even.csv", "--spread-ticks") == 0
    assert len(set(read(tmp_path / "even.csv").arrival_s.tolist())) == 100


def test_synth_writes_what_the_library_makes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.csv"
    arguments = ["--requests", 200, "--seed", 7, "--rate-per-s", 3, "--steady-state", 50]
    assert run("synth", "mixed-tail", "--output", path, *arguments) == 0
    assert "wrote 200 requests" in capsys.readouterr().err
    trace = synth("mixed-tail", 200, 7, 3.0, 50)
    assert read(path).arrival_s.tolist() == trace.arrival_s.tolist()
    assert read(path).session.tolist() == trace.session.tolist()


def test_formats_lists_every_format_and_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("formats") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    for name in (*FORMATS, *PRESETS):
        assert name in out
    assert run("formats", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert [f["name"] for f in values["read"]] == list(FORMATS)
    assert values["write"] == ["equipoise", "mooncake", "csv"]


def test_asking_for_help_loads_no_library(capsys: pytest.CaptureFixture[str]) -> None:
    import subprocess

    code = (
        "import sys; from equipoise.cli.app import main; main(['trace', '--help']); "
        "sys.exit(any(m in sys.modules for m in ('numpy', 'polars', 'scipy', 'numba')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "convert" in done.stdout

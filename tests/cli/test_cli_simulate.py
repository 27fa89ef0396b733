"""`equipoise simulate` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.cli import simulate as command
from equipoise.cli.app import main
from equipoise.fleet.files import loads, names, preset_text

FAST = [
    "--deployment",
    "dp8",
    "--trace",
    "chat-short",
    "--load-per-rank",
    "4",
    "--requests",
    "500",
    "--quiet",
]
POLICIES = ["--policy", "A", "--policy", "dualpath,z=1.2"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["simulate", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from equipoise.study.run_summary import run_schema

    code, out, err = run(capsys, *FAST, *POLICIES, "--seeds", "2", "--by", "context,turn", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "equipoise.simulate/1"
    assert [(r["label"], r["seed"]) for r in found["runs"]] == [
        ("least_batch", 0), ("least_batch", 1), ("dualpath z=1.2", 0), ("dualpath z=1.2", 1),
    ]  # fmt: skip
    for one in found["runs"]:
        assert set(one["classes"]) == {"context", "turn"}
        jsonschema.validate({k: v for k, v in one.items() if k != "label"}, run_schema())
    assert found["concurrency"] == 32


@pytest.mark.parametrize("width", [60, 80])
def test_tables_for_people(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run(capsys, *FAST, *POLICIES, "--by", "output", "--slo-tpot-ms", "50")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    for words in (
        "least_batch",
        "TTFT",
        "TPOT",
        "e2e",
        "wait",
        "tokens/s",
        "goodput",
        "attention",
        "arrived",
    ):
        assert words in out
    assert "output: 0-256" in out
    assert "…" not in out
    assert not any(line.split()[:1] == ["h"] for line in lines), "a label is folded inside a word"


def test_the_load_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    loud = [word for word in FAST if word != "--quiet"]
    code, _, err = run(capsys, *loud, "--policy", "A")
    assert code == 0
    assert "so that about 4 requests run on a rank" in err


def test_sessions_a_rate_and_saturated(capsys: pytest.CaptureFixture[str]) -> None:
    def arrivals(*options: str) -> dict:
        base = ["--deployment", "dp8", "--trace", "agentic-coding", "--requests", "600", "--policy", "A"]
        code, out, err = run(capsys, *base, *options, "--json")
        assert code == 0, err
        return json.loads(out)["runs"][0]

    assert arrivals("--mode", "sessions")["mode"] == "sessions"
    assert arrivals("--mode", "saturated", "--concurrency", "40")["concurrency"] == 40
    slow, fast = (arrivals("--rate-per-s", rate)["rate_scale"] for rate in ("2", "4"))
    assert fast == pytest.approx(2 * slow)
    assert arrivals("--rate-scale", "0.02")["rate_scale"] == 0.02


def test_a_folder_a_policy_with_a_timeline(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, err = run(capsys, *FAST, *POLICIES, "--output-dir", str(out), "--timeline-window", "1:2")
    assert code == 0
    assert sorted(p.name for p in out.iterdir()) == ["dualpath_z=1.2", "least_batch"]
    for folder in out.iterdir():
        assert f"wrote {folder}/" in err
        assert {"summary.json", "steps.parquet", "requests.parquet", "timeline.json"} <= {
            p.name for p in folder.iterdir()
        }
        assert json.loads((folder / "timeline.json").read_text())["traceEvents"]


def test_presets_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--list")
    assert all(name in out for name in names())
    _, out, _ = run(capsys, "--show", "200p100d")
    assert out == preset_text("200p100d")
    assert loads(out).pool.instances == 100


BAD = [
    (["--deployment", "dp63"], "did you mean 'dp64'"),
    (["--deployment", "no/such.toml"], "cannot be read"),
    (["--show", "dp63"], "did you mean 'dp64'"),
    (["--trace", "chat-shrt"], "chat-short"),
    (["--cost", "v3"], "no cost 'v3'"),
    (["--cost", "v1,v2"], "name one"),
    (["--policy", "dualpth"], "did you mean 'dualpath'"),
    (["--mode", "timd"], "mode"),
    (["--by", "contxt"], "did you mean 'context'"),
    (["--seeds", "0"], "seeds = 0"),
    (["--slo-ttft-ms", "-1"], "ttft_ms = -1"),
    (["--load-per-rank", "nan"], "load_per_rank = nan"),
    (["--load-per-rank", "3", "--concurrency", "8"], "give one of them"),
    (["--load-per-rank", "3", "--rate-per-s", "8"], "give one of them"),
    (["--rate-per-s", "0"], "rate_per_s = 0"),
    (["--rate-per-s", "5", "--mode", "saturated"], "an arrival rate in saturated mode"),
    (["--deployment", "faults", "--mode", "saturated"], "prefill.where = 'pool' in saturated mode"),
    (["--timeline-window", "1:2"], "add --output-dir"),
    (["--timeline-window", "2:1", "--output-dir", "x"], "not a window"),
    (["--mode", "sessions", "--trace", "chat-short"], "no request belongs to a conversation"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[" ".join(o) for o, _ in BAD])
def test_bad_input_is_one_line_and_exit_2(
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "--requests", "300", "--quiet", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_a_mistake_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[prefill]\nchunk_token = 512\n")
    code, out, err = run(capsys, "--deployment", str(path))
    assert (code, out) == (2, "")
    assert err == (
        f"equipoise: {path}, prefill: unknown key 'chunk_token'; did you mean 'chunk_tokens' or 's_per_token'? "
        "Known: chunk_tokens, fixed_s, instances, prefix_cache, ranks, s_per_token, where\n"
    )


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from equipoise.study import simulation

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "replay_job", stopped)
    code, out, err = run(capsys, *FAST, *POLICIES)
    assert (code, out, err) == (130, "", "equipoise: interrupted\n")


def test_the_command_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = "import sys, equipoise.cli.simulate; sys.exit(any(m in sys.modules for m in ('numpy', 'numba', 'polars')))"
    assert subprocess.run([sys.executable, "-c", heavy], check=False).returncode == 0
    assert command.POLICIES

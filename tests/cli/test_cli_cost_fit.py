"""`equipoise cost fit`: a planted log comes back as its prices in every face; bad input is one sentence."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from fit_logs import PREFILL, TRUTH, write_fpm, write_table

from equipoise import cost
from equipoise.calibrate.calibration import schema
from equipoise.cli.app import main


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fpm(tmp_path_factory.mktemp("log") / "engine.jsonl", prefills=60)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prices = {"full": (200.0, 1.2, 4.0), "shared": (90.0, 0.9, 1.0)}
    return write_table(tmp_path_factory.mktemp("table") / "t.csv", prices)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["cost", "fit", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_holds_the_planted_prices_and_fits_its_schema(
    capsys: pytest.CaptureFixture[str], log: Path
) -> None:
    code, out, err = run(capsys, str(log), "--json", "--no-tune", "--block-tokens", "16")
    assert (code, err) == (0, "")
    values = json.loads(out)
    pytest.importorskip("jsonschema").validate(values, schema())
    (fit,) = values["fits"]
    assert fit["cost"]["name"] == "engine"
    rate = fit["request_in_context_tokens"]
    assert rate["low"] <= 25_000 <= rate["high"]
    low, high = fit["intervals"]["decode.per_100k_context"]
    assert low <= 80 <= high
    assert fit["heldout_mape"] < 0.03
    assert fit["dropped"]["prefill or mixed step"] == 60 * 8
    assert fit["knobs"]["decode_active_request_weight"]["value"] == pytest.approx(rate["value"] / 16)
    assert fit["knobs"]["dualpath_z"] is None
    assert cost.from_dict(fit["cost"]).prefill is not None


def test_prefill_is_joined_into_the_cost(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fit.toml"
    code, out, err = run(capsys, str(log), "--no-tune", "--output", str(path))
    assert (code, err) == (0, f"note: wrote {path}\n")
    loaded = cost.load(path)
    assert loaded.unit == "us"
    assert loaded.constant == pytest.approx(TRUTH.constant, rel=0.1)
    prefill = loaded.prefill
    assert prefill is not None
    constant, _, per_100k = PREFILL
    assert prefill.constant == pytest.approx(constant, rel=0.3)
    assert prefill.terms[0].per_100k_pairs == pytest.approx(per_100k, rel=0.1)
    assert loaded.metadata["fit"]["prefill"]["steps"] == 60
    assert "Prefill" in out


def test_a_fitted_cost_runs_in_compare(capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path) -> None:
    path = tmp_path / "fit.toml"
    run(capsys, str(log), "--no-tune", "--output", str(path))
    arguments = [
        "--ranks",
        "4",
        "--concurrency",
        "16",
        "--requests",
        "200",
        "--seeds",
        "2",
        "--policy",
        "A",
        "--policy",
        "B",
        "--json",
    ]
    assert main(["compare", "--cost", str(path), *arguments]) == 0
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert {c["cost"] for c in cells} == {"engine"}
    assert main(["cost", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Fitted: a request is worth 2" in shown
    assert "held-out error" in shown


def test_the_terminal_says_it_all_in_80_columns(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    folder = tmp_path / "out"
    code, out, err = run(
        capsys, str(log), "--ranks", "4", "--output-dir", str(folder), "--no-report", "--quiet", "--jobs", "1"
    )
    assert code == 0
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    assert "…" not in out
    for words in (
        "One request      costs as much as 2",
        "Fixed share",
        "Held-out error",
        "Left out         480 rows: prefill or mixed step (first: engine.jsonl:",
        "Dynamo, blocks + w requests  w =",
        "tokens + x requests          x =",
        "DualPath                     z =",
        "Levels of proof: fitted, converged",
    ):
        assert words in out, words
    assert sorted(p.name for p in folder.iterdir()) == ["fit.json", "fit.toml"]
    assert err == f"wrote {folder}/: fit.json, fit.toml\n"
    saved = json.loads((folder / "fit.json").read_text())
    z = saved["fits"][0]["knobs"]["dualpath_z"]
    pytest.importorskip("jsonschema").validate(saved, schema())
    assert z["ranks"] == 4
    assert min(z["curve"], key=lambda p: p["excess"])["z"] == z["z"]


def test_an_earlier_page_does_not_stay_beside_other_numbers(
    capsys: pytest.CaptureFixture[str], log: Path, tmp_path: Path
) -> None:
    (tmp_path / "fit.html").write_text("old")
    (tmp_path / "mine.txt").write_text("not ours")
    code, *_ = run(capsys, str(log), "--no-tune", "--no-report", "--quiet", "--output-dir", str(tmp_path))
    assert code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fit.json", "fit.toml", "mine.txt"]


def test_groups_are_a_line_each_and_can_be_picked(
    capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    code, out, _ = run(capsys, str(table), "--no-report", "--output-dir", str(folder))
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "full 200.0 1.200 4.000 30,000 0.0" in lines
    assert "shared 90.00 0.9000 1.000 90,000 0.0" in lines
    names = sorted(p.name for p in folder.iterdir())
    assert names == ["fit.json", "h200-sxm-vllm-glm-5-full.toml", "h200-sxm-vllm-glm-5-shared.toml"]

    code, out, _ = run(
        capsys, str(table), "--group", "layer=sha*", "--group", "model=glm-5", "--json", "--no-tune"
    )
    (fit,) = json.loads(out)["fits"]
    assert (code, fit["group"]["layer"]) == (0, "shared")
    assert fit["cost"]["constant"] == pytest.approx(90)
    code, out, _ = run(
        capsys, str(table), "--group", "layer=full", "--group", "layer=shared", "--list-groups"
    )
    assert code == 0
    assert "full" in out
    assert "shared" in out


def test_a_group_that_cannot_be_fitted_is_named_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str], table: Path, tmp_path: Path
) -> None:
    path = tmp_path / "more.csv"
    path.write_text(table.read_text() + "h200_sxm,VLLM,zai-org/GLM-5,tiny,8,4096,0.3\n")
    code, out, err = run(capsys, str(path), "--json", "--quiet")
    values = json.loads(out)
    pytest.importorskip("jsonschema").validate(values, schema())
    assert code == 0
    assert [f["group"]["layer"] for f in values["fits"]] == ["full", "shared"]
    assert [f["group"]["layer"] for f in values["failed"]] == ["tiny"]
    assert "note: not fitted: h200_sxm more VLLM GLM-5 tiny: " in err


# ---- bad input -------------------------------------------------------------------------------------------------

CSV = "step,rank,batch,context_tokens,time_ms\n"


def _rows(batch: Any = None, time: Any = None, tokens: Any = None) -> str:
    rows = []
    for i in range(1, 41):
        b = batch or (i % 16 + 1)
        rows.append(f"{i},0,{b},{tokens or b * i * 500},{time or 10 + b + i / 10}")
    return CSV + "\n".join(rows) + "\n"


SGLANG = (
    "[2026-11-29 12:00:05 DP0 TP0 EP0] Decode batch, #running-req: 32, #token: 262144, token usage: 0.41, "
    "cuda graph: True, gen throughput (token/s): 1066.67, #queue-req: 0\n"
)
VLLM = (
    "(APIServer pid=7) INFO 11-29 12:00:05 [loggers.py:259] Engine 000: Iteration(42): 0 context requests, "
    "0 context tokens, 32 generation requests, 32 generation tokens, "
    "iteration elapsed time: 30.10 ms, GPU KV cache usage: 41.2%\n"
)


def bad_files(folder: Path, log: Path) -> dict[str, tuple[str, str]]:
    """Name of the case to what is on the command line and what the message must hold."""
    (folder / "empty.jsonl").write_bytes(b"")
    (folder / "cut.jsonl.gz").write_bytes(gzip.compress(log.read_bytes())[:20_000])
    (folder / "mixed.log").write_text(SGLANG + VLLM)
    (folder / "nocontext.csv").write_text(
        "batch,time_ms\n" + "".join(f"{i % 9 + 1},{i}\n" for i in range(1, 60))
    )
    (folder / "negative.csv").write_text(_rows(time=-1))
    (folder / "one_batch.csv").write_text(_rows(batch=8))
    (folder / "one_load.csv").write_text(_rows(batch=8, tokens=32_000, time=30))
    (folder / "few.csv").write_text(CSV + "1,0,8,32000,30\n2,0,8,32000,30\n")
    (folder / "bytes.bin").write_bytes(os.urandom(2000))
    return {
        "missing": ("nothere.jsonl", "no such file"),
        "folder": (".", "is a folder"),
        "empty": ("empty.jsonl", "the file is empty"),
        "cut": ("cut.jsonl.gz", "ends in the middle"),
        "mixed": ("mixed.log", "vllm_log begins in this line"),
        "no context": ("nocontext.csv", "without context lengths"),
        "all dropped": ("negative.csv", "40 dropped: negative time"),
        "one batch": ("one_batch.csv", "what a request costs cannot be told"),
        "one load": ("one_load.csv", "holds one load only"),
        "too few": ("few.csv", "a fit needs"),
        "bytes": ("bytes.bin", "no known step-log format"),
    }


CASES = (
    *("missing", "folder", "empty", "cut", "mixed", "no context", "all dropped", "one batch", "one load"),
    *("too few", "bytes"),
)


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: Path,
    case: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    name, words = bad_files(tmp_path, log)[case]
    before = sorted(p.name for p in tmp_path.iterdir())
    code, out, err = run(capsys, name, "--output", "fit.toml", "--output-dir", "out", "--no-report")
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("equipoise: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seed", "-1"), "--seed: seed = -1; must be from 0"),
        (("--max-batch", "0"), "--max-batch: max-batch = 0; must be from 1"),
        (("--block-tokens", "0"), "--block-tokens"),
        (("--min-context", "8.5"), "not a whole number"),
        (("--saturation-tokens", "two"), "use auto, none, or a number of tokens"),
        (("--columns", "batch"), "no target=column"),
        (("--group", "layer"), "no label=value"),
        (("--group", "layre=full"), "no group has a label 'layre'"),
        (("--format", "fmp"), "did you mean 'fpm'"),
        (("--model", "glm-99"), "no preset 'glm-99'"),
        (("--batch-shape", "round"), "round"),
        (("--output", "nowhere/fit.toml"), "there is no folder 'nowhere'"),
        (("--output", "fit.yaml"), "no TOML file"),
        (("--output-dir", "{log}"), "is a file"),
        (("--tune-trace", "nothere"), "nothere"),
    ],
)
def test_a_wrong_option_is_one_sentence(
    capsys: pytest.CaptureFixture[str], log: Path, arguments: tuple[str, ...], words: str
) -> None:
    if "--tune-trace" in arguments:
        pytest.importorskip("optuna")
    code, out, err = run(capsys, str(log), *(a.format(log=log) for a in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1 or "--tune-trace" in arguments


def test_one_file_for_many_groups_is_refused(capsys: pytest.CaptureFixture[str], table: Path) -> None:
    code, _, err = run(capsys, str(table), "--output", "fit.toml")
    assert code == 2
    assert "--output: 2 groups for one file; pick one with --group" in err


def test_contexts_that_nobody_logged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("batch,time_ms\n" + "".join(f"{i % 20 + 1},{10 + i % 20}\n" for i in range(60)))
    code, out, _ = run(capsys, str(path), "--without-context")
    assert code == 0
    assert "1 * max(1000 * B)" in out
    assert "context lengths are not logged" in out
    assert "these data cannot weigh a request against context" in out
    code, out, _ = run(capsys, str(path), "--without-context", "--json")
    values = json.loads(out)
    pytest.importorskip("jsonschema").validate(values, schema())
    assert values["fits"][0]["request_in_context_tokens"] == {"value": None, "low": None, "high": None}


def test_a_partial_fit_is_taken_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(_rows(batch=8))
    code, out, _ = run(capsys, str(path), "--partial", "--json")
    (fit,) = json.loads(out)["fits"]
    assert code == 0
    assert fit["coefficients"].keys() == {"constant", "decode.per_100k_context"}
    assert [u["coefficient"] for u in fit["unidentified"]] == ["decode.per_request"]
    assert "run batch 2 and batch 32 a rank" in fit["unidentified"][0]["probe"]

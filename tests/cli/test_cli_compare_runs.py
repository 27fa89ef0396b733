"""`equipoise compare-runs` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from equipoise.cli.app import main
from equipoise.study.pairs import schema


def frame(factor: float, rows: int = 1200) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    arrived = np.sort(rng.uniform(0, 600, rows))
    output = rng.integers(20, 80, rows)
    start = arrived + factor * rng.exponential(0.02, rows)
    return pl.DataFrame(
        {
            "arrival_s": arrived,
            "context_tokens": rng.integers(100, 1000, rows),
            "output_tokens": output,
            "rank": np.zeros(rows, int),
            "start_s": start,
            "finish_s": start + factor * 0.03 * output * rng.uniform(0.9, 1.1, rows),
        }
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    for name, factor in (("a", 1.0), ("b", 1.2), ("c", 1.0)):
        frame(factor).write_parquet(f"{name}.parquet")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["compare-runs", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("columns", [80, 60])
def test_tables_fit(
    capsys: pytest.CaptureFixture[str], runs: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run(capsys, "a.parquet", "b.parquet", "c.parquet", "--margin-percent", "2")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    assert ("slower" in out) == (columns == 80)
    words = " ".join(out.split())
    assert "B is worse than A in TPOT (mean +20.0 %" in words
    assert "Identical in TPOT mean, p50, p99" in words
    assert "blocks of" in words


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    code, out, err = run(capsys, "a.parquet", "b.parquet", "--json", "--measure", "tpot_ms,tokens_per_s")
    assert (code, err) == (0, "")
    found = json.loads(out)
    pytest.importorskip("jsonschema").validate(found, schema())
    (pair,) = found["pairs"]
    assert [(m["quantity"], m["statistic"]) for m in pair["measures"]] == [
        ("tpot_ms", "mean"),
        ("tpot_ms", "p50"),
        ("tpot_ms", "p99"),
        ("tokens_per_s", "mean"),
    ]
    assert pair["measures"][0]["verdict"] == "worse"
    assert run(capsys, "a.parquet", "b.parquet", "--json", "--measure", "tpot_ms,tokens_per_s")[1] == out


def test_unpaired(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    frame(1.2).head(900).write_parquet("short.parquet")
    code, out, _ = run(capsys, "a.parquet", "short.parquet", "--unpaired")
    assert code == 0
    assert "1,200 requests and 900, not paired" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a.parquet",), "1 run named"),
        (("a.parquet", "nosuch"), "nosuch: no such file or folder"),
        (("a.parquet", "empty"), "not the folder of a run"),
        (("a.parquet", "fit"), "it holds 'equipoise.fit/1'"),
        (("a.parquet", "half"), "not a JSON document"),
        (("a.parquet", "hollow"), "the summary lacks what equipoise.run/1 promises"),
        (("a.parquet", "noschema"), "it names no schema"),
        (("a.parquet", "cut.parquet"), "is not a readable Parquet file"),
        (("a.parquet", "none.parquet"), "A has 1,200 rows, B 0"),
        (("a.parquet", "steps.parquet"), "has no column context_tokens"),
        (("a.parquet", "text.parquet"), "column arrival_s holds String, not numbers"),
        (("a.parquet", "never.parquet"), "no request ever came"),
        (("a.parquet", "unfinished.parquet"), "finished in both"),
        (("a.parquet", "short.parquet"), "A has 1,200 rows, B 900"),
        (("a.parquet", "a.parquet#x"), "no policy 'x' there"),
        (("a.parquet", "b.parquet", "--measure", "ttft"), "did you mean 'ttft_ms'"),
        (("a.parquet", "b.parquet", "--measure", "ttft_ms"), "say nothing of ttft_ms"),
        (("a.parquet", "b.parquet", "--margin-percent", "0"), "must be above 0"),
        (("a.parquet", "b.parquet", "--margin-percent", "nan"), "must be above 0"),
        (("a.parquet", "b.parquet", "--tpot-ms", "-1"), "must be a finite number above 0"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: pytest.CaptureFixture[str], runs: Path, arguments: tuple[str, ...], words: str
) -> None:
    for name, text in (
        ("fit", '{"schema": "equipoise.fit/1"}'),
        ("half", '{"schema": '),
        ("hollow", '{"schema": "equipoise.run/1"}'),
        ("noschema", "[1]"),
        ("empty", None),
    ):
        Path(name).mkdir()
        if text is not None:
            (Path(name) / "summary.json").write_text(text)
    good = frame(1.0)
    content = Path("a.parquet").read_bytes()
    Path("cut.parquet").write_bytes(content[: len(content) // 2])
    good.head(0).write_parquet("none.parquet")
    good.head(900).write_parquet("short.parquet")
    good.select("start_s").write_parquet("steps.parquet")
    good.with_columns(arrival_s=pl.lit("soon")).write_parquet("text.parquet")
    good.with_columns(arrival_s=pl.lit(None, pl.Float64)).write_parquet("never.parquet")
    good.with_columns(finish_s=pl.lit(float("nan"))).write_parquet("unfinished.parquet")
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_study_and_one_of_its_files(capsys: pytest.CaptureFixture[str], runs: Path) -> None:
    study = [
        *("compare", "--trace", "chat-short", "--cost", "h200", "--ranks", "4", "--concurrency", "64"),
        *("--requests", "2500", "--seeds", "1", "--mode", "timed", "--policy", "A", "--policy", "dualpath"),
        *("--output-dir", "study", "--no-report", "--quiet"),
    ]
    assert main(study) == 0
    capsys.readouterr()
    code, out, _ = run(capsys, "study#least_batch", "study#dualpath")
    assert code == 0
    assert "B (dualpath z=1.05) against A (least_batch)" in out
    code, out, _ = run(capsys, "study", "study/requests.parquet")
    assert code == 0
    assert out.count("B against A: ") == 2
    Path("study/steps.parquet").write_bytes(b"PAR1")
    code, out, err = run(capsys, "study", "study")
    assert (code, out) == (2, "")
    assert "study/steps.parquet: is not a readable Parquet file" in err

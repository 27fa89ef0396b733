"""`compare`, `tune`, `policies` and `doctor` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.cli.app import main

FAST = [
    "--trace",
    "chat-short",
    "--ranks",
    "4",
    "--concurrency",
    "16",
    "--requests",
    "600",
    "--seeds",
    "2",
    "--quiet",
]
POLICIES = ["--policy", "A", "--policy", "dualpath,z=1.2"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compare", *FAST, *POLICIES, "--json")
    assert code == 0
    assert err == ""
    summary = json.loads(out)
    assert [c["label"] for c in summary["cells"][:2]] == ["least_batch", "dualpath z=1.2"]
    assert all("wall_s" in c for c in summary["cells"])


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", *FAST, *POLICIES)
    assert code == 0
    assert "least_batch" in out
    assert max(map(len, out.splitlines())) <= 80


def test_output_folder_without_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "out"
    code, _, err = run(capsys, "compare", *FAST, *POLICIES, "--output-dir", str(target), "--no-report")
    assert code == 0
    assert "summary.json" in err
    saved = json.loads((target / "summary.json").read_text())
    assert saved["schema"] == "equipoise.compare/1"


def test_the_resolved_configuration_is_complete(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import tomllib

    run(capsys, "compare", *FAST, *POLICIES, "--output-dir", str(tmp_path / "o"), "--no-report")
    config = tomllib.loads((tmp_path / "o" / "config.resolved.toml").read_text())
    assert config["concurrency"] == 16
    assert config["policies"][1] == {
        "name": "dualpath",
        "z": 1.2,
        "average": "projected",
        "text": "dualpath,z=1.2,average=projected",
    }
    assert config["information"]["knows"] == "exact"
    assert config["costs"][0]["terms"][1]["per_100k_context"] == 1.30219


def test_what_routers_know_is_said_and_changes_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--knows", "erased", "--replicas", "2", "--report-period-steps", "8", "--report-delay-ms", "1"]
    plain = json.loads(run(capsys, "compare", *FAST, *POLICIES, "--json")[1])
    late = json.loads(run(capsys, "compare", *FAST, *POLICIES, *options, "--json")[1])
    told = {"knows": "erased", "replicas": 2, "period_steps": 8, "delay_steps": 0, "delay_s": 0.001}
    told |= {"period_s": 0.0, "split": "request"}
    assert {json.dumps(c["information"]) for c in late["cells"]} == {json.dumps(told)}
    assert {c["information"] for c in plain["cells"]} == {None}
    assert late["cells"][1]["excess"]["mean"] > plain["cells"][1]["excess"]["mean"]
    _, out, _ = run(capsys, "compare", *FAST, *POLICIES, *options)
    assert "2 replicas, reports alone, reports every 8 steps, 1 ms late" in " ".join(out.split())


def test_a_sweep_resumes_from_its_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = [*FAST, *POLICIES, "--checkpoint-dir", str(tmp_path / "kept")]
    first, again = (run(capsys, "compare", *options) for _ in range(2))
    assert first == again
    assert len(list((tmp_path / "kept").glob("*.json"))) == 8


BAD = [
    (["--knows", "all"], "knows"),
    (["--replicas", "0"], "replicas = 0"),
    (["--knows", "ledger", "--report-delay-ms", "nan"], "delay_s = nan"),
    (["--report-period-steps", "8"], "leave period and delay out"),
    (["--runner", "ray"], "--ray-address"),
    (["--ray-address", "h:1"], "add --runner ray"),
    (["--trace", "no/such/file.csv"], "no/such/file.csv"),
    (["--trace", "chat-shrt"], "chat-short"),
    (["--policy", "dualpth"], "did you mean 'dualpath'"),
    (["--policy", "dualpath,q=1"], "no parameter 'q'"),
    (["--policy", "dualpath,z=nan"], "out of bounds"),
    (["--ranks", "0"], "ranks = 0"),
    (["--ranks", "100000"], "32768"),
    (["--instances", "-1"], "instances = -1"),
    (["--concurrency", "0"], "concurrency = 0"),
    (["--seeds", "0"], "seeds = 0"),
    (["--requests", "0"], "requests = 0"),
    (["--cost", "v3"], "no cost 'v3'"),
    (["--cost", "v1,,v2"], "empty value"),
    (["--groups", "2"], "groups = 2"),
    (["--groups", "two"], "not a whole number"),
    (["--group-policy", "biggest", "--instances", "2", "--groups", "2"], "biggest"),
    (["--kv-capacity-tokens", "1"], "larger than a rank"),
    (["--mode", "timd"], "mode"),
    (["--us-per-unit", "nan"], "us_per_unit"),
    (["--baseline", "random"], "not among the policies"),
    (["--requests", "20"], "no step could be counted"),
    (["--jobs", "0"], "jobs = 0"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], expected: str
) -> None:
    base = ["--concurrency", "16", "--seeds", "1", "--quiet", "--output-dir", str(tmp_path / "out")]
    if "--requests" not in arguments:
        base += ["--requests", "600"]
    if "--ranks" not in arguments:
        base += ["--ranks", "4"]
    for option in ("--concurrency", "--seeds"):
        if option in arguments:
            i = base.index(option)
            del base[i : i + 2]
    trace = [] if "--trace" in arguments else ["--trace", "chat-short"]
    code, out, err = run(capsys, "compare", *trace, *base, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert expected in err
    assert not (tmp_path / "out").exists()


def test_a_nan_price_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cost = tmp_path / "cost.toml"
    run(capsys, "cost", "derive", "--model", "glm-5.3", "--kind", "v1", "--output", str(cost))
    text = cost.read_text()
    line = next(x for x in text.splitlines() if x.startswith("weight"))
    cost.write_text(text.replace(line, "weight = nan", 1))
    code, _, err = run(capsys, "compare", *FAST, *POLICIES, "--cost", str(cost))
    assert code == 2
    assert "nan" in err
    assert err.count("\n") == 1


def test_oversized_requests_are_rejected_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compare", *FAST, *POLICIES, "--kv-capacity-tokens", "12000", "--json")
    assert code == 0
    cell = json.loads(out)["cells"][0]
    assert cell["rejected"] > 0
    assert cell["rejected"] + 0 < cell["requests"]


def test_tune_prints_the_best_and_how_flat_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", "dualpath", "--range", "z=1.0:1.2:1.4", "--refinements", "2", "--cost", "v1"]
    code, out, _ = run(capsys, *arguments, *FAST)
    assert code == 0
    assert "z is shown as good as the best" in out or "only is the best" in out
    assert "On fresh seeds" in out


def test_tune_json_and_bad_range(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tune", "length_split,swapped=true", "--refinements", "1", "--cost", "v1", "--json"]
    code, out, _ = run(capsys, *arguments, "--range", "percentile=50:90:95", *FAST)
    assert code == 0
    (tuning,) = json.loads(out)["tunings"]
    assert tuning["best"]["swapped"] is True
    code, _, err = run(capsys, "tune", "--range", "z", *FAST)
    assert code == 2
    assert "not a range" in err


def test_policies_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "policies")
    assert code == 0
    assert "round_robin" in out
    code, out, _ = run(capsys, "policies", "D")
    assert "z = 1.05" in out
    code, _, err = run(capsys, "policies", "nothing")
    assert code == 2
    assert "Known" in err


def test_doctor_is_content_here(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 0
    assert json.loads(out)["ok"] is True


def test_help_does_not_load_the_kernel() -> None:
    program = (
        "import sys; from equipoise.cli.app import main; main(['--help']); "
        "sys.exit(any(m in sys.modules for m in ('numba', 'polars', 'scipy', 'plotly', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


def test_public_names_are_sorted_and_exist() -> None:
    import equipoise

    assert list(equipoise.__all__) == sorted(equipoise.__all__, key=lambda n: (n.islower(), n))
    for name in equipoise.__all__:
        assert getattr(equipoise, name) is not None
    with pytest.raises(AttributeError):
        _ = equipoise.nothing


@pytest.mark.parametrize("first", ["equipoise.study", "equipoise.replay", "equipoise"])
def test_the_library_replays_whatever_was_imported_first(first: str) -> None:
    program = f"""
import importlib
importlib.import_module({first!r})
import equipoise
trace = equipoise.traces.synth("chat-short", requests=300, seed=1)
cost = equipoise.cost.derive(equipoise.models.load("glm-5.3"), kind="v1", b0=8)
result = equipoise.replay(trace, equipoise.Pool(ranks=4), equipoise.policies.get("dualpath", z=1.2), cost,
                          mode="saturated", concurrency=16, seed=0)
print(result.excess, result.balance, len(result.to_polars()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

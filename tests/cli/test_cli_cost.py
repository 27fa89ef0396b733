"""`equipoise cost`: the JSON face, the tables at 80 columns, and a one-line error for every wrong option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise import cost, models
from equipoise.cli.app import main


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["cost", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_of_a_derivation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "derive", "--model", "glm-5.3", "--json")
    values = json.loads(out)
    assert (code, err) == (0, "")
    assert values["schema"] == "equipoise.cost/1"
    assert set(values["models"]) == set(values["request_in_context_tokens"]) == {"v1", "v2"}
    assert values["kv_bytes_per_token"] == 53_940
    assert values["batch_for_m64"] == 2048
    assert [t["name"] for t in values["models"]["v1"]["terms"]] == ["shared", "full"]
    assert cost.from_dict(values["models"]["v2"]) == cost.derive(models.load("glm-5.3"), "v2")


def test_json_of_a_dense_model_has_null_where_there_is_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = run(capsys, "derive", "--config", str(tmp_path), "--json", "--kind", "v2")
    values = json.loads(out)
    assert (code, values["batch_for_m64"]) == (0, None)
    assert values["request_in_context_tokens"] == {"v2": 0.0}


@pytest.mark.parametrize("name", models.names())
def test_the_table_of_every_model_fits_80_columns_and_cuts_no_number(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, out, _ = run(capsys, "derive", "--model", name)
    assert code == 0
    assert "…" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80
    for layer in models.load(name).classes:
        assert f"{layer.per_request('projections'):,}" in out
        assert layer.name in out


def test_the_table_says_what_grows_and_what_can_be_batched(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "derive", "--model", "glm-5.3")
    squeezed = [" ".join(line.split()) for line in out.splitlines()]
    assert "shared 57 projections 165,019,648 batch yes" in squeezed
    assert "core 142,606,336 batch > 2,048 no" in squeezed
    assert "scan 4,128 /token context no" in squeezed
    assert "+ 0.275176 * max(B + 1.30222 * C/100k)" in squeezed
    assert "V1: one request costs as much as 279,066 context tokens" in squeezed
    assert "Each expert meets 64 tokens at a global decode batch of 2,048" in squeezed
    assert any("53,940 in fp8" in line for line in squeezed)


def test_b0_kind_and_exact_pricing(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys, "derive", "--model", "glm-5.3", "--kind", "v2", "--b0", "16", "--saturate", "--json"
    )
    model = json.loads(out)["models"]
    assert [*model] == ["v2"]
    assert model["v2"]["constant"] == pytest.approx(2 * 4.321606, rel=1e-6)
    assert model["v2"]["terms"][0]["saturations"][0]["tokens"] == 2048


def test_a_cost_is_written_shown_and_read_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    arguments = ("derive", "--model", "kimi-k3", "--kind", "v1", "--us-per-unit", "50", "--output", str(path))
    code, _, err = run(capsys, *arguments)
    assert (code, err) == (0, f"note: wrote {path}\n")
    assert cost.load(path) == cost.derive(models.load("kimi-k3"), "v1", us_per_unit=50)
    code, out, _ = run(capsys, "show", str(path))
    assert code == 0
    assert "0.847389" in out
    code, out, _ = run(capsys, "show", str(path), "--json")
    assert cost.from_dict(json.loads(out)["models"]["Kimi-K3 v1"]) == cost.load(path)


def test_the_layer_template_derives(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, template, _ = run(capsys, "layers-example")
    (tmp_path / "m.toml").write_text(template)
    code, out, _ = run(capsys, "derive", "--layers", str(tmp_path / "m.toml"), "--json")
    assert code == 0
    assert json.loads(out)["models"]["v1"]["terms"][1]["per_100k_context"] == pytest.approx(
        1.302218, rel=1e-6
    )


def test_list_names_costs_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(name in out for name in (*cost.names(), *models.names()))
    _, out, _ = run(capsys, "list", "--json")
    values = json.loads(out)
    assert ([*values["costs"]], [*values["models"]]) == (cost.names(), models.names())


@pytest.mark.parametrize("name", cost.names())
def test_show_fits_80_columns(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, _ = run(capsys, "show", name)
    assert code == 0
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_guesses_are_noted_on_stderr_only(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "house", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, err = run(capsys, "derive", "--config", str(tmp_path / "config.json"), "--json")
    assert (code, json.loads(out)["model"]["architecture"]) == (0, "house")
    assert err.startswith("note: architecture 'house' is not known; read as latent attention")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["derive"], "give one of --model NAME, --config PATH, --layers FILE"),
        (["derive", "--model", "glm-5.3", "--config", "x"], "--model and --config together"),
        (["derive", "--model", "glm-6"], "no preset 'glm-6'; did you mean"),
        (["derive", "--model", ""], "--model: an empty value"),
        (["derive", "--config", "absent.json"], "absent.json: cannot be read"),
        (["derive", "--layers", "absent.toml"], "absent.toml: cannot be read"),
        (["derive", "--model", "glm-5.3", "--kind", "v3"], "v3"),
        (["derive", "--model", "glm-5.3", "--b0", "0"], "b0 = 0; must be a whole number from 1 to"),
        (["derive", "--model", "glm-5.3", "--b0", "8.5"], "--b0"),
        (["derive", "--model", "glm-5.3", "--b0", "1" * 5000], "--b0"),
        (["derive", "--model", "glm-5.3", "--us-per-unit", "0"], "us_per_unit = 0"),
        (["derive", "--model", "glm-5.3", "--us-per-unit", "nan"], "us_per_unit = nan"),
        (["derive", "--model", "glm-5.3", "--us-per-unit", "fast"], "--us-per-unit"),
        (["derive", "--model", "glm-5.3", "--output", "x.toml"], "choose --kind v1 or --kind v2"),
        (["derive", "--model", "glm-5.3", "--kind", "v1", "--output", "absent/x.toml"], "cannot be written"),
        (["derive", "--model", "glm-5.3", "--kind", "v1", "--output", "."], "cannot be written"),
        (["derive", "--modle", "glm-5.3"], "--modle"),
        (["show"], "COST"),
        (["show", "v3"], "no cost 'v3'"),
        (["show", "absent.toml"], "absent.toml: cannot be read"),
        (["derived"], "derived"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("equipoise: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_prefill_is_derived_shown_and_saved_beside_decode(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "c.toml"
    _, derived, _ = run(capsys, "derive", "--model", "glm-5.3", "--kind", "v2", "--output", str(path))
    _, shown, _ = run(capsys, "show", str(path))
    for out in (derived, shown):
        squeezed = [" ".join(line.split()) for line in out.splitlines()]
        assert "cost = max(0.388817 * T + 16.4066 * S2048/100k)" in squeezed
        assert "+ max(0.151384 * T + 0.358339 * P/100k + 6.04454 * S2048/100k)" in squeezed
        assert any(line.startswith("Prefill: a prompt of 557,660 tokens pays as much") for line in squeezed)
        assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_json_of_prefill(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "derive", "--model", "glm-5.3", "--json")
    values = json.loads(out)
    prefill = values["prefill"]
    assert (prefill["unit"], prefill["us_per_unit"], prefill["crossover_tokens"]) == (
        "request",
        74.0,
        557_660,
    )
    assert prefill["formula"] == cost.derive_prefill(models.load("glm-5.3")).formula()
    assert prefill["terms"] == values["models"]["v1"]["prefill"]["terms"]
    assert prefill["terms"] == values["models"]["v2"]["prefill"]["terms"]
    _, out, _ = run(capsys, "show", "v1", "--json")
    assert json.loads(out)["prefill"] is None


def test_prefill_that_never_becomes_quadratic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layers = tmp_path / "layers.toml"
    layers.write_text(
        'schema = "equipoise.layers/1"\nname = "linear"\n[[layers]]\nname = "state"\ncount = 2\n'
        '[[layers.work]]\nkind = "projections"\nmultiply_adds = 64\n'
    )
    _, out, _ = run(capsys, "derive", "--layers", str(layers))
    assert "Prefill: linear in the prompt" in out
    _, out, _ = run(capsys, "derive", "--layers", str(layers), "--json")
    assert json.loads(out)["prefill"]["crossover_tokens"] is None

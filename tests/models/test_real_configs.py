"""Every published config beside the checkout derives, its preset agrees with it, and so do variants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise import models
from equipoise.cost import derive
from equipoise.errors import ModelError
from equipoise.models.families import FAMILIES

pytestmark = pytest.mark.shared

FILES = {
    "MiniMaxAI--MiniMax-M2.5": "minimax-m2.5",
    "MiniMaxAI--MiniMax-M3": "minimax-m3",
    "Qwen--Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen--Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "deepseek-ai--DeepSeek-V3": "deepseek-v3",
    "deepseek-ai--DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai--DeepSeek-V4-Flash": "deepseek-v4-flash",
    "deepseek-ai--DeepSeek-V4-Pro": "deepseek-v4-pro",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "llama-4-maverick",
    "meta-llama--Meta-Llama-3.1-70B": None,
    "mistralai--Mixtral-8x7B-v0.1": None,
    "moonshotai--Kimi-K2-Instruct": "kimi-k2",
    "moonshotai--Kimi-K2.5": "kimi-k2.5",
    "moonshotai--Kimi-K3": "kimi-k3",
    "openai--gpt-oss-120b": "gpt-oss-120b",
    "zai-org--GLM-5": "glm-5",
    "zai-org--GLM-5.1": "glm-5.1",
    "zai-org--GLM-5.2": "glm-5.2",
    "zai-org--GLM-5.3": "glm-5.3",
}


@pytest.fixture(params=FILES)
def stem(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def path_of(shared_dir: Path, stem: str) -> Path:
    return shared_dir / "configs" / f"{stem}_config.json"


def content_of(shared_dir: Path, stem: str) -> dict[str, Any]:
    values = json.loads(path_of(shared_dir, stem).read_text())
    assert isinstance(values, dict)
    return values


def test_no_config_is_left_out(shared_dir: Path) -> None:
    assert {p.name.removesuffix("_config.json") for p in (shared_dir / "configs").glob("*.json")} == set(
        FILES
    )


def test_every_config_derives_in_both_forms(shared_dir: Path, stem: str) -> None:
    shape = models.from_config(path_of(shared_dir, stem))
    assert shape.name == stem.partition("--")[2]
    v1, v2 = derive(shape, "v1"), derive(shape, "v2")
    assert sum(t.weight * t.per_request for t in v1.terms) == pytest.approx(1, rel=1e-12)
    rest = sum(t.weight * t.per_request for t in v2.terms)
    assert v2.constant / 8 + rest == pytest.approx(1, rel=1e-12)


def test_presets_agree_with_the_published_config(shared_dir: Path, stem: str) -> None:
    if FILES[stem] is None:
        pytest.skip("no preset of this model")
    real, preset = models.from_config(path_of(shared_dir, stem)), models.load(FILES[stem] or "")
    for field in (
        "classes",
        "hidden",
        "max_context_tokens",
        "experts",
        "experts_per_token",
        "shared_experts",
        "kv_layout",
        "architecture",
        "notes",
    ):
        assert getattr(real, field) == getattr(preset, field), field


def test_dense_models_have_no_expert_batch(shared_dir: Path) -> None:
    shape = models.from_config(path_of(shared_dir, "meta-llama--Meta-Llama-3.1-70B"))
    assert (shape.experts, shape.global_batch_for_m(64)) == (0, None)
    assert shape.kv_bytes_per_token() == 80 * 2 * 8 * 128 * 2


def text_part(values: dict[str, Any]) -> dict[str, Any]:
    part = values.get("text_config", values)
    assert isinstance(part, dict)
    return part


def test_quantised_and_extended_variants_count_the_same(shared_dir: Path, stem: str) -> None:
    plain = models.from_config(path_of(shared_dir, stem))
    values = content_of(shared_dir, stem)
    text_part(values)["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128}
    values["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    values |= {"torch_dtype": "float8", "my_unknown_key": [1, {"a": None}], "_name_or_path": "/models/x-FP8"}
    values["architectures"] = ["MyFineTuneForCausalLM"]
    assert models.from_config(values).classes == plain.classes


def test_known_architecture_with_an_unknown_model_type(shared_dir: Path, stem: str) -> None:
    plain = models.from_config(path_of(shared_dir, stem))
    values = content_of(shared_dir, stem)
    values["model_type"] = "house_model"
    text_part(values)["model_type"] = "house_model"
    assert models.from_config(values).classes == plain.classes
    del values["model_type"]
    text_part(values).pop("model_type", None)
    assert models.from_config(values).classes == plain.classes


def test_nested_and_flat_layouts_count_the_same(shared_dir: Path, stem: str) -> None:
    plain = models.from_config(path_of(shared_dir, stem))
    inner = text_part(content_of(shared_dir, stem))
    assert models.from_config(inner).classes == plain.classes
    assert (
        models.from_config({"model_type": "house_multimodal", "text_config": inner}).classes == plain.classes
    )


def test_both_names_unknown_is_recognised_by_structure_or_refused(shared_dir: Path, stem: str) -> None:
    plain = models.from_config(path_of(shared_dir, stem))
    values = content_of(shared_dir, stem)
    for part in (values, text_part(values)):
        part["model_type"] = "house_model"
        part["architectures"] = ["HouseModel"]
    family = next(f for f in FAMILIES if plain.architecture in f.model_types)
    if family.marks:
        shape = models.from_config(values)
        assert shape.classes == plain.classes
        assert any("house_model" in note for note in shape.notes)
    else:
        with pytest.raises(ModelError, match=r"architecture 'house_model' \(HouseModel\) is not known"):
            models.from_config(values)


def test_glm53_indexer_list_and_frequency_rule_agree(shared_dir: Path) -> None:
    values = content_of(shared_dir, "zai-org--GLM-5.3")
    listed = models.from_config(values).classes
    for without in (None, "missing"):
        values.pop("indexer_types", None)
        if without is None:
            values["indexer_types"] = None
        assert models.from_config(values).classes == listed
    values.pop("index_topk_freq")
    values.pop("index_skip_topk_offset")
    assert [(c.name, c.count) for c in models.from_config(values).classes] == [("full", 78)]

"""`from_config`: dispatch, schedules and every way a config can be wrong; the configs are made up here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import ModelError
from equipoise.models import from_config, known_architectures

GROUPED = {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
LATENT = {
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
SPARSE = {**LATENT, "index_topk": 10, "index_n_heads": 2, "index_head_dim": 8}


def counts(config: dict[str, Any]) -> dict[str, int]:
    return {c.name: c.count for c in from_config(config).classes}


def test_latent_attention_without_a_query_latent() -> None:
    shape = from_config({"model_type": "deepseek_v2", **LATENT, "q_lora_rank": None})
    assert {w.name: w.macs for w in shape.classes[0].work}["q"] == 64 * 4 * 12


def test_output_gate_adds_one_projection() -> None:
    plain = from_config({"model_type": "deepseek_v3", **LATENT}).classes[0].per_request()
    gated = (
        from_config({"model_type": "deepseek_v3", **LATENT, "mla_use_output_gate": True})
        .classes[0]
        .per_request()
    )
    assert gated - plain == 64 * 4 * 8


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, {"full": 8}),
        ({"indexer_types": ["full", "shared"] * 4}, {"shared": 4, "full": 4}),
        ({"indexer_types": ["full"] * 8 + ["shared"]}, {"full": 8}),
        ({"index_topk_pattern": "FFSSSFSS"}, {"shared": 5, "full": 3}),
        ({"index_topk_pattern": ["F", "S"] * 4}, {"shared": 4, "full": 4}),
        ({"index_topk_freq": 4}, {"shared": 5, "full": 3}),  # 0, 1, 5
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, {"shared": 4, "full": 4}),  # 0, 1, 2, 6
        ({"index_topk_freq": 1, "indexer_types": None}, {"full": 8}),
    ],
)
def test_indexer_schedules(keys: dict[str, Any], expected: dict[str, int]) -> None:
    assert counts({"model_type": "glm_moe_dsa", **SPARSE, **keys}) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model_type": "llama"}, {"full": 4}),
        ({"model_type": "llama", "sliding_window": 8}, {"full": 4}),
        ({"model_type": "mistral", "sliding_window": 8}, {"sliding": 4}),
        ({"model_type": "mistral", "sliding_window": None}, {"full": 4}),
        ({"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": False}, {"full": 4}),
        (
            {"model_type": "qwen3", "sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1},
            {"full": 1, "sliding": 3},
        ),
        ({"model_type": "gpt_oss", "sliding_window": 8}, {"full": 2, "sliding": 2}),
        (
            {
                "model_type": "gpt_oss",
                "sliding_window": 8,
                "layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 2,
            },
            {"full": 3, "sliding": 1},
        ),
        ({"model_type": "llama4", "attention_chunk_size": 8}, {"chunked": 3, "full": 1}),
        (
            {"model_type": "llama4", "attention_chunk_size": 8, "no_rope_layers": []},
            {"chunked": 3, "full": 1},
        ),
        (
            {"model_type": "llama4", "attention_chunk_size": 8, "no_rope_layers": [1, 0, 0, 0]},
            {"chunked": 1, "full": 3},
        ),
        (
            {"model_type": "llama4", "attention_chunk_size": 8, "no_rope_layer_interval": 2},
            {"chunked": 2, "full": 2},
        ),
        ({"model_type": "llama4", "attention_chunk_size": None}, {"full": 4}),
    ],
)
def test_windows_and_chunks(keys: dict[str, Any], expected: dict[str, int]) -> None:
    assert counts({**GROUPED, **keys}) == expected


@pytest.mark.parametrize(
    ("keys", "experts"),
    [
        ({}, (0, 0, 0)),
        ({"num_experts": 0}, (0, 0, 0)),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, (8, 2, 0)),
        ({"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1}, (8, 2, 1)),
        ({"num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 3}, (8, 2, 3)),
        ({"num_experts": 8, "experts_per_token": 2, "shared_expert_intermediate_size": 16}, (8, 2, 1)),
        ({"num_experts": 8, "experts_per_token": 2, "shared_intermediate_size": 0}, (8, 2, 0)),
    ],
)
def test_experts_under_all_their_names(keys: dict[str, Any], experts: tuple[int, int, int]) -> None:
    shape = from_config({"model_type": "llama", **GROUPED, **keys})
    assert (shape.experts, shape.experts_per_token, shape.shared_experts) == experts


@pytest.mark.parametrize(
    ("names", "guess"),
    [
        ({"model_type": "glm_moe_dsa", "architectures": ["MyGlmForCausalLM"]}, None),
        ({"architectures": ["GlmMoeDsaForCausalLM"]}, None),
        ({"model_type": "house", "architectures": ["GlmMoeDsaForCausalLM"]}, None),
        ({"model_type": "glm_moe_dsa_fp8"}, "variant of glm_moe_dsa"),
        ({"model_type": "my_glm_moe_dsa", "architectures": None}, "variant of glm_moe_dsa"),
        ({"architectures": ["HouseGlmMoeDsaForCausalLM"]}, "variant of GlmMoeDsaForCausalLM"),
        ({"model_type": "house"}, "because of kv_lora_rank"),
        ({}, "no architecture is named"),
    ],
)
def test_names_then_names_made_from_them_then_structure(names: dict[str, Any], guess: str | None) -> None:
    shape = from_config(
        {**names, **SPARSE, "indexer_rope_interleave": True, "index_share_for_mtp_iteration": True}
    )
    assert shape.classes == from_config({"model_type": "deepseek_v32", **SPARSE}).classes
    assert (shape.notes == ()) if guess is None else (guess in shape.notes[0])


@pytest.mark.parametrize(
    "key", ["mamba_d_state", "sliding_window", "compress_rates", "linear_conv_dim", "ssm_cfg"]
)
def test_a_guess_is_refused_where_a_key_announces_another_mechanism(key: str) -> None:
    with pytest.raises(ModelError, match=f"'house' is not known, nor plain latent attention.*{key!r}"):
        from_config({"model_type": "house", **LATENT, key: 4})


def test_an_unknown_architecture_is_named_with_the_known_ones_and_the_way_out() -> None:
    with pytest.raises(ModelError) as caught:
        from_config({"model_type": "qwen9", "architectures": ["Qwen9ForCausalLM"], **GROUPED})
    message = str(caught.value)
    assert "'qwen9' (Qwen9ForCausalLM) is not known" in message
    assert "equipoise cost layers-example" in message
    assert "cost derive --layers" in message
    assert "did you mean" in message.lower()
    assert all(known in message for known in known_architectures())


def test_a_look_alike_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"glm5_next.*not GLM-5\.3"):
        from_config({"model_type": "glm5_next", **SPARSE})


V4 = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "qk_rope_head_dim": 4,
    "q_lora_rank": 32,
    "o_lora_rank": 8,
    "o_groups": 2,
    "sliding_window": 16,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 4,
    "compress_ratios": [0, 4, 128, 0],
}
V41 = {**V4, "compress_ratios": [0, 2, 2], "kv_source_layer_ids": [1], "index_source_layer_ids": [1]}
HYBRID = {
    **LATENT,
    "linear_attn_config": {
        "num_heads": 2,
        "head_dim": 4,
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "full_attn_layers": [4, 8],
    },
}
BLOCKS = {
    **GROUPED,
    "sparse_attention_config": {
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 8,
        "sparse_topk_blocks": 2,
        "sparse_block_size": 4,
        "sparse_attention_freq": [0, 1, 1, 1],
    },
}
DELTA = {
    **GROUPED,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@pytest.mark.parametrize(
    ("model_type", "config", "expected"),
    [
        ("deepseek_v4", V4, {"window": 1, "csa": 1, "hca": 1}),
        ("deepseek_v41", V41, {"window": 1, "ratio-2 full": 1, "ratio-2 reuse": 1}),
        ("kimi_linear", HYBRID, {"kda": 6, "mla": 2}),
        ("minimax_m3", BLOCKS, {"dense": 1, "block-sparse": 3}),
        ("qwen3_next", DELTA, {"linear": 3, "full": 1}),
    ],
)
def test_mixed_families_in_miniature(
    model_type: str, config: dict[str, Any], expected: dict[str, int]
) -> None:
    assert counts({"model_type": model_type, **config}) == expected
    assert counts(config) == expected  # the same by structure


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama"}, "num_hidden_layers is missing"),
    (
        {"model_type": "llama", **GROUPED, "num_hidden_layers": 1e30},
        "num_hidden_layers = 1e\\+30; .*1 to 10000",
    ),
    ({"model_type": "llama", **GROUPED, "num_hidden_layers": 10**40}, "a number of more than 30 digits"),
    ({"model_type": "llama", **GROUPED, "num_hidden_layers": -1}, "num_hidden_layers = -1"),
    ({"model_type": "llama", **GROUPED, "num_attention_heads": 0}, "num_attention_heads = 0"),
    ({"model_type": "llama", **GROUPED, "hidden_size": "64"}, "hidden_size = '64'"),
    ({"model_type": "llama", **GROUPED, "hidden_size": True}, "hidden_size = True"),
    ({"model_type": "llama", **GROUPED, "hidden_size": float("nan")}, "hidden_size = nan"),
    ({"model_type": "llama", **GROUPED, "hidden_size": 66}, "no multiple of num_attention_heads"),
    ({"model_type": "llama", **GROUPED, "layer_types": "full"}, "layer_types = 'full'; must be a list"),
    ({"model_type": "llama", **GROUPED, "layer_types": ["full_attention"]}, "1 entries for 4 layers"),
    (
        {"model_type": "llama", **GROUPED, "layer_types": ["lightning"] * 4},
        "layer_types\\[0\\] = 'lightning'",
    ),
    ({"model_type": "llama", **GROUPED, "layer_types": [1] * 4}, "layer_types\\[0\\] = 1; must be text"),
    ({"model_type": "gpt_oss", **GROUPED}, "sliding_window is missing"),
    (
        {"model_type": "llama4", **GROUPED, "attention_chunk_size": 8, "no_rope_layers": [1]},
        "no_rope_layers has 1",
    ),
    ({"model_type": 3, **GROUPED}, "model_type = 3; must be text"),
    ({"model_type": "llama", **GROUPED, "architectures": "x"}, "architectures = 'x'; must be a list"),
    ({"model_type": "llama", **GROUPED, "text_config": 7}, "text_config = 7; must be a table"),
    ({"model_type": "llama", **GROUPED, "num_experts": 8}, "num_experts_per_tok .* is missing"),
    ({"model_type": "llama", **GROUPED, "num_experts": 8, "num_experts_per_tok": 9}, "from 1 to 8"),
    ({"model_type": "deepseek_v3", **LATENT, "kv_lora_rank": None}, "kv_lora_rank is missing"),
    ({"model_type": "deepseek_v32", **SPARSE, "q_lora_rank": None}, "q_lora_rank is missing"),
    ({"model_type": "glm_moe_dsa", **SPARSE, "index_n_heads": None}, "index_n_heads is missing"),
    ({"model_type": "glm_moe_dsa", **SPARSE, "indexer_types": ["full"]}, "indexer_types has 1 entries"),
    (
        {"model_type": "glm_moe_dsa", **SPARSE, "indexer_types": ["full", "half"] * 4},
        "indexer_types\\[1\\] = 'half'",
    ),
    ({"model_type": "glm_moe_dsa", **SPARSE, "indexer_types": ["shared"] * 8}, "starts with a shared layer"),
    ({"model_type": "glm_moe_dsa", **SPARSE, "index_topk_freq": 0}, "index_topk_freq = 0"),
    ({"model_type": "deepseek_v4", **V4, "compress_ratios": None}, "compress_ratios is missing"),
    (
        {"model_type": "deepseek_v4", **V4, "compress_ratios": [0]},
        "compress_ratios has 1 entries for 3 layers",
    ),
    ({"model_type": "deepseek_v4", **V4, "compress_ratios": [0, 8, 0]}, "compress_ratios\\[1\\] = 8"),
    ({"model_type": "deepseek_v4", **V4, "o_groups": 7}, "o_groups = 7"),
    ({"model_type": "deepseek_v41", **V41, "kv_source_layer_ids": []}, "kv_source_layer_ids is missing"),
    ({"model_type": "deepseek_v41", **V41, "kv_source_layer_ids": [2]}, "layer 1 of ratio 2 has no source"),
    (
        {"model_type": "deepseek_v41", **V41, "candidate_source_layer_id": 1},
        "candidate_topk_blocks is missing",
    ),
    ({"model_type": "kimi_linear", **LATENT}, "linear_attn_config is missing"),
    ({"model_type": "kimi_linear", **HYBRID, "num_hidden_layers": 9}, "do not cover the layers"),
    ({"model_type": "minimax_m3", **GROUPED}, "sparse_attention_config is missing"),
    ({"model_type": "qwen3_next", **DELTA, "linear_num_key_heads": 0}, "linear_num_key_heads = 0"),
]


@pytest.mark.parametrize(("config", "message"), BROKEN)
def test_a_broken_config_names_key_file_and_fix(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message) as caught:
        from_config(path)
    assert str(path) in str(caught.value)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"nope", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[1, 2]", "holds a list"),
        (b"3", "holds a int"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"{}", "names no architecture"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        from_config(path)


def test_missing_file_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        from_config(tmp_path / "absent.json")
    with pytest.raises(ModelError, match=r"config.json: cannot be read"):
        from_config(tmp_path)
    folder = tmp_path / "zai-org--My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **GROUPED}))
    assert from_config(folder).name == "My-Model"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
BASES = {
    "llama": GROUPED,
    "glm_moe_dsa": SPARSE,
    "deepseek_v4": V4,
    "deepseek_v41": V41,
    "kimi_linear": HYBRID,
    "minimax_m3": BLOCKS,
    "qwen3_next": DELTA,
    "llama4": {**GROUPED, "attention_chunk_size": 8},
}


@given(st.data())
def test_no_value_under_any_key_escapes_as_another_error(data: st.DataObject) -> None:
    model_type = data.draw(st.sampled_from(sorted(BASES)))
    config = {"model_type": model_type, **BASES[model_type]}
    key = data.draw(st.sampled_from([*config, "indexer_types", "layer_types", "num_experts", "text_config"]))
    config[key] = data.draw(json_values)
    try:
        shape = from_config(config)
    except ModelError:
        return
    assert shape.layers >= 1

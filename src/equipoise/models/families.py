"""Which architectures are known, and which keys betray one that is not named.

A family turns a config into layer classes. It is chosen by ``model_type``, then by ``architectures``, then by
keys that only one family has: a fine-tune may rename the first two, the widths stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.models import block_sparse, compressed, gqa, linear, mla
from equipoise.models.reader import Reader
from equipoise.models.shape import LayerClass

__all__ = ["FAMILIES", "FOREIGN_WORDS", "HARMLESS", "OTHER_MODELS", "Family"]

Layers = tuple[tuple[LayerClass, ...], str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """Architectures whose layers are counted alike.

    Parameters
    ----------
    name : str
    model_types, architectures : sequence of str
        Their Hugging Face names.
    build : callable
        Config -> layer classes, default KV layout, notes.
    marks : sequence of str
        Keys that together identify the family in a config that names none; empty: never guessed.
    shared_experts : int
        Experts every token visits where the config does not say.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    build: Callable[[Reader], Layers]
    marks: tuple[str, ...] = ()
    shared_experts: int = 0


def _grouped(default: Callable[[Reader, int], list[str]]) -> Callable[[Reader], Layers]:
    return lambda config: gqa.gqa_layers(config, default)


FAMILIES: tuple[Family, ...] = (
    # The more marks, the more special the family: structural recognition takes the first that fits.
    Family(
        "compressed rows shared across layers",
        ("deepseek_v41",),
        ("DeepseekV41ForCausalLM", "DeepseekV41ForConditionalGeneration"),
        compressed.shared_cache_layers,
        ("compress_ratios", "kv_source_layer_ids", "index_source_layer_ids", "o_lora_rank"),
    ),
    Family(
        "compressed rows",
        ("deepseek_v4",),
        ("DeepseekV4ForCausalLM",),
        compressed.compressed_layers,
        ("compress_ratios", "index_topk", "o_lora_rank"),
    ),
    Family(
        "delta attention and latent attention",
        ("kimi_linear", "kimi_k3"),
        ("KimiLinearForCausalLM", "KimiK3ForConditionalGeneration"),
        linear.kimi_delta_layers,
        ("linear_attn_config", "kv_lora_rank"),
    ),
    Family(
        "latent attention",
        (
            "deepseek_v2",
            "deepseek_v3",
            "deepseek_v32",
            "glm_moe_dsa",
            "glm4_moe_lite",
            "kimi_k2",
            "kimi_k25",
        ),
        (
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "DeepseekV32ForCausalLM",
            "GlmMoeDsaForCausalLM",
            "Glm4MoeLiteForCausalLM",
            "KimiK25ForConditionalGeneration",
        ),
        mla.mla_layers,
        ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"),
    ),
    Family(
        "grouped-query attention with chosen blocks",
        ("minimax_m3", "minimax_m3_vl"),
        ("MiniMaxM3ForCausalLM", "MiniMaxM3SparseForCausalLM", "MiniMaxM3ForConditionalGeneration"),
        block_sparse.block_sparse_layers,
        ("sparse_attention_config", "num_key_value_heads"),
    ),
    Family(
        "gated delta nets and grouped-query attention",
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        (
            "Qwen3NextForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
        ),
        linear.gated_delta_layers,
        ("linear_num_value_heads", "linear_key_head_dim", "num_key_value_heads"),
    ),
    Family(
        "grouped-query attention, chunked",
        ("llama4", "llama4_text"),
        ("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
        _grouped(gqa.llama4_types),
        shared_experts=1,
    ),
    Family(
        "grouped-query attention, alternating windows",
        ("gpt_oss",),
        ("GptOssForCausalLM",),
        _grouped(gqa.gpt_oss_types),
    ),
    Family(
        "grouped-query attention, one window",
        ("mistral", "mixtral"),
        ("MistralForCausalLM", "MixtralForCausalLM"),
        _grouped(gqa.mistral_types),
    ),
    Family(
        "grouped-query attention, late windows",
        ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
        ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        _grouped(gqa.qwen_types),
    ),
    Family(
        "grouped-query attention",
        ("llama", "minimax_m2", "glm4", "glm4_moe"),
        ("LlamaForCausalLM", "MiniMaxM2ForCausalLM", "Glm4ForCausalLM", "Glm4MoeForCausalLM"),
        _grouped(gqa.all_full),
    ),
)

OTHER_MODELS = {
    "glm5_next": "GLM-5.3-Flash: delta attention and pooled-key sparse attention, not GLM-5.3",
}
"""Model types that look like a known family and are not."""

FOREIGN_WORDS = (
    "chunk", "compress", "conv", "delta", "index", "kda", "lightning", "linear", "mamba", "pool", "recurrent",
    "rwkv", "sliding", "sparse_", "ssm", "window",
)  # fmt: skip
"""Words in a key that announce a way of attending; a family guessed by its marks must have read such keys."""

HARMLESS = (
    "_theta",
    "_dtype",
    "_beta",
    "_interleave",
    "_for_mtp_iteration",
    "index_topk_freq",
    "index_skip_topk_offset",
)
"""Endings of such keys that do not change what is counted, or that a list per layer overrules."""

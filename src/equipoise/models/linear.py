"""Full attention mixed with recurrent states: gated delta nets (Qwen3.5), Kimi delta attention (Kimi K3).

A delta-rule layer keeps a matrix of ``key dim * value dim`` per head. One token reads it with the key,
corrects it by an outer product and reads it with the query: three multiply-adds per element and token,
whatever the context. The element-wise decay is not counted, like all element-wise work. A short convolution
runs over the last few tokens.
"""

from __future__ import annotations

from equipoise.models.gqa import Grouped, layer_types
from equipoise.models.mla import Latent
from equipoise.models.reader import Reader
from equipoise.models.shape import LayerClass, Work, group_layers

__all__ = ["gated_delta_layers", "kimi_delta_layers"]

DELTA_RULE_PASSES = 3
"""Multiply-adds per state element and token: read with the key, write, read with the query."""


def gated_delta_layers(config: Reader) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """Qwen3-Next and Qwen3.5: one full layer in every few, the others gated delta nets."""
    layers = config.integer("num_hidden_layers", high=10_000)
    widths = Grouped.read(config, gated=True)
    types = layer_types(config, layers)
    if types is None:
        interval = config.integer("full_attention_interval", default=4)
        types = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
    kinds = {
        "linear_attention": _gated_delta(config, widths.hidden),
        "full_attention": widths.layer("full", None),
    }
    for i, kind in enumerate(types):
        if kind not in kinds:
            raise config.fail(
                f"layer_types[{i}] = {kind!r}", f"known for this architecture: {', '.join(kinds)}"
            )
    return group_layers(kinds[kind] for kind in types), "bf16", ()


def _gated_delta(config: Reader, hidden: int) -> LayerClass:
    key_heads, value_heads = config.integer("linear_num_key_heads"), config.integer("linear_num_value_heads")
    key_dim, value_dim = config.integer("linear_key_head_dim"), config.integer("linear_value_head_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    taps = config.integer("linear_conv_kernel_dim", default=4)
    work = (
        Work("projections", "q, k and v", hidden * (2 * keys + values)),
        Work("projections", "output gate", hidden * values),
        Work("projections", "decay and beta", hidden * 2 * value_heads),
        Work("projections", "output", values * hidden),
        Work("state", "convolution", taps * (2 * keys + values)),
        Work("state", "delta rule", DELTA_RULE_PASSES * value_heads * key_dim * value_dim),
    )
    return LayerClass("linear", 1, work)


def kimi_delta_layers(config: Reader) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """Kimi Linear and Kimi K3: delta layers with per-channel decay, and latent-attention layers between."""
    layers = config.integer("num_hidden_layers", high=10_000)
    latent = Latent.read(config)
    linear = config.table("linear_attn_config")
    if linear is None:
        raise config.fail(
            "linear_attn_config is missing", "give a table with kda_layers, num_heads and head_dim"
        )
    kda = linear.integers("kda_layers", low=1)
    full = linear.integers("full_attn_layers", low=1)
    if kda is None or full is None:
        raise linear.fail("kda_layers or full_attn_layers is missing", "list the layers of each kind, from 1")
    if sorted(n for n in (*kda, *full) if n <= layers) != list(range(1, layers + 1)):
        raise linear.fail(
            "kda_layers and full_attn_layers do not cover the layers once each",
            f"between them list 1 to {layers}",
        )
    mla = LayerClass("mla", 1, (*latent.projections(), latent.core(None)), (latent.cache(False),))
    delta = _kimi_delta(linear, latent.hidden)
    recurrent = set(kda)
    return group_layers(delta if n in recurrent else mla for n in range(1, layers + 1)), "bf16", ()


def _kimi_delta(linear: Reader, hidden: int) -> LayerClass:
    heads, dim = linear.integer("num_heads"), linear.integer("head_dim")
    width = heads * dim
    taps = linear.integer("short_conv_kernel_size", default=4)
    low_rank = hidden * dim + dim * width
    gate = hidden * width if linear.flag("use_full_rank_gate", False) else low_rank
    work = (
        Work("projections", "q, k and v", hidden * 3 * width),
        Work("projections", "decay", low_rank),
        Work("projections", "beta", hidden * heads),
        Work("projections", "output gate", gate),
        Work("projections", "output", width * hidden),
        Work("state", "convolution", taps * 3 * width),
        Work("state", "delta rule", DELTA_RULE_PASSES * heads * dim * dim),
    )
    return LayerClass("kda", 1, work)

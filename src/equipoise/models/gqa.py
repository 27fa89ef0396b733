"""Grouped-query attention: full, sliding-window and chunked layers (Llama, Qwen3, gpt-oss, Llama 4 ...).

A row of the cache costs ``heads * head_dim`` multiply-adds for the scores and as many for the values. Windows
and chunks bound the rows. A chunk's last token reads the whole chunk and its first almost nothing; like every
bound here it is counted full, which is twice the average of a long context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from equipoise.models.reader import Reader
from equipoise.models.shape import CacheRow, LayerClass, Work, group_layers

__all__ = ["Grouped", "gqa_layers", "layer_types"]


@dataclass(frozen=True, slots=True)
class Grouped:
    """Widths of a grouped-query attention layer."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    output_gate: bool

    @classmethod
    def read(cls, config: Reader, gated: bool = False) -> Grouped:
        """Take the widths from a config; `gated` is what a missing output-gate key means."""
        hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        head_dim = config.optional_integer("head_dim")
        if head_dim is None:
            if hidden % heads:
                raise config.fail(
                    f"hidden_size = {hidden} is no multiple of num_attention_heads = {heads}", "give head_dim"
                )
            head_dim = hidden // heads
        kv_heads = config.integer("num_key_value_heads", default=heads)
        gate_key = "attn_output_gate" if config.has("attn_output_gate") else "attention_output_gate"
        return cls(hidden, heads, kv_heads, head_dim, config.flag(gate_key, gated))

    def projections(self) -> tuple[Work, ...]:
        """List the GEMMs of every layer, per query token."""
        q_width = self.heads * self.head_dim
        gate = (Work("projections", "output gate", self.hidden * q_width),) if self.output_gate else ()
        return (
            Work("projections", "q", self.hidden * q_width),
            Work("projections", "k and v", self.hidden * 2 * self.kv_heads * self.head_dim),
            *gate,
            Work("projections", "output", q_width * self.hidden),
        )

    def core(self, name: str, max_rows: int | None = None) -> Work:
        """Attention over key and value rows."""
        return Work("core", name, self.heads * 2 * self.head_dim, tokens_per_row=1, max_rows=max_rows)

    def cache(self) -> CacheRow:
        """Keys and values; FP8 is one byte an element with a scale per tensor."""
        elements = 2 * self.kv_heads * self.head_dim
        return CacheRow("key and value", bf16=2 * elements, fp8=elements)

    def layer(self, kind: str, bound: int | None) -> LayerClass:
        """One layer; bounded ones keep a cache of fixed size, which is not counted as growing."""
        core = self.core(f"{kind} core", bound)
        return LayerClass(kind, 1, (*self.projections(), core), () if bound else (self.cache(),))


def gqa_layers(
    config: Reader, default_types: Callable[[Reader, int], list[str]]
) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """Layer classes, default KV layout and notes of a config of full, sliding and chunked layers."""
    layers = config.integer("num_hidden_layers", high=10_000)
    widths = Grouped.read(config)
    types = layer_types(config, layers) or default_types(config, layers)
    bounds: dict[str, tuple[str, int | None]] = {"full_attention": ("full", None)}
    notes: tuple[str, ...] = ()
    if "sliding_attention" in types:
        bounds["sliding_attention"] = ("sliding", config.integer("sliding_window"))
    if "chunked_attention" in types:
        bounds["chunked_attention"] = ("chunked", config.integer("attention_chunk_size"))
        notes = ("chunked layers are counted with full chunks, twice the average of a long context",)
    for i, kind in enumerate(types):
        if kind not in bounds:
            known = "full_attention, sliding_attention, chunked_attention"
            raise config.fail(f"layer_types[{i}] = {kind!r}", f"known for this architecture: {known}")
    return group_layers(widths.layer(*bounds[kind]) for kind in types), "bf16", notes


def layer_types(config: Reader, layers: int) -> list[str] | None:
    """Read ``layer_types``, one kind per layer; None where the config does not list them."""
    types = config.texts("layer_types")
    if types is not None and len(types) < layers:
        raise config.fail(f"layer_types has {len(types)} entries for {layers} layers", "give one per layer")
    return None if types is None else list(types[:layers])


def all_full(config: Reader, layers: int) -> list[str]:
    """Every layer attends to the whole context."""
    return ["full_attention"] * layers


def mistral_types(config: Reader, layers: int) -> list[str]:
    """Mistral and Mixtral: a window, where one is set, holds for every layer."""
    return ["sliding_attention" if config.has("sliding_window") else "full_attention"] * layers


def qwen_types(config: Reader, layers: int) -> list[str]:
    """Qwen 2 and 3: layers from ``max_window_layers`` on slide, if ``use_sliding_window`` says so."""
    if not config.flag("use_sliding_window", False) or not config.has("sliding_window"):
        return ["full_attention"] * layers
    first = config.integer("max_window_layers", low=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]


def gpt_oss_types(config: Reader, layers: int) -> list[str]:
    """gpt-oss: every other layer slides, the first one does."""
    return ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]


def llama4_types(config: Reader, layers: int) -> list[str]:
    """Llama 4: layers with RoPE attend inside a chunk; every fourth has none and attends to everything.

    ``no_rope_layers`` holds 1 for a layer *with* RoPE; empty or null means the default interval of 4.
    """
    if not config.has("attention_chunk_size"):
        return ["full_attention"] * layers
    rope = config.integers("no_rope_layers", high=1)
    if not rope:
        interval = config.integer("no_rope_layer_interval", default=4)
        rope = tuple(int((i + 1) % interval != 0) for i in range(layers))
    if len(rope) < layers:
        raise config.fail(f"no_rope_layers has {len(rope)} entries for {layers} layers", "give one per layer")
    return ["chunked_attention" if has_rope else "full_attention" for has_rope in rope[:layers]]

"""Multi-head latent attention, dense (DeepSeek V3, Kimi K2) and with a sparse indexer (DeepSeek V3.2, GLM-5).

Decoding uses the absorbed form: every head attends in the latent, so a row of the cache costs
``heads * (kv_lora + rope)`` multiply-adds for the scores and ``heads * kv_lora`` for the values, and the two
absorbed halves of the up-projection are paid once per token. The chunks of a prompt expand the latent to
keys and values of every head instead, which costs the same up-projection once per token and only
``heads * (nope + rope + v)`` per row read; sparse cores, whose queries each read rows of their own, stay
absorbed. With an indexer ("DSA"), a scan scores every
context token with a few small heads, and the core reads only the top-k. GLM-5.2 and later let most layers
("shared") reuse the choice of the last layer that scanned ("full").

Not counted, as in the source article: norms, RoPE, softmax, the top-k selection, and any weighting by
precision.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.models.reader import Reader
from equipoise.models.shape import CacheRow, LayerClass, Work, group_layers

__all__ = ["Latent", "indexer_schedule", "mla_layers"]


@dataclass(frozen=True, slots=True)
class Latent:
    """Widths of a latent attention layer (config keys of the same names)."""

    hidden: int
    heads: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    v: int
    output_gate: bool

    @classmethod
    def read(cls, config: Reader) -> Latent:
        """Take the widths from a config."""
        return cls(
            hidden=config.integer("hidden_size"),
            heads=config.integer("num_attention_heads"),
            q_lora=config.optional_integer("q_lora_rank"),
            kv_lora=config.integer("kv_lora_rank"),
            nope=config.integer("qk_nope_head_dim"),
            rope=config.integer("qk_rope_head_dim", low=0),
            v=config.integer("v_head_dim"),
            output_gate=config.flag("mla_use_output_gate", False),
        )

    def projections(self) -> tuple[Work, ...]:
        """List the GEMMs of every layer, per query token."""
        q_width = self.heads * (self.nope + self.rope)
        query = (
            (Work("projections", "q", self.hidden * q_width),)
            if self.q_lora is None
            else (
                Work("projections", "q down", self.hidden * self.q_lora),
                Work("projections", "q up", self.q_lora * q_width),
            )
        )
        gate = (
            (Work("projections", "output gate", self.hidden * self.heads * self.v),)
            if self.output_gate
            else ()
        )
        return (
            *query,
            Work("projections", "kv down", self.hidden * (self.kv_lora + self.rope)),
            Work("projections", "absorbed key up", self.heads * self.nope * self.kv_lora),
            Work("projections", "absorbed value up", self.heads * self.kv_lora * self.v),
            *gate,
            Work("projections", "output", self.heads * self.v * self.hidden),
        )

    def core(self, top_k: int | None) -> Work:
        """Attention over the latent rows: the top-k of them, or all."""
        macs = self.heads * (self.kv_lora + self.rope + self.kv_lora)
        if top_k:
            return Work("core", "sparse core", macs, tokens_per_row=1, max_rows=top_k)
        expanded = self.heads * (self.nope + self.rope + self.v)
        return Work("core", "dense core", macs, tokens_per_row=1, chunk_macs=expanded)

    def cache(self, sparse: bool) -> CacheRow:
        """Latent and RoPE part.

        The FP8 row of the sparse kernels keeps RoPE in 16 bits and a 4-byte scale per 128 elements (656 bytes
        for 512 + 64: vLLM, DeepSeek V3.2 post of 2025-09-29); dense kernels store one byte an element.
        """
        elements = self.kv_lora + self.rope
        fp8 = self.kv_lora + 4 * -(-self.kv_lora // 128) + 2 * self.rope if sparse else elements
        return CacheRow("latent", bf16=2 * elements, fp8=fp8)


def mla_layers(config: Reader) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """Layer classes, default KV layout and notes of a latent-attention config."""
    layers = config.integer("num_hidden_layers", high=10_000)
    latent = Latent.read(config)
    if not config.has("index_topk"):
        dense = LayerClass(
            "dense", layers, (*latent.projections(), latent.core(None)), (latent.cache(False),)
        )
        return (dense,), "bf16", ()
    if latent.q_lora is None:
        raise config.fail(
            "q_lora_rank is missing", "the sparse indexer projects its queries from the q latent"
        )

    top_k = config.integer("index_topk")
    heads, dim = config.integer("index_n_heads"), config.integer("index_head_dim")
    indexer = (
        Work("projections", "indexer q", latent.q_lora * heads * dim),
        Work("projections", "indexer k", latent.hidden * dim),
        Work("projections", "indexer head weights", latent.hidden * heads),
    )
    # One dot product a head, and one multiply-add a head to sum them by weight: 32 * (128 + 1) for GLM-5.
    scan = Work("scan", "indexer scan", heads * (dim + 1), tokens_per_row=1)
    # The index key is stored in FP8 whatever the latent's layout: one byte an element, a 4-byte scale per
    # 128.
    index_bytes = dim + 4 * -(-dim // 128)
    index_key = CacheRow("index key", bf16=index_bytes, fp8=index_bytes)
    shared = LayerClass("shared", 1, (*latent.projections(), latent.core(top_k)), (latent.cache(True),))
    full = LayerClass(
        "full",
        1,
        (*latent.projections(), *indexer, latent.core(top_k), scan),
        (latent.cache(True), index_key),
    )
    schedule = indexer_schedule(config, layers)
    return group_layers(full if scans else shared for scans in schedule), "fp8", ()


def indexer_schedule(config: Reader, layers: int) -> list[bool]:
    """Which layers scan the context themselves (True) and which reuse the last choice (False).

    In order: ``indexer_types``, a list of "full" and "shared"; ``index_topk_pattern``, a list or a string of
    "F" and "S"; ``index_topk_freq`` with ``index_skip_topk_offset``, by the rule that the loaders of vLLM and
    of Hugging Face follow: layer i reuses where ``max(i - offset + 1, 0) % freq != 0`` (freq 1 and offset 2
    where missing). Without any of them every layer scans. Entries beyond the last layer belong to drafting
    layers and are ignored.
    """
    types = config.texts("indexer_types")
    where = "indexer_types"
    if types is None and config.has("index_topk_pattern"):
        where, value = config.raw("index_topk_pattern")
        types = tuple(value) if isinstance(value, str) else config.texts("index_topk_pattern")
    if types is not None:
        words = {"full": True, "f": True, "shared": False, "s": False}
        for i, word in enumerate(types[:layers]):
            if word.lower() not in words:
                raise config.fail(f"{where}[{i}] = {word!r}", "must be 'full' or 'shared'")
        if len(types) < layers:
            raise config.fail(f"{where} has {len(types)} entries for {layers} layers", "give one per layer")
        schedule = [words[word.lower()] for word in types[:layers]]
    else:
        every = config.integer("index_topk_freq", default=1)
        offset = config.integer("index_skip_topk_offset", low=0, default=2)
        schedule = [max(i - offset + 1, 0) % every == 0 for i in range(layers)]
    if not schedule[0]:
        raise config.fail(
            f"{where} starts with a shared layer", "the first layer has no earlier choice to reuse"
        )
    return schedule

"""DeepSeek V4 and V4.1: a sliding window in every layer, and rows that each compress several tokens.

V4: ``compress_ratios`` gives each layer 0 (window only), 4 ("CSA": an indexer of its own compressed keys
chooses the top-k rows) or 128 ("HCA": the core reads every row). The compressor projects a value and a gate
stream; at ratio 4 its groups overlap, which doubles both streams (widths as in the loaders of vLLM-Ascend and
llama.cpp).

V4.1: ratios 0, 1 and 2. Only the layers of ``kv_source_layer_ids`` compress and store; those of
``index_source_layer_ids`` run an indexer; all others reuse rows and choice of the last source. The candidate
source scans everything and keeps blocks of candidates; later indexers score only those. The compressor does
not overlap, at ratio 1 it has no gate, and index keys are projected from the compressed row (FastLLM's notes
on V4.1, pypto-lib). That makes the ratio-2 source layer 3 % cheaper than an overlapping compressor would: k
is 1.15, not 1.12.

There is one key-value head: a row costs ``heads * 2 * head_dim``. The output projection is grouped and
low-rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from equipoise.models.reader import Reader
from equipoise.models.shape import CacheRow, LayerClass, Work, group_layers

__all__ = ["compressed_layers", "shared_cache_layers"]

CSA_RATIO, HCA_RATIO = 4, 128


@dataclass(frozen=True, slots=True)
class _Widths:
    """Widths that every layer shares, and the parts built from them."""

    hidden: int
    heads: int
    head_dim: int
    rope: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    index_heads: int
    index_dim: int
    top_k: int

    @classmethod
    def read(cls, config: Reader) -> _Widths:
        widths = cls(
            hidden=config.integer("hidden_size"),
            heads=config.integer("num_attention_heads"),
            head_dim=config.integer("head_dim"),
            rope=config.integer("qk_rope_head_dim", low=0),
            q_lora=config.integer("q_lora_rank"),
            o_lora=config.integer("o_lora_rank"),
            o_groups=config.integer("o_groups"),
            window=config.integer("sliding_window"),
            index_heads=config.integer("index_n_heads"),
            index_dim=config.integer("index_head_dim"),
            top_k=config.integer("index_topk"),
        )
        if widths.heads * widths.head_dim % widths.o_groups:
            raise config.fail(f"o_groups = {widths.o_groups}", "must divide num_attention_heads * head_dim")
        return widths

    def base(self) -> tuple[Work, ...]:
        """List what every layer does: projections, and attention inside the window."""
        width = self.heads * self.head_dim
        return (
            Work("projections", "q down", self.hidden * self.q_lora),
            Work("projections", "q up", self.q_lora * width),
            Work("projections", "kv", self.hidden * self.head_dim),
            # Each group maps its share of the heads to o_lora values: together heads * head_dim * o_lora.
            Work("projections", "grouped output down", width * self.o_lora),
            Work("projections", "output up", self.o_groups * self.o_lora * self.hidden),
            self.core("window core", 1, self.window),
        )

    def core(self, name: str, ratio: int, max_rows: int | None) -> Work:
        return Work("core", name, self.heads * 2 * self.head_dim, tokens_per_row=ratio, max_rows=max_rows)

    def indexer(self) -> tuple[Work, ...]:
        return (
            Work("projections", "indexer q", self.q_lora * self.index_heads * self.index_dim),
            Work("projections", "indexer head weights", self.hidden * self.index_heads),
        )

    def scan(self, ratio: int, max_rows: int | None = None) -> Work:
        macs = self.index_heads * (self.index_dim + 1)
        return Work("scan", "indexer scan", macs, tokens_per_row=ratio, max_rows=max_rows)


def compressed_layers(config: Reader) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """DeepSeek V4: layer classes, default KV layout and notes."""
    w = _Widths.read(config)
    ratios = _ratios(config, (0, CSA_RATIO, HCA_RATIO))
    row = _v4_row(w)
    index_bytes = w.index_dim + 4 * -(-w.index_dim // 128)
    layers = {
        0: LayerClass("window", 1, w.base()),
        CSA_RATIO: LayerClass(
            "csa",
            1,
            (
                *w.base(),
                Work("projections", "compressor", w.hidden * w.head_dim * 4),
                *w.indexer(),
                Work("projections", "index compressor", w.hidden * w.index_dim * 4),
                w.core("chosen rows", CSA_RATIO, w.top_k),
                w.scan(CSA_RATIO),
            ),
            (
                row(CSA_RATIO),
                CacheRow("index key", bf16=index_bytes, fp8=index_bytes, tokens_per_row=CSA_RATIO),
            ),
        ),
        HCA_RATIO: LayerClass(
            "hca",
            1,
            (
                *w.base(),
                Work("projections", "compressor", w.hidden * w.head_dim * 2),
                w.core("all compressed rows", HCA_RATIO, None),
            ),
            (row(HCA_RATIO),),
        ),
    }
    return group_layers(layers[ratio] for ratio in ratios), "fp8", ()


def _v4_row(w: _Widths) -> Callable[[int], CacheRow]:
    """Compressed row of V4: FP8 but for RoPE in 16 bits, a scale byte per 64, padded to 8 (584 bytes)."""
    plain = w.head_dim - w.rope
    scales = math.ceil(math.ceil(plain / 64) / 8) * 8
    fp8 = plain + 2 * w.rope + scales
    return lambda ratio: CacheRow("compressed row", bf16=2 * w.head_dim, fp8=fp8, tokens_per_row=ratio)


def shared_cache_layers(config: Reader) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """DeepSeek V4.1: layer classes, default KV layout and notes."""
    w = _Widths.read(config)
    ratios = _ratios(config, (0, 1, 2))
    kv_sources, index_sources = (
        _sources(config, "kv_source_layer_ids"),
        _sources(config, "index_source_layer_ids"),
    )
    candidate_source = config.optional_integer("candidate_source_layer_id", low=0)
    candidates = None
    if candidate_source is not None:
        candidates = config.integer("candidate_topk_blocks") * config.integer("candidate_block_size")
    layers = []
    for i, ratio in enumerate(ratios):
        if ratio == 0:
            layers.append(LayerClass("window", 1, w.base()))
            continue
        for key, sources in (("kv_source_layer_ids", kv_sources), ("index_source_layer_ids", index_sources)):
            if not any(s <= i and ratios[s] == ratio for s in sources if s < len(ratios)):
                raise config.fail(
                    f"layer {i} of ratio {ratio} has no source in {key}", "list one at or before it"
                )
        work: list[Work] = [*w.base(), w.core("chosen rows", ratio, w.top_k)]
        cache: tuple[CacheRow, ...] = ()
        role = "reuse"
        if i in index_sources:
            among_candidates = candidate_source is not None and i > candidate_source
            work += [*w.indexer(), w.scan(ratio, candidates if among_candidates else None)]
            role = "reindex" if among_candidates else "rescan"
        if i in kv_sources:
            streams = 1 if ratio == 1 else 2
            # One index key per compressed row: its projection is shared by the row's tokens.
            work += [
                Work("projections", "compressor", w.hidden * w.head_dim * streams),
                Work("projections", "index key", -(-w.head_dim * w.index_dim // ratio)),
            ]
            cache = _v41_cache(w, ratio)
            role = "full" if i in index_sources else "source"
        layers.append(LayerClass(f"ratio-{ratio} {role}", 1, tuple(work), cache))
    return group_layers(layers), "fp4", ()


def _v41_cache(w: _Widths, ratio: int) -> tuple[CacheRow, ...]:
    """Rows of V4.1: FP8 with a scale byte per 32, the released FP4 with one per 16 (index keys: 32)."""
    d, k = w.head_dim, w.index_dim
    return (
        CacheRow("compressed row", bf16=2 * d, fp8=d + d // 32, fp4=d // 2 + d // 16, tokens_per_row=ratio),
        CacheRow("index key", bf16=2 * k, fp8=k + k // 32, fp4=k // 2 + k // 32, tokens_per_row=ratio),
    )


def _sources(config: Reader, key: str) -> tuple[int, ...]:
    values = config.integers(key)
    if not values:
        raise config.fail(f"{key} is missing", "it must list the layers that are sources, from 0")
    return values


def _ratios(config: Reader, known: tuple[int, ...]) -> tuple[int, ...]:
    """One ratio per layer; entries beyond the last layer belong to drafting layers."""
    layers = config.integer("num_hidden_layers", high=10_000)
    ratios = config.integers("compress_ratios")
    if ratios is None:
        raise config.fail("compress_ratios is missing", "it must list one ratio per layer")
    if len(ratios) < layers:
        raise config.fail(
            f"compress_ratios has {len(ratios)} entries for {layers} layers", "give one per layer"
        )
    for i, ratio in enumerate(ratios[:layers]):
        if ratio not in known:
            raise config.fail(f"compress_ratios[{i}] = {ratio}", f"known for this architecture: {known}")
    return ratios[:layers]

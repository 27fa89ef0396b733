"""MiniMax-M3: grouped-query attention whose later layers read only the blocks that a small indexer chose.

Index queries of a few heads meet one shared index key per token; the best score inside a block ranks the
block, the local block always being among the chosen (vLLM and SGLang loaders of ``minimax_m3``). The scan is
therefore ``index heads * index dim`` per context token, with no sum over heads, and the core reads ``blocks *
block size`` rows.
"""

from __future__ import annotations

from equipoise.models.gqa import Grouped
from equipoise.models.reader import Reader
from equipoise.models.shape import CacheRow, LayerClass, Work, group_layers

__all__ = ["block_sparse_layers"]


def block_sparse_layers(config: Reader) -> tuple[tuple[LayerClass, ...], str, tuple[str, ...]]:
    """Layer classes, default KV layout and notes of a block-sparse config."""
    layers = config.integer("num_hidden_layers", high=10_000)
    widths = Grouped.read(config)
    dense = LayerClass("dense", 1, (*widths.projections(), widths.core("dense core")), (widths.cache(),))
    sparse_config = config.table("sparse_attention_config")
    if sparse_config is None:
        raise config.fail(
            "sparse_attention_config is missing", "it must be a table with sparse_topk_blocks and others"
        )
    schedule = sparse_config.integers("sparse_attention_freq", high=1)
    if not sparse_config.flag("use_sparse_attention", True):
        return group_layers([dense] * layers), "bf16", ()
    if schedule is None:
        schedule = (1,) * layers
    if len(schedule) < layers:
        raise sparse_config.fail(
            f"sparse_attention_freq has {len(schedule)} entries for {layers} layers", "give one per layer"
        )
    heads, dim = sparse_config.integer("sparse_num_index_heads"), sparse_config.integer("sparse_index_dim")
    rows = sparse_config.integer("sparse_topk_blocks") * sparse_config.integer("sparse_block_size")
    indexer = (
        Work("projections", "index q", widths.hidden * heads * dim),
        Work("projections", "index k", widths.hidden * dim),
    )
    sparse = LayerClass(
        "block-sparse",
        1,
        (
            *widths.projections(),
            *indexer,
            widths.core("chosen blocks", rows),
            Work("scan", "block scan", heads * dim, tokens_per_row=1),
        ),
        (widths.cache(), CacheRow("index key", bf16=2 * dim, fp8=dim)),
    )
    return group_layers(sparse if on else dense for on in schedule[:layers]), "bf16", ()

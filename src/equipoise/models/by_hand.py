"""Layers described by hand in TOML, for architectures that no family covers.

The template (`EXAMPLE`) is both documentation and a model that derives; its text is what
``equipoise cost layers-example`` prints.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Final, get_args

from equipoise.errors import ModelError
from equipoise.models.reader import LARGEST, Reader
from equipoise.models.shape import CacheRow, LayerClass, ModelShape, Work, WorkKind

__all__ = ["EXAMPLE", "SCHEMA", "from_layers"]

SCHEMA: Final = "equipoise.layers/1"
MAX_MACS: Final = 10**18
MAX_FILE_BYTES: Final = 4_000_000


def from_layers(source: str | Path) -> ModelShape:
    """Read a model whose layers are written out by hand.

    Parameters
    ----------
    source : path
        A TOML file of schema ``equipoise.layers/1``; see `EXAMPLE`.

    Raises
    ------
    ModelError
        Not such a file; an unknown, missing or senseless key.
    """
    path = Path(source)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelError("is too large for a layer description", where=str(path), fix="give a TOML file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(
            f"cannot be read ({reason})", where=str(path), fix="give a TOML file of layers"
        ) from None
    except UnicodeDecodeError:
        raise ModelError("is not text", where=str(path), fix="give a TOML file of layers") from None
    return parse_layers(text, where=str(path))


def parse_layers(text: str, where: str) -> ModelShape:
    """Read layers from TOML text; `where` names it in messages."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise ModelError(
            f"is not TOML ({error})", where=where, fix="start from 'equipoise cost layers-example'"
        ) from None
    top = Reader(values, where)
    schema = top.text("schema", default="")
    if schema != SCHEMA:
        raise top.fail(
            f"schema = {schema!r}", f"must be {SCHEMA!r}; start from 'equipoise cost layers-example'"
        )
    experts = top.integer("experts", low=0, default=0)
    per_token = top.integer("experts_per_token", low=1, high=experts) if experts else 0
    if not experts:
        top.used.add("experts_per_token")
    shape = ModelShape(
        name=top.text("name"),
        architecture="by hand",
        hidden=top.integer("hidden_size", low=0, default=0),
        classes=tuple(_layer_class(t) for t in top.tables("layers")),
        max_context_tokens=top.optional_integer("max_context_tokens"),
        experts=experts,
        experts_per_token=per_token,
        shared_experts=top.integer("shared_experts", low=0, default=0),
        source=top.text("source", default=where),
    )
    top.no_others()
    if not shape.classes:
        raise top.fail("no layers", "give at least one [[layers]] table")
    names = [c.name for c in shape.classes]
    for name in names:
        if names.count(name) > 1:
            raise top.fail(f"two layer classes are named {name!r}", "give each its own name")
    return shape


def _layer_class(table: Reader) -> LayerClass:
    cache = table.optional_integer("kv_bytes_per_token")
    layer = LayerClass(
        name=table.text("name"),
        count=table.integer("count", high=10_000),
        work=tuple(_work(t) for t in table.tables("work")),
        cache=() if cache is None else (CacheRow("cache", bf16=cache),),
    )
    table.no_others()
    if not layer.work:
        raise table.fail("no work", "give at least one [[layers.work]] table")
    return layer


def _work(table: Reader) -> Work:
    kind = table.text("kind")
    kinds: tuple[WorkKind, ...] = get_args(WorkKind)
    for known in kinds:
        if kind == known:
            break
    else:
        raise table.fail(f"kind = {kind!r}", f"must be one of {', '.join(kinds)}")
    reads_context = known in ("core", "scan")
    work = Work(
        kind=known,
        name=table.text("name", default=kind),
        macs=_macs(table),
        tokens_per_row=table.integer("tokens_per_row", default=1) if reads_context else 0,
        max_rows=table.optional_integer("max_rows") if reads_context else None,
    )
    table.no_others()
    return work


def _macs(table: Reader) -> int:
    told = table.optional_integer("multiply_adds", high=MAX_MACS)
    matrices = table.values.get("matrices")
    table.used.add("matrices")
    if (told is None) == (matrices is None):
        raise table.fail(
            "give either multiply_adds or matrices", "a number, or a list of [rows, columns, ...]"
        )
    if told is not None:
        return told
    if not isinstance(matrices, list) or not matrices:
        raise table.fail(f"matrices = {matrices!r}", "must be a list of lists such as [[6144, 2048]]")
    sizes = Reader({f"matrices[{i}]": m for i, m in enumerate(matrices)}, table.where)
    products = [math.prod(sizes.integers(key, low=1, high=LARGEST) or (0,)) for key in sizes.values]
    total = sum(products)
    if not all(products) or total > MAX_MACS:
        raise table.fail(
            f"matrices make {total:.3g} multiply-adds", f"must be from 1 to {MAX_MACS:.0e}, no list empty"
        )
    return total


EXAMPLE: Final = f"""\
# Layers of a model, described by hand. Everything is counted per decode token, in multiply-adds.
schema = "{SCHEMA}"
name = "my-model"
# Optional facts; experts decide from which batch on each expert meets 64 tokens.
hidden_size = 6144
max_context_tokens = 1_048_576
experts = 256
experts_per_token = 8
shared_experts = 1

# One [[layers]] table per class of layers that do the same work (this one: GLM-5.3's 57 "shared" layers).
[[layers]]
name = "shared"
count = 57
kv_bytes_per_token = 656

# projections: GEMMs with the layer's weights, which all requests of a rank share in one product.
# A list of [inputs, outputs] or [heads, inputs, outputs] products, or one number as multiply_adds.
[[layers.work]]
kind = "projections"
matrices = [
  [6144, 2048],        # q down
  [2048, 64, 256],     # q up: 64 heads of 192 + 64
  [6144, 576],         # kv down: latent 512 + rope 64
  [64, 192, 512],      # absorbed key half
  [64, 512, 256],      # absorbed value half
  [64, 256, 6144],     # output
]

# core: attention over rows, per row read. max_rows is the bound (top-k, window, chunk); leave it out if every
# row of the context is read. tokens_per_row is the compress ratio, if rows cover several tokens.
[[layers.work]]
kind = "core"
matrices = [[64, 1088]]  # 64 heads of (576 for the score + 512 for the value)
max_rows = 2048

# The 21 "full" layers also run an indexer.
[[layers]]
name = "full"
count = 21
kv_bytes_per_token = 788

[[layers.work]]
kind = "projections"
multiply_adds = 174_391_296  # the sum above, and 9,371,648 for the indexer

[[layers.work]]
kind = "core"
matrices = [[64, 1088]]
max_rows = 2048

# scan: an indexer scores every row of the context.
[[layers.work]]
kind = "scan"
matrices = [[32, 129]]  # 32 heads of 128, and their weighted sum

# There is a fourth kind, state: the update of a recurrent state of fixed size, per request.
"""

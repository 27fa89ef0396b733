"""What a model's attention layers compute for one decode token, counted in multiply-adds.

The source article draws three kinds of attention work, told apart by what they grow with and by whether the
requests of a rank can share one matrix product:

===========  ==============================================  ===========  =================================
kind         what                                            grows with   batched across requests
===========  ==============================================  ===========  =================================
projections  GEMMs with the layer's weights                  batch        yes: every token meets the same
weights core         attention over the rows a request attends to    see below    no: every request has rows
of its own scan         an indexer scores rows to choose some of them   see below    no state        update of
a recurrent state of fixed size       batch        no: every request has its own state
===========  ==============================================  ===========  =================================

Core and scan grow with the context until a bound is reached (top-k, window, chunk, candidate blocks); past it
they cost the same for every request, which is growing with the batch. Without a bound they grow with the
context for ever. All counts are exact integers; a compressed row that covers several tokens makes an exact
fraction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from equipoise.errors import ModelError

__all__ = ["CacheRow", "LayerClass", "ModelShape", "Work", "WorkKind", "group_layers"]

WorkKind = Literal["projections", "core", "scan", "state"]


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of a layer's work.

    Parameters
    ----------
    kind : {"projections", "core", "scan", "state"}
    name : str
        ``q down``, ``window``, ``indexer scan``, ...
    macs : int
        Multiply-adds per query token (projections, state) or per row read (core, scan).
    tokens_per_row : int
        Context tokens behind one row: 1, or the compress ratio. 0: reads no context.
    max_rows : int, optional
        Rows after which reading stops growing; None: it grows with the context for ever.
    chunk_macs : int, optional
        Multiply-adds per row read where a chunk of a prompt computes it otherwise than a decode token: dense latent
        attention then expands its rows to heads. None: as `macs`.
    """

    kind: WorkKind
    name: str
    macs: int
    tokens_per_row: int = 0
    max_rows: int | None = None
    chunk_macs: int | None = None

    @property
    def grows_with(self) -> Literal["batch", "context"]:
        """What a rank's price of this work grows with once its requests are past any bound."""
        return "context" if self.tokens_per_row and self.max_rows is None else "batch"

    @property
    def batched_across_requests(self) -> bool:
        """Whether the requests of a rank share one matrix product."""
        return self.kind == "projections"

    @property
    def saturation_tokens(self) -> int | None:
        """Context length from which a request pays no more; None where there is no such bound."""
        return (
            self.max_rows * self.tokens_per_row if self.tokens_per_row and self.max_rows is not None else None
        )

    @property
    def per_request(self) -> int:
        """Multiply-adds of one decode token past every bound; 0 for work that grows with the context."""
        if self.grows_with == "context":
            return 0
        return self.macs if self.max_rows is None else self.macs * self.max_rows

    @property
    def per_context_token(self) -> Fraction:
        """Multiply-adds per token of context while the bound, if any, is not reached."""
        return Fraction(self.macs, self.tokens_per_row) if self.tokens_per_row else Fraction(0)

    def in_chunks(self) -> Work:
        """Count the same work as a chunk of a prompt does it."""
        return self if self.chunk_macs is None else replace(self, macs=self.chunk_macs)


@dataclass(frozen=True, slots=True)
class CacheRow:
    """What a layer stores for good: rows that a rank's KV capacity is spent on.

    Parameters
    ----------
    name : str
        ``latent``, ``index key``, ``key and value``.
    bf16 : int
        Bytes of one row at 16 bits an element.
    fp8, fp4 : int, optional
        Bytes of one row in these layouts, scales included; None where no such layout is known.
    tokens_per_row : int
        Context tokens behind one row.
    """

    name: str
    bf16: int
    fp8: int | None = None
    fp4: int | None = None
    tokens_per_row: int = 1

    def bytes_in(self, layout: str) -> int | None:
        """Bytes of one row in a layout, None where it is not known."""
        return {"bf16": self.bf16, "fp8": self.fp8, "fp4": self.fp4}.get(layout)


@dataclass(frozen=True, slots=True)
class LayerClass:
    """Layers that do the same work, and so wait for the same slowest rank.

    Parameters
    ----------
    name : str
        ``shared``, ``full``, ``sliding``, ``csa``, ...
    count : int
        Layers of this class.
    work : sequence of Work
    cache : sequence of CacheRow
        Growing part of the KV cache of one layer; windows and recurrent states are of fixed size and not
        here.
    """

    name: str
    count: int
    work: tuple[Work, ...]
    cache: tuple[CacheRow, ...] = ()

    def per_request(self, *kinds: WorkKind) -> int:
        """Multiply-adds of one decode token past every bound, over all kinds of work or those given."""
        return sum(w.per_request for w in self.work if not kinds or w.kind in kinds)

    def per_context_token(self, *kinds: WorkKind) -> Fraction:
        """Multiply-adds per context token of the work that grows with the context for ever."""
        chosen = (w for w in self.work if w.grows_with == "context" and (not kinds or w.kind in kinds))
        return sum((w.per_context_token for w in chosen), Fraction(0))


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as its attention layers see it.

    Parameters
    ----------
    name : str
    architecture : str
        The Hugging Face model type or class it was read as, or ``by hand``.
    hidden : int
        Width of the residual stream; 0 where it was not told.
    classes : sequence of LayerClass
    max_context_tokens : int, optional
    experts, experts_per_token, shared_experts : int
        Routed experts, those a token visits, and those every token visits; 0 for a dense model.
    kv_layout : str
        Storage layout that `kv_bytes_per_token` takes by default: the one engines use for this kind of cache.
    source : str
        File, preset or publication the shape comes from.
    notes : sequence of str
        What was assumed or approximated while reading it.
    """

    name: str
    architecture: str
    hidden: int
    classes: tuple[LayerClass, ...]
    max_context_tokens: int | None = None
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    kv_layout: str = "bf16"
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Attention layers, drafting layers not among them."""
        return sum(c.count for c in self.classes)

    @property
    def kv_layouts(self) -> tuple[str, ...]:
        """Storage layouts for which every row's size is known."""
        rows = [r for c in self.classes for r in c.cache]
        return tuple(k for k in ("bf16", "fp8", "fp4") if all(r.bytes_in(k) is not None for r in rows))

    def kv_bytes_per_token(self, layout: str | None = None) -> float:
        """Bytes the KV cache grows by per token of context, all layers together.

        Raises
        ------
        ModelError
            A layout whose row sizes are not known.
        """
        chosen = layout or self.kv_layout
        if chosen not in self.kv_layouts:
            raise ModelError(
                f"KV layout {chosen!r} is not known for {self.name}",
                fix=f"known: {', '.join(self.kv_layouts)}",
            )
        rows = [(c.count, r) for c in self.classes for r in c.cache]
        return float(sum(Fraction(n * (r.bytes_in(chosen) or 0), r.tokens_per_row) for n, r in rows))

    def global_batch_for_m(self, m: int) -> int | None:
        """Decode batch of the whole expert-parallel group at which each expert meets `m` tokens on average.

        ``ceil(m * experts / experts_per_token)``; None for a dense model.
        """
        if not self.experts:
            return None
        return -(-m * self.experts // self.experts_per_token)


def group_layers(layers: Iterable[LayerClass]) -> tuple[LayerClass, ...]:
    """Gather equal layers, given one by one, into classes; classes without a context term come first.

    The order is the article's: the layers whose slowest rank is the one with the largest batch, then the
    others.
    """
    counts: dict[tuple[object, ...], LayerClass] = {}
    for layer in layers:
        same = (layer.name, layer.work, layer.cache)
        seen = counts.get(same)
        counts[same] = replace(layer, count=layer.count + (seen.count if seen else 0))
    return tuple(sorted(counts.values(), key=lambda c: c.per_context_token() > 0))

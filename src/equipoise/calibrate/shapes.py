"""What a fit may look like: the shape of each term's batch price, and which columns a term has.

A form is linear in its coefficients. The batch price is one of

==========  =====================================================================  =====================
kind        price of a batch B                                                     columns
==========  =====================================================================  =====================
none        0                                                                      none
linear      b * B                                                                  B
roofline    b * max(B, B0)                                                         max(B, B0)
table       rising broken line through nodes (measured batches)                    one rise a segment
staircase   rising steps: a batch is padded to the next captured graph size        one rise a step
==========  =====================================================================  =====================

Rises are non-negative, so tables and staircases are monotone: non-negative least squares on them is isotonic
regression.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from equipoise.cost import Saturation, StepCost, Term
from equipoise.types import Floats, Ints

__all__ = ["CONSTANT", "BatchShape", "Form", "TermForm", "graph_sizes"]

ShapeKind = Literal["none", "linear", "roofline", "table", "staircase"]

CONSTANT = "constant"
"""Name of the price every step pays."""

PER_UNIT = 100_000.0
"""Context prices are per 100k tokens, as in `StepCost`."""


def graph_sizes(largest: int) -> tuple[int, ...]:
    """Batch sizes for which engines capture graphs by default, up to the first that holds `largest`.

    vLLM's list: 1, 2, 4, then every 8 to 256, then every 16 (``vllm/config``, ``cudagraph_capture_sizes``).
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max(largest, 256) + 32, 16)]
    enough = next(i for i, size in enumerate(sizes) if size >= largest)
    return tuple(sizes[: enough + 1])


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Shape of a batch price.

    Parameters
    ----------
    kind : {"none", "linear", "roofline", "table", "staircase"}
    floor : int
        Roofline knee B0.
    nodes : tuple of int
        Ascending batches of a table or a staircase. The price up to the first one is part of the constant.
    """

    kind: ShapeKind = "linear"
    floor: int = 0
    nodes: tuple[int, ...] = ()

    @property
    def columns(self) -> int:
        """How many coefficients the shape has."""
        return {"none": 0, "linear": 1, "roofline": 1}.get(self.kind, len(self.nodes) - 1)

    def design(self, batch: Floats | Ints) -> Floats:
        """float64[n, columns], what each coefficient is multiplied with for a batch."""
        B = np.asarray(batch, dtype=np.float64)[:, None]
        if self.kind == "none":
            return np.empty((len(B), 0))
        if self.kind in ("linear", "roofline"):
            return np.maximum(B, self.floor)
        low, high = np.array(self.nodes[:-1]), np.array(self.nodes[1:])
        if self.kind == "staircase":
            return (low < B).astype(np.float64)
        return np.asarray(np.clip((B - low) / (high - low), 0.0, 1.0))

    def prices(self, coefficients: Floats, largest: int) -> Floats:
        """float64[largest + 1], price of a batch of 0 ... `largest`; beyond the last node, `slope` goes on."""
        B = np.arange(largest + 1)
        price = self.design(B) @ coefficients
        if self.nodes:
            price += self.slope(coefficients) * np.maximum(B - self.nodes[-1], 0)
        return np.asarray(price, dtype=np.float64)

    def slope(self, coefficients: Floats) -> float:
        """Price of one more request, on average over the fitted batches."""
        if self.kind == "none":
            return 0.0
        if self.nodes:
            return float(coefficients.sum()) / (self.nodes[-1] - self.nodes[0])
        return float(coefficients[0])

    def names(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        if self.kind == "none":
            return ()
        if self.nodes:
            return tuple(f"batch_rise_to_{n}" for n in self.nodes[1:])
        return ("per_request",)


@dataclass(frozen=True, slots=True)
class TermForm:
    """Columns of one term.

    Parameters
    ----------
    name : str
    batch : BatchShape
    context : bool
        A price per context token.
    saturation_tokens : int
        A price per token of min(context, this); 0: none.
    queries : bool
        A price per verified token beyond one a request.
    """

    name: str
    batch: BatchShape = BatchShape()
    context: bool = False
    saturation_tokens: int = 0
    queries: bool = False

    @property
    def columns(self) -> int:
        """How many coefficients the term has."""
        return self.batch.columns + self.context + bool(self.saturation_tokens) + self.queries

    def names(self) -> tuple[str, ...]:
        """Names of the coefficients, with their units: microseconds per request, per 100k tokens, per token."""
        own = [*self.batch.names()]
        if self.context:
            own.append("per_100k_context")
        if self.saturation_tokens:
            own.append(f"per_100k_saturated_{self.saturation_tokens}")
        if self.queries:
            own.append("per_extra_query")
        return tuple(f"{self.name}.{n}" for n in own)


@dataclass(frozen=True, slots=True)
class Form:
    """A step time that is linear in its coefficients once each term's slowest rank is known.

    The coefficients are the constant, then term by term: batch, context, saturated context, extra queries.
    """

    terms: tuple[TermForm, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all coefficients, in order."""
        return (CONSTANT, *(n for t in self.terms for n in t.names()))

    @property
    def saturation_tokens(self) -> int:
        """Saturation length of the form, in tokens; 0 where it has none."""
        return max(t.saturation_tokens for t in self.terms)

    @property
    def columns(self) -> int:
        """How many coefficients."""
        return 1 + sum(t.columns for t in self.terms)

    def offsets(self) -> list[int]:
        """Where each term's coefficients start."""
        return list(np.cumsum([1, *(t.columns for t in self.terms)])[:-1])

    def parts(self, coefficients: Floats, term: int) -> tuple[Floats, float, float, float]:
        """Coefficients of one term: of the batch, per 100k context, per 100k saturated, per extra query."""
        form, at = self.terms[term], self.offsets()[term]
        batch = coefficients[at : at + form.batch.columns]
        at += form.batch.columns
        rest = []
        for there in (form.context, bool(form.saturation_tokens), form.queries):
            rest.append(float(coefficients[at]) if there else 0.0)
            at += there
        return batch, rest[0], rest[1], rest[2]

    def without(self, name: str) -> Form:
        """The same form without one coefficient."""
        terms = []
        for term in self.terms:
            own = term.names()
            if name not in own:
                terms.append(term)
                continue
            at = own.index(name)
            if at < term.batch.columns:
                nodes = tuple(n for i, n in enumerate(term.batch.nodes) if i != at + 1)
                keep = len(nodes) >= 2
                terms.append(replace(term, batch=replace(term.batch, nodes=nodes) if keep else NO_BATCH))
            elif name.endswith("per_100k_context"):
                terms.append(replace(term, context=False))
            elif name.endswith("per_extra_query"):
                terms.append(replace(term, queries=False))
            else:
                terms.append(replace(term, saturation_tokens=0))
        kept = tuple(t for t in terms if t.columns)
        return Form(kept)

    def cost(
        self,
        coefficients: Floats,
        name: str,
        *,
        extra_queries_per_request: float = 0.0,
        source: str = "",
        barrier: Literal["layer", "step"] = "layer",
    ) -> StepCost:
        """The fitted prices as a `StepCost` in microseconds.

        A `StepCost` knows requests, not verified tokens: the price of the extra ones is added to the request at the
        logged number per request.
        """
        terms = []
        for i, form in enumerate(self.terms):
            batch, context, saturated, query = self.parts(coefficients, i)
            verified = query * extra_queries_per_request
            table: tuple[float, ...] = ()
            if form.batch.nodes:
                last = form.batch.nodes[-1]
                prices = form.batch.prices(batch, last) + verified * np.arange(last + 1)
                # Sums of rises in floating point may fall in the last bit; a table may not.
                table = tuple(float(p) for p in np.maximum.accumulate(prices))
            terms.append(
                Term(
                    name=form.name,
                    per_request=form.batch.slope(batch) + verified,
                    per_100k_context=context,
                    batch_floor=form.batch.floor,
                    batch_table=table,
                    saturations=(Saturation(form.saturation_tokens, saturated),) if saturated else (),
                )
            )
        return StepCost(
            name=name,
            terms=tuple(terms) or (Term("decode", per_request=0.0),),
            constant=float(coefficients[0]),
            unit="us",
            barrier=barrier,
            source=source,
        )


NO_BATCH = BatchShape("none")

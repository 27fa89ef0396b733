"""A model's multiply-adds, sorted by what they grow with: the counts that decode and prefill prices are made of."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from equipoise.errors import CostError
from equipoise.models.shape import LayerClass, ModelShape

__all__ = ["GLM5_H200_US_PER_REQUEST", "Part", "merged", "part_of", "per_request"]

GLM5_H200_US_PER_REQUEST: Final = 74.0
"""Microseconds per request: 57 * 0.855 + 21 * 1.22, the slopes of GLM-5's two layer classes measured on H200 (NVIDIA
AIConfigurator database: SGLang 0.5.14 for shared layers, vLLM 0.24 for full ones). A default clock, not a count; for
another model or machine give your own."""


@dataclass(frozen=True, slots=True)
class Part:
    """A class's multiply-adds over all its layers, split by what they grow with."""

    name: str
    own: int
    """Per request, past every bound; without the projections where they are frozen."""
    fixed: int
    """The part of ``own`` that does not read the context."""
    context: Fraction
    """Per context token, for ever."""
    saturating: tuple[tuple[int, Fraction], ...]
    """(bound in tokens, multiply-adds per token up to it), ascending; empty unless priced exactly."""


def per_request(shape: ModelShape) -> int:
    """Multiply-adds of one decode token past every bound, all layers together: the unit ``request``.

    Raises
    ------
    CostError
        There are none.
    """
    total = sum(c.count * c.per_request() for c in shape.classes)
    if total == 0:
        fix = "its layers need projections, or another work per request"
        raise CostError("no work per request", where=f"derivation of {shape.name}", fix=fix)
    return total


def part_of(layer: LayerClass, frozen: bool, saturate: bool, in_chunks: bool = False) -> Part:
    """Count a class.

    Parameters
    ----------
    layer : LayerClass
    frozen : bool
        Leave its projections out.
    saturate : bool
        Keep its bounded reads apart.
    in_chunks : bool
        As the chunks of a prompt compute it, where they do so otherwise.
    """
    if in_chunks:
        layer = replace(layer, work=tuple(w.in_chunks() for w in layer.work))
    n = layer.count
    own = layer.per_request() - (layer.per_request("projections") if frozen else 0)
    bounded = [w for w in layer.work if w.saturation_tokens is not None] if saturate else []
    per_bound: defaultdict[int, Fraction] = defaultdict(Fraction)
    for work in bounded:
        per_bound[work.saturation_tokens or 0] += n * work.per_context_token
    return Part(
        name=layer.name,
        own=n * own,
        fixed=n * (own - sum(w.per_request for w in bounded)),
        context=n * layer.per_context_token(),
        saturating=tuple(sorted(per_bound.items())),
    )


def merged(parts: list[Part]) -> list[Part]:
    """Make one part of those that grow with the batch alone: their slowest rank is the same."""
    same = [p for p in parts if not p.context and not p.saturating]
    if len(same) < 2:
        return parts
    name = " + ".join(p.name for p in same)
    own, fixed = sum(p.own for p in same), sum(p.fixed for p in same)
    return [Part(name, own, fixed, Fraction(0), ()), *(p for p in parts if p not in same)]

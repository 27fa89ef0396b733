"""What a derivation tells, as plain data: costs, KV bytes, exchange rate, the batch at which M is 64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from equipoise.cost.files import to_dict
from equipoise.cost.prefill import PrefillCost
from equipoise.cost.prefill_files import prefill_to_dict
from equipoise.cost.step_cost import StepCost
from equipoise.models.shape import LayerClass, ModelShape, WorkKind

__all__ = ["SCHEMA", "barriers", "breakdown", "costs_summary", "derivation_summary", "prefill_summary"]

SCHEMA: Final = "equipoise.cost/1"

GROUPED_M: Final = 64
"""Rows per expert from which the source article takes the grouped FFN GEMM to be efficient."""


def costs_summary(costs: Mapping[str, StepCost]) -> dict[str, Any]:
    """Lay out named step costs, their exchange rates and their prefill costs (schema ``equipoise.cost/1``).

    ``prefill`` is that of the costs that have one (the same for all kinds of a derivation), with its formula and
    crossover; null where there is none.
    """
    prefill = next((c.prefill for c in costs.values() if c.prefill is not None), None)
    return {
        "schema": SCHEMA,
        "models": {name: to_dict(cost) for name, cost in costs.items()},
        "request_in_context_tokens": {name: exchange_rate(cost) for name, cost in costs.items()},
        "prefill": None if prefill is None else prefill_summary(prefill),
    }


def prefill_summary(prefill: PrefillCost) -> dict[str, Any]:
    """Lay out a prefill cost: the table of a cost file, unit, clock, formula, crossover (null: never)."""
    return {
        "unit": prefill.unit,
        "us_per_unit": prefill.us_per_unit,
        **prefill_to_dict(prefill),
        "formula": prefill.formula(),
        "crossover_tokens": prefill.crossover_tokens,
    }


def derivation_summary(shape: ModelShape, costs: Mapping[str, StepCost]) -> dict[str, Any]:
    """Lay out what was derived from a shape (schema ``equipoise.cost/1``).

    ``kv_bytes_per_token`` is for ``kv_layout``, the layout engines use for this kind of cache; all known ones
    are in ``kv_bytes_per_token_by_layout``. ``request_in_context_tokens`` is null where context is free,
    ``batch_for_m64`` where there are no experts.
    """
    return {
        **costs_summary(costs),
        "kv_bytes_per_token": _whole(shape.kv_bytes_per_token()),
        "kv_layout": shape.kv_layout,
        "kv_bytes_per_token_by_layout": {k: _whole(shape.kv_bytes_per_token(k)) for k in shape.kv_layouts},
        "batch_for_m64": shape.global_batch_for_m(GROUPED_M),
        "model": {
            "name": shape.name,
            "architecture": shape.architecture,
            "layers": shape.layers,
            "hidden": shape.hidden,
            "max_context_tokens": shape.max_context_tokens,
            "experts": shape.experts,
            "experts_per_token": shape.experts_per_token,
            "shared_experts": shape.shared_experts,
            "source": shape.source,
            "notes": list(shape.notes),
        },
        "classes": [{"name": c.name, "count": c.count, "work": breakdown(c)} for c in shape.classes],
    }


def barriers(formula: str) -> list[str]:
    """Cut a formula at its outer pluses: a constant, then a barrier a piece, as they read best in a column.

    Examples
    --------
    >>> barriers("4 + 1 * max(table[9](B) + 2 * C/100k) + 3 * max(B)")
    ['4', '1 * max(table[9](B) + 2 * C/100k)', '3 * max(B)']
    """
    pieces, depth = [""], 0
    for character in formula:
        depth += (character == "(") - (character == ")")
        if character == "+" and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces]


def exchange_rate(cost: StepCost) -> float | None:
    """Context tokens that cost as much as one more request; None where context is free."""
    rate = cost.request_in_context_tokens
    return rate if math.isfinite(rate) else None


KINDS: Final[Sequence[WorkKind]] = ("projections", "state", "core", "scan")


def breakdown(layer: LayerClass) -> list[dict[str, Any]]:
    """Split one layer's work by kind and by what it grows with, as the source article's figure does.

    Returns
    -------
    list of dict
        ``kind``; ``grows_with`` ("batch" or "context"); ``multiply_adds`` per decode token of a request past
        every bound, or per context token; ``saturation_tokens``, the context length of the last bound, or
        null; ``batched_across_requests``.
    """
    rows = []
    for kind in KINDS:
        for grows_with in ("batch", "context"):
            parts = [w for w in layer.work if w.kind == kind and w.grows_with == grows_with]
            if not parts:
                continue
            by_batch = sum(w.per_request for w in parts)
            by_context = sum(w.per_context_token for w in parts)
            bounds = [w.saturation_tokens for w in parts if w.saturation_tokens is not None]
            rows.append(
                {
                    "kind": kind,
                    "grows_with": grows_with,
                    "multiply_adds": by_batch if grows_with == "batch" else _whole(float(by_context)),
                    "saturation_tokens": max(bounds) if bounds else None,
                    "batched_across_requests": parts[0].batched_across_requests,
                    "parts": [w.name for w in parts],
                }
            )
    return rows


def _whole(value: float) -> float | int:
    return int(value) if value == int(value) else value

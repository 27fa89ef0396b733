"""The ``[prefill]`` table of a cost file: one file tells what a decode step and a prefill step cost.

Unit and clock are those of the file, so the two can be added.
"""

from __future__ import annotations

from typing import Any, cast

from equipoise.cost.attended import MAX_POSITION
from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.cost.step_cost import Barrier, Saturation, Unit
from equipoise.models.reader import Reader

__all__ = ["prefill_from", "prefill_to_dict"]


def prefill_to_dict(prefill: PrefillCost) -> dict[str, Any]:
    """Lay a prefill cost out as plain data; unit and clock stand in the table around it."""
    return {
        "barrier": prefill.barrier,
        "source": prefill.source,
        "constant": prefill.constant,
        "terms": [_term_to_dict(t) for t in prefill.terms],
    }


def _term_to_dict(term: PrefillTerm) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": term.name,
        "per_token": term.per_token,
        "per_100k_pairs": term.per_100k_pairs,
    }
    if term.saturations:
        values["saturations"] = [{"tokens": s.tokens, "per_100k": s.per_100k} for s in term.saturations]
    return values


def prefill_from(table: Reader, unit: Unit, us_per_unit: float) -> PrefillCost:
    """Build a prefill cost from its table; the inverse of `prefill_to_dict`.

    Raises
    ------
    CostError
        A key that is unknown, missing or senseless.
    """
    for name in ("unit", "us_per_unit"):
        if table.has(name):
            raise table.fail(f"{name} is set", "leave it out: prefill is in the unit of the file")
    barrier = cast(Barrier, table.text("barrier", default="layer"))
    source, constant = table.text("source", default=""), table.number("constant", default=0.0)
    terms = tuple(_term_from(t) for t in table.tables("terms"))
    table.no_others()
    return PrefillCost(terms, constant, unit, us_per_unit, barrier, source)


def _term_from(table: Reader) -> PrefillTerm:
    term = PrefillTerm(
        name=table.text("name"),
        per_token=table.number("per_token", default=0.0),
        per_100k_pairs=table.number("per_100k_pairs", default=0.0),
        saturations=tuple(_saturation(t) for t in table.tables("saturations")),
    )
    table.no_others()
    return term


def _saturation(table: Reader) -> Saturation:
    saturation = Saturation(table.integer("tokens", high=MAX_POSITION), table.number("per_100k"))
    table.no_others()
    return saturation

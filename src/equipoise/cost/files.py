"""Step costs as data: TOML and JSON in, TOML and plain dictionaries out, exact both ways."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

from equipoise.cost.prefill_files import prefill_from, prefill_to_dict
from equipoise.cost.step_cost import Barrier, Saturation, StepCost, Term, Unit
from equipoise.errors import CostError
from equipoise.models.reader import Reader

__all__ = ["SCHEMA", "from_dict", "from_toml", "read", "save", "to_dict", "to_toml", "write_text"]

SCHEMA: Final = "equipoise.step-cost/1"
"""Schema of a file that holds one step cost."""

MAX_FILE_BYTES: Final = 16_000_000


def to_dict(cost: StepCost) -> dict[str, Any]:
    """Lay a step cost out as plain data; keys that are not used (tables, saturations, floors, prefill) are left out.

    `StepCost.metadata` is not part of it; files carry its ``fit`` (see `to_toml`).
    """
    values: dict[str, Any] = {
        "name": cost.name,
        "unit": cost.unit,
        "barrier": cost.barrier,
        "us_per_unit": cost.us_per_unit,
        "source": cost.source,
        "constant": cost.constant,
        "terms": [_term_to_dict(t) for t in cost.terms],
    }
    if cost.prefill is not None:
        values["prefill"] = prefill_to_dict(cost.prefill)
    return values


def _term_to_dict(term: Term) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": term.name,
        "weight": term.weight,
        "per_request": term.per_request,
        "per_100k_context": term.per_100k_context,
    }
    if term.batch_floor:
        values["batch_floor"] = term.batch_floor
    if term.batch_table:
        values["batch_table"] = list(term.batch_table)
    if term.saturations:
        values["saturations"] = [{"tokens": s.tokens, "per_100k": s.per_100k} for s in term.saturations]
    return values


def from_dict(values: Mapping[str, Any], where: str = "cost") -> StepCost:
    """Build a step cost from plain data; the inverse of `to_dict`.

    Parameters
    ----------
    values : mapping
        ``name`` and ``terms`` must be there; a term needs a ``name``. Everything else has the defaults of
        `StepCost` and `Term`, but a ``us`` cost may not set ``us_per_unit``. A ``prefill`` table is in the unit and
        on the clock of the whole.
    where : str
        File, for messages.

    Raises
    ------
    CostError
        A key that is unknown, missing or senseless.
    """
    table = Reader(values, where, CostError)
    if "models" in values and "terms" not in values:
        fix = "write one model with 'equipoise cost derive --kind v1 --output FILE.toml'"
        raise table.fail("holds several models", fix)
    schema = table.text("schema", default=SCHEMA)
    if schema != SCHEMA:
        raise table.fail(f"schema = {schema!r}", f"must be {SCHEMA!r}")
    arguments: dict[str, Any] = {
        "name": table.text("name"),
        "unit": cast(Unit, table.text("unit", default="request")),
        "barrier": cast(Barrier, table.text("barrier", default="layer")),
        "us_per_unit": table.number("us_per_unit", default=1.0),
        "source": table.text("source", default=""),
        "constant": table.number("constant", default=0.0),
        "terms": tuple(_term_from(t) for t in table.tables("terms")),
    }
    prefill = table.table("prefill")
    # How prices were fitted is for people to read: no key of it changes what a step costs.
    fitted = table.table("fit")
    arguments["metadata"] = {} if fitted is None else {"fit": dict(fitted.values)}
    table.no_others()
    if arguments["unit"] == "us" and arguments["us_per_unit"] != 1.0:
        raise table.fail(f"us_per_unit = {arguments['us_per_unit']}", "leave it out where unit = 'us'")
    try:
        decode = StepCost(**arguments)
        if prefill is None:
            return decode
        return replace(decode, prefill=prefill_from(prefill, decode.unit, decode.us_per_unit))
    except CostError as error:
        raise CostError(
            error.what, where=f"{where}, {error.where}" if error.where else where, fix=error.fix
        ) from None


def _term_from(table: Reader) -> Term:
    if table.values.get("batch_table") == []:  # nothing is not a default by accident
        raise table.fail("batch_table is empty", "give prices of a batch of 0, 1, 2, ... or leave it out")
    term = Term(
        name=table.text("name"),
        weight=table.number("weight", default=1.0),
        per_request=table.number("per_request", default=1.0),
        per_100k_context=table.number("per_100k_context", default=0.0),
        batch_floor=table.integer("batch_floor", low=0, default=0),
        batch_table=table.numbers("batch_table"),
        saturations=tuple(_saturation(t) for t in table.tables("saturations")),
    )
    table.no_others()
    return term


def _saturation(table: Reader) -> Saturation:
    saturation = Saturation(table.integer("tokens"), table.number("per_100k"))
    table.no_others()
    return saturation


def to_toml(cost: StepCost) -> str:
    """Write a step cost as TOML text; `from_toml` gives the same cost back, to the last bit.

    Where the prices were fitted, ``metadata["fit"]`` says how well; it goes along as the table ``[fit]``.
    """
    import tomli_w

    provenance = {"fit": cost.metadata["fit"]} if "fit" in cost.metadata else {}
    return tomli_w.dumps({"schema": SCHEMA, **to_dict(cost), **provenance})


def from_toml(text: str, where: str = "cost") -> StepCost:
    """Read a step cost from TOML text.

    Raises
    ------
    CostError
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise CostError(f"is not TOML ({error})", where=where, fix="see 'equipoise cost show v1'") from None
    return from_dict(values, where)


def read(path: str | Path) -> StepCost:
    """Read a step cost from a ``.toml`` or ``.json`` file.

    Raises
    ------
    CostError
        No such file, not text of that kind, or not a step cost.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CostError("is too large for a step cost", where=str(path), fix="give a cost file")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CostError(f"cannot be read ({reason})", where=str(path), fix="give a cost file") from None
    except ValueError:  # bytes that are no text, or a name that is no path
        raise CostError("is not text", where=str(path), fix="give a cost file in TOML or JSON") from None
    if path.suffix.lower() != ".json":
        return from_toml(text, str(path))
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CostError(f"is not JSON ({error})", where=str(path), fix="give a cost file") from None
    if not isinstance(values, dict):
        raise CostError(f"holds a {type(values).__name__}", where=str(path), fix="a cost is a table of keys")
    return from_dict(values, str(path))


def save(cost: StepCost, path: str | Path) -> None:
    """Write a step cost to a TOML file, whole or not at all.

    Raises
    ------
    CostError
        The file cannot be written.
    """
    write_text(Path(path), to_toml(cost))


def write_text(path: Path, text: str) -> None:
    """Write a file by way of a temporary one beside it, so that nobody meets half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp") if path.name else path
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C leaves no half of it either
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink()
        if not isinstance(error, OSError | ValueError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        fix = "give a file in a folder that exists and can be written"
        raise CostError(f"cannot be written ({reason})", where=str(path), fix=fix) from None

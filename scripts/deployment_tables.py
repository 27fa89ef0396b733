"""The keys of deployment files as the code has them: type, default, bounds, and what the docstrings say.

Bounds are not declared anywhere but in the checks, so the checks are asked: a value that cannot be right is given, and
what the error says about it is the bound.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

from equipoise.errors import InputError
from equipoise.fleet.files import TABLES

__all__ = ["TABLES", "bound_of", "meanings", "table_of"]

NEEDED: Mapping[str, Mapping[str, Any]] = {
    "hardware": {"first": 0, "last": 0},
    "changes": {"at_s": 0.0, "what": "die", "instance": 0},
    "information": {"knows": "ledger"},
}
"""Keys that have to be there while another one is asked about."""


SAID: Mapping[str, str] = {
    "replicas": "Routers that place requests side by side, each with a picture of its own.",
    "period_steps": "Steps from one report of an instance to the next; it also reports when it falls idle.",
    "delay_steps": "Steps of the instance until a report comes in.",
    "delay_s": "Seconds until it comes in, on top.",
}
"""Of `Information`, whose docstring says it in its first paragraph."""


def table_of(name: str) -> Iterator[list[str]]:
    """Rows of the table: key, value, default, meaning."""
    said = meanings(TABLES[name])
    for field in fields(TABLES[name]):
        default = "required" if field.default is MISSING else _shown(field.default)
        meaning = said[field.name] or SAID[field.name]
        yield [f"`{field.name}`", bound_of(name, field.name), default, meaning]


def bound_of(table: str, key: str) -> str:
    """What the value must be, in the words of the error for one that is not."""
    part = TABLES[table]
    hint = get_type_hints(part)[key]
    kinds = get_args(hint) if get_origin(hint) is not None else (hint,)
    if hint is bool:
        return "`true` or `false`"
    words = [k for k in kinds if isinstance(k, str)]
    if words:
        return ", ".join(f"`{w}`" for w in words)
    lists = [k for k in kinds if get_origin(k) is tuple]
    if get_origin(hint) is tuple or lists:
        one = _asked(table, key, (-1,) if int in kinds else (-1.0,))
        return f"{_asked(table, key, -1.0)}, or a list of them" if lists else f"a list, each a {one}"
    return _asked(table, key, -1 if int in kinds else -1.0)


def _asked(table: str, key: str, bad: Any) -> str:
    try:
        TABLES[table](**{**NEEDED.get(table, {}), key: bad})
    except InputError as error:
        found = (error.fix or "").removeprefix("must be ").removeprefix("a ")
        return found.replace(
            "from 1 to the number of instances, 1", "whole number from 1 to the number of instances"
        )
    raise SystemExit(f"[{table}] {key} = {bad} is accepted: how is it bounded?")


def meanings(part: type) -> dict[str, str]:
    """What the numpydoc parameters of a class say, by name; several may share a description."""
    text = inspect.cleandoc(part.__doc__ or "").partition("Parameters\n----------\n")[2]
    text = re.split(r"\n\n\w+\n-+\n", text)[0]
    found: dict[str, str] = {}
    for block in re.split(r"\n(?=\S)", text):
        head, _, body = block.partition("\n")
        names = head.partition(" : ")[0].split(",")
        for key in names:
            found[key.strip()] = " ".join(body.split()).replace("``", "`")
    return found


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[]`"
    return (
        f'`"{value}"`'
        if isinstance(value, str)
        else f"`{value:g}`"
        if isinstance(value, float)
        else f"`{value}`"
    )

"""Deployments as data: TOML in and out, exact both ways, and the presets that come with the package.

The tables are the fields of `Deployment`, their keys the fields of its parts: ``[prefill] where = "pool"``. What a file
does not say is off.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

from equipoise import _files
from equipoise.errors import InputError, nearest
from equipoise.fleet.config import (
    Change,
    Clients,
    Deployment,
    Hardware,
    KvMemory,
    Losses,
    Prefill,
    Slo,
    Speculation,
    StepExtras,
    Transfer,
)
from equipoise.models.reader import Reader
from equipoise.replay import Information, Pool

T = TypeVar("T")

__all__ = ["SCHEMA", "TABLES", "dumps", "load", "loads", "names", "preset_text", "summary", "to_dict"]

SCHEMA: Final = "equipoise.deployment/1"
"""Schema of a file that holds one deployment."""

TABLES: Final[Mapping[str, type]] = {
    "pool": Pool,
    "hardware": Hardware,
    "prefill": Prefill,
    "transfer": Transfer,
    "memory": KvMemory,
    "step": StepExtras,
    "speculation": Speculation,
    "clients": Clients,
    "changes": Change,
    "losses": Losses,
    "information": Information,
    "slo": Slo,
}
"""Table by table, in the order of `Deployment`."""
LISTS: Final = ("hardware", "changes")
"""Those that are lists of tables."""

MAX_FILE_BYTES: Final = 4_000_000
LARGEST: Final = 10**30
"""No bound of any key is near; larger whole numbers have no float."""
WORDS: Final = {
    int: "must be a whole number",
    float: "must be a number",
    bool: "must be true or false",
    str: "must be text",
}


def load(name_or_path: str | Path) -> Deployment:
    """The deployment of a preset or of a TOML file.

    Parameters
    ----------
    name_or_path : str or Path
        A preset's name (``dp64``), else a path.

    Raises
    ------
    InputError
        Neither, or not a deployment; names file, table and key.

    Examples
    --------
    >>> load("dp8").pool.ranks
    8
    """
    name = str(name_or_path).strip().lower()
    if name in _presets():
        return loads(_presets()[name], f"preset {name}")
    path = Path(name_or_path)
    if path.suffix.lower() != ".toml" and path.name == str(name_or_path) and not _is_file(path):
        raise InputError(
            f"no deployment {str(name_or_path)!r}",
            where="deployment",
            fix=f"{nearest(name, names())}; or give a .toml file",
        )
    content = _files.whole(path, MAX_FILE_BYTES, smaller="give a deployment file")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("is not text", where=str(path), fix="give a deployment file in TOML") from None
    return loads(text, str(path))


def loads(text: str, where: str = "deployment") -> Deployment:
    """The deployment that a TOML text describes; the inverse of `dumps`.

    Parameters
    ----------
    text : str
    where : str
        File, for messages.

    Raises
    ------
    InputError
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is not TOML ({error})", where=where, fix="see 'equipoise simulate --show dp64'"
        ) from None
    top = Reader(values, where, InputError)
    schema = top.text("schema", default=SCHEMA)
    if schema != SCHEMA:
        raise top.fail(f"schema = {schema!r}", f"must be {SCHEMA!r}")
    top.text("summary", default="")
    arguments: dict[str, Any] = {}
    for name, part in TABLES.items():
        if name in LISTS:
            arguments[name] = tuple(_part(table, part, name) for table in top.tables(name))
        else:
            table = top.table(name)
            if table is not None:
                arguments[name] = _part(table, part, name)
    top.no_others()
    return _made(lambda: Deployment(**arguments), where, "")


def to_dict(deployment: Deployment) -> dict[str, Any]:
    """A deployment as plain tables: the pool, and every part of which anything is switched on, with all of its keys.

    A key whose value is None (no limit) is left out: TOML has no word for it.
    """
    plain = Deployment()
    found: dict[str, Any] = {}
    for name in TABLES:
        part = getattr(deployment, name)
        if name in LISTS:
            if part:
                found[name] = [_keys(one) for one in part]
        elif name == "pool" or part != getattr(plain, name):
            found[name] = _keys(part)
    return found


def dumps(deployment: Deployment, summary: str = "") -> str:
    """Write a deployment as TOML text; `loads` gives an equal one back.

    Parameters
    ----------
    deployment : Deployment
    summary : str
        A line that says what it is.
    """
    import tomli_w

    head = {"schema": SCHEMA, **({"summary": summary} if summary else {})}
    return tomli_w.dumps({**head, **to_dict(deployment)})


@cache
def _presets() -> Mapping[str, str]:
    return _files.preset_texts("equipoise.fleet")


def names() -> list[str]:
    """Names of the presets, sorted."""
    return list(_presets())


def preset_text(name: str) -> str:
    """The file of a preset, comments and sources included.

    Raises
    ------
    InputError
        No such preset.
    """
    if name not in _presets():
        raise InputError(f"no preset {name!r}", where="deployment", fix=nearest(name, names()))
    return _presets()[name]


def summary(name: str) -> str:
    """The line that says what a preset is."""
    return str(tomllib.loads(preset_text(name)).get("summary", ""))


def _part(table: Reader, part: type, name: str) -> Any:
    """One table as an object, every key checked for its type here and for its bounds there."""
    hints = get_type_hints(part)
    arguments = {}
    for field in fields(part):
        table.used.add(field.name)
        if field.name not in table.values:
            if field.default is MISSING and field.default_factory is MISSING:
                raise table.fail(f"{field.name} is missing", _expected(hints[field.name]))
            continue
        value, hint = table.values[field.name], hints[field.name]
        found = _typed(value, hint)
        if found is MISSING:
            raise table.fail(f"{field.name} = {_short(value)}", _expected(hint))
        arguments[field.name] = found
    table.no_others()
    return _made(lambda: part(**arguments), table.where, name)


def _made(make: Callable[[], T], where: str, table: str) -> T:
    """What `make` makes; its complaints say where the mistake stands."""
    try:
        return make()
    except InputError as error:
        words = error.what
        for prefix in (f"{table}.", f"{table.removesuffix('s')}."):
            words = words.removeprefix(prefix) if table else words
        raise InputError(words, where=where, fix=error.fix) from None


def _typed(value: Any, hint: Any) -> Any:
    """The value as a field of this type takes it; MISSING if it cannot be one."""
    origin = get_origin(hint)
    if origin is UnionType:
        for kind in get_args(hint):
            if kind is not NoneType and (found := _typed(value, kind)) is not MISSING:
                return found
        return MISSING
    if origin is Literal:
        return value if isinstance(value, str) else MISSING
    if origin is tuple:
        if not isinstance(value, list):
            return MISSING
        found = tuple(_typed(one, get_args(hint)[0]) for one in value)
        return MISSING if MISSING in found else found
    if hint is float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if good and (isinstance(value, float) or abs(value) < LARGEST) else MISSING
    if hint is int and isinstance(value, bool):
        return MISSING
    return value if isinstance(value, hint) else MISSING


def _expected(hint: Any) -> str:
    """What a field must be, in words."""
    if get_origin(hint) is UnionType:
        kinds = [_expected(kind).removeprefix("must be ") for kind in get_args(hint) if kind is not NoneType]
        return f"must be {' or '.join(kinds)}"
    if get_origin(hint) is Literal:
        return f"use one of {', '.join(get_args(hint))}"
    if get_origin(hint) is tuple:
        return f"must be a list of {WORDS[get_args(hint)[0]].removeprefix('must be a ')}s"
    return WORDS[hint]


def _keys(part: Any) -> dict[str, Any]:
    """All keys of a part but those without a value."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """As TOML can hold it: numpy's numbers as Python's, sequences as lists."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value.item() if hasattr(value, "item") else value


def _short(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LARGEST:
        return "a number of more than 30 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, a null byte
        return False

"""Reads the configuration of `equipoise serve`: a TOML file, and options over it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from equipoise.engines import WorkerSpec, parse_workers
from equipoise.errors import InputError, nearest
from equipoise.router.settings import Settings
from equipoise.serve.config import ServeConfig
from equipoise.serve.edge import Limits
from equipoise.serve.polling import Polling
from equipoise.serve.replicas.settings import Replicas
from equipoise.serve.settings import Forwarding, Timeouts

__all__ = ["TABLES", "read_config"]

T = TypeVar("T")

MOST_BYTES = 4 << 20
TABLES = {
    "router": Settings,
    "limits": Limits,
    "timeouts": Timeouts,
    "forwarding": Forwarding,
    "polling": Polling,
    "replicas": Replicas,
}


def read_config(path: str | Path | None, options: Mapping[str, Any]) -> ServeConfig:
    """A file and options over it.

    Parameters
    ----------
    path : path, optional
    options : mapping of str to value
        Names of `ServeConfig`, those of its parts as ``part.name``; None: not given.

    Raises
    ------
    InputError
        The file cannot be read, a key is unknown, a value of the wrong type or out of bounds.
    """
    values: dict[str, Any] = {}
    where = "options"
    if path is not None:
        where = str(path)
        values = _read(Path(path), where)
    given = {key: value for key, value in options.items() if value is not None}
    tables: dict[str, dict[str, Any]] = {}
    for name in TABLES:
        table = values.pop(name, {})
        if not isinstance(table, dict):
            raise InputError(f"{name} is no table", where=where, fix=f"write [{name}] and keys below it")
        tables[name] = dict(table)
    for key, value in given.items():
        part, dot, name = key.partition(".")
        if dot:
            tables[part][name] = value
        else:
            values[key] = value
    known = [f.name for f in fields(ServeConfig)]
    for key in values:
        if key not in known:
            raise InputError(f"unknown key {key!r}", where=where, fix=nearest(key, known))
    built: dict[str, Any] = {
        name: _part(kind, tables[name], f"{where}, [{name}]") for name, kind in TABLES.items()
    }
    workers = values.pop("workers", ())
    plain = _convert({k: v for k, v in values.items() if k not in TABLES}, where)
    return ServeConfig(workers=_workers(workers, where), **plain, **built)


def _read(path: Path, where: str) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"it cannot be read ({error.strerror})", where=where, fix="check the path"
        ) from error
    if len(data) > MOST_BYTES:
        raise InputError(f"{len(data):,} bytes", where=where, fix="it is no configuration")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"no TOML ({str(error)[:120]})", where=where, fix="mend it") from error


def _part(kind: type[T], values: Any, where: str) -> T:
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise InputError(f"unknown key {key!r}", where=where, fix=nearest(key, known))
    try:
        return msgspec.convert(values, kind, strict=True)
    except msgspec.ValidationError as error:
        raise InputError(
            str(error).replace("Object", "it"), where=where, fix="give a value of that type"
        ) from error


_PLAIN = {f.name: f.type for f in fields(ServeConfig) if f.name not in TABLES and f.name != "workers"}


def _convert(values: dict[str, Any], where: str) -> dict[str, Any]:
    kinds: dict[str, Any] = {
        "int": int,
        "float": float,
        "str": str,
        "bool": bool,
        "str | None": str | None,
        "int | None": int | None,
        "tuple[str, ...]": tuple[str, ...],
    }
    found = {}
    for key, value in values.items():
        try:
            found[key] = msgspec.convert(value, kinds[str(_PLAIN[key])], strict=True)
        except msgspec.ValidationError as error:
            shown = "..." if key in ("api_key", "admin_token") else repr(str(value)[:40])
            raise InputError(
                f"{key} = {shown}", where=where, fix=f"must be {_PLAIN[key]} ({error})"
            ) from error
    return found


def _workers(value: Any, where: str) -> tuple[WorkerSpec, ...]:
    if isinstance(value, tuple) and all(isinstance(one, WorkerSpec) for one in value):
        places = [(one.url, one.first_rank, one.worker_id) for one in value]
        for one, place in zip(value, places, strict=True):
            if places.count(place) > 1:
                raise InputError(f"{one.url} stands there twice", where="--worker-urls", fix="remove one")
        return value
    return parse_workers(json.dumps({"workers": value}, default=str), where)

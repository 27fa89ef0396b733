"""Workers as people write them: an address with options on a line, TOML, JSON; one spec each.

``URL[@RANK] [key=value ...]``. The keys are the fields of `WorkerSpec`. ``http://host:port@3`` is the notation of
sglang-router and vllm-router for rank 3 at that address.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from equipoise.engines.types import MAX_RANKS
from equipoise.errors import InputError, nearest

__all__ = ["WorkerSpec", "parse_address", "parse_line", "parse_workers"]

MAX_WORKERS = 100_000
NAME = re.compile(r"[A-Za-z0-9._:@/\[\]-]{1,200}\Z")


@dataclass(frozen=True, slots=True, order=True)
class WorkerSpec:
    """One address that serves ranks, as configuration or discovery says.

    Parameters
    ----------
    url : str
        ``http://host:port``, without a path.
    engine : str
        ``vllm``, ``sglang``, ``dynamo``, ``trtllm``; empty: the default of whoever reads it.
    ranks : int
        Ranks behind the address; 0: to be asked of the engine.
    instance : str
        Barrier it belongs to: addresses with the same name are ranks or nodes of one. Empty: one of its own.
    first_rank : int
        Number of its first rank in the instance.
    worker_id : str
        Dynamo's instance id.
    metrics_url : str
        Where its metrics are, if not at ``url``.
    """

    url: str
    engine: str = ""
    ranks: int = 0
    instance: str = ""
    first_rank: int = 0
    worker_id: str = ""
    metrics_url: str = ""


FIELDS = tuple(field.name for field in fields(WorkerSpec))


def parse_address(text: str, where: str | None = None) -> str:
    """A base address: scheme http or https, a host, a port; nothing that could steer a request elsewhere.

    Raises
    ------
    InputError
        Anything else: a path, a query, credentials, spaces.

    Examples
    --------
    >>> parse_address("http://10.0.0.1:8000/")
    'http://10.0.0.1:8000'
    """
    fix = "write http://HOST:PORT"
    if not text.isascii() or any(c <= " " or c in '\\"<>^`{|}\x7f' for c in text):
        raise InputError(f"the address {text[:80]!r} holds odd characters", where=where, fix=fix)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"the address {text[:80]!r} is none ({error})", where=where, fix=fix) from error
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain or port == 0:
        raise InputError(f"the address {text[:80]!r} is none", where=where, fix=fix)
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the address holds credentials",
            where=where,
            fix="give keys by their own option, not in addresses",
        )
    return f"{parts.scheme}://{parts.netloc.lower()}"


def parse_line(line: str, where: str | None = None) -> WorkerSpec:
    """One worker on one line.

    Examples
    --------
    >>> parse_line("http://a:8000 engine=sglang ranks=8").ranks
    8
    >>> parse_line("http://a:8000@3").first_rank
    3
    """
    first, *options = line.split()
    row: dict[str, Any] = {}
    url, at, rank = first.rpartition("@")
    if at and rank.isascii() and rank.isdigit():
        row = {"url": url, "first_rank": int(rank[:9]), "ranks": 1}
    else:
        row = {"url": first}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"{option[:80]!r} is no option", where=where, fix="write key=value")
        if key in ("ranks", "first_rank") and value.isascii() and value.isdigit():
            row[key] = int(value[:9])
        else:
            row[key] = value
    return _spec(row, where)


def parse_workers(text: str, where: str = "workers") -> tuple[WorkerSpec, ...]:
    """A list of workers, told apart by its first character: JSON, TOML (``[[workers]]``), or lines.

    Raises
    ------
    InputError
        It is none of these, a key is unknown, or two workers are the same.
    """
    body = text.lstrip("\ufeff \t\r\n")
    if re.search(r"^\s*(?:\[\[\s*workers\s*\]\]|workers\s*=)", text, re.MULTILINE):
        specs = _rows(_toml(text, where), where)
    elif body.startswith(("{", "[")):
        specs = _rows(_json(text, where), where)
    else:
        specs = [
            parse_line(line, f"{where}:{number}")
            for number, raw in enumerate(text.splitlines(), 1)
            if (line := raw.partition("#")[0].strip())
        ]
    if len(specs) > MAX_WORKERS:
        raise InputError(f"{len(specs):,} workers", where=where, fix=f"the limit is {MAX_WORKERS:,}")
    seen = set()
    for spec in specs:
        key = (spec.url, spec.first_rank, spec.worker_id)
        if key in seen:
            raise InputError(f"{spec.url} stands there twice", where=where, fix="remove one")
        seen.add(key)
    return tuple(sorted(specs))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON ({str(error)[:80]})", where=where, fix="mend it") from error


def _toml(text: str, where: str) -> Any:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no TOML ({str(error)[:80]})", where=where, fix="mend it") from error


def _rows(document: Any, where: str) -> list[WorkerSpec]:
    if isinstance(document, dict):
        unknown = [key for key in document if key != "workers"]
        if unknown:
            raise InputError(f"unknown key {unknown[0]!r}", where=where, fix="the only one is 'workers'")
        document = document.get("workers", [])
    if not isinstance(document, list):
        raise InputError("workers is no list", where=where, fix="write a list of addresses or tables")
    specs = []
    for number, row in enumerate(document, 1):
        place = f"{where}, worker {number}"
        if isinstance(row, str) and row.strip():
            specs.append(parse_line(row, place))
        elif isinstance(row, dict):
            specs.append(_spec(row, place))
        else:
            raise InputError(
                f"{str(row)[:40]!r} is no worker", where=place, fix="write an address or a table"
            )
    return specs


def _spec(row: Mapping[str, Any], where: str | None) -> WorkerSpec:
    for key in row:
        if key not in FIELDS:
            raise InputError(f"unknown key {key[:40]!r}", where=where, fix=nearest(key[:40], FIELDS))
    clean: dict[str, Any] = {}
    for key, value in row.items():
        if key in ("ranks", "first_rank"):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_RANKS:
                raise InputError(f"{key} = {str(value)[:40]!r}", where=where, fix=f"use 0 to {MAX_RANKS}")
        elif not isinstance(value, str):
            raise InputError(f"{key} = {str(value)[:40]!r} is no text", where=where, fix="write it in quotes")
        elif key in ("url", "metrics_url"):
            value = parse_address(value, where) if value or key == "url" else ""
        elif value and not NAME.match(value):
            raise InputError(
                f"{key} = {value[:40]!r}",
                where=where,
                fix="use letters, digits and . _ : @ / - (at most 200)",
            )
        clean[key] = value
    if "url" not in clean:
        raise InputError("a worker without url", where=where, fix="give url = 'http://HOST:PORT'")
    return WorkerSpec(**clean)


def describe(specs: Iterable[WorkerSpec]) -> str:
    """One line for a log."""
    listed = [f"{s.url}@{s.first_rank}" if s.first_rank else s.url for s in specs]
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")

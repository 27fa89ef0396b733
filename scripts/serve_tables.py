"""Tables of the pages on the servers: keys of the configuration, fields of the decision API, metrics."""

from __future__ import annotations

import asyncio
from dataclasses import MISSING, fields
from typing import Any

import msgspec

from deployment_tables import meanings
from equipoise.cost import load
from equipoise.engines import WorkerSpec
from equipoise.router import InstanceSpec, Router
from equipoise.serve import decide
from equipoise.serve.config import ServeConfig
from equipoise.serve.config_file import TABLES
from equipoise.serve.driver import Driver
from equipoise.serve.metrics import SECTIONS, families
from equipoise.serve.tally import Tally

__all__ = ["FIELDS", "KEYS", "METRICS", "fields_of", "keys_of", "metrics_of"]

KEYS: dict[str, type] = {
    "top": ServeConfig,
    "worker": WorkerSpec,
    **{name: kind for name, kind in TABLES.items() if name != "router"},
}
FIELDS = ("Ask", "Chosen", "Progress", "RankLoadReport", "Ended")
METRICS = tuple(SECTIONS)


def keys_of(name: str) -> list[list[str]]:
    """Key, default, meaning."""
    kind = KEYS[name]
    said = meanings(kind)
    rows = []
    for one in fields(kind):
        if name == "top" and (one.name in TABLES or one.name == "workers"):
            continue
        rows.append([f"`{one.name}`", _default(one), _plain(said[one.name])])
    return rows


def _default(one: Any) -> str:
    if one.default is not MISSING:
        value = one.default
    elif one.default_factory is not MISSING:
        value = one.default_factory()
    else:
        return "required"
    if value in (None, "", (), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"{value:,}"
    return f"`{value}`"


def _plain(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def fields_of(name: str) -> list[list[str]]:
    """Field, value, default, meaning."""
    schema = msgspec.json.schema(getattr(decide, name))["$defs"][name]
    needed = schema.get("required", [])
    rows = []
    for key, value in schema["properties"].items():
        default = "required" if key in needed else _shown(value.get("default"))
        rows.append([f"`{key}`", _value(value), default, _plain(value["description"])])
    return rows


def _shown(value: Any) -> str:
    return "" if value in (None, "", {}, []) else f"`{value}`"


def _value(value: dict[str, Any]) -> str:
    if "enum" in value:
        return " or ".join(f"`{word}`" for word in value["enum"])
    if "anyOf" in value:
        return " or ".join(_value(one) for one in value["anyOf"] if one.get("type") != "null")
    words = {"integer": "whole number", "number": "number", "string": "text", "object": "object"}
    text = words[value["type"]]
    for key, sign in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to")):
        if key in value and value[key] < 1 << 40:
            text += f" {sign} {value[key]:,}"
    return text


def metrics_of(section: str) -> list[list[str]]:
    """Name, kind, labels, meaning."""

    async def collect() -> list[list[str]]:
        router = Router([InstanceSpec("i", 2, 1000)], "least_batch", load("v1"))
        driver = Driver(router, timers=False)
        rows = []
        for one in families(driver, Tally(), section):
            name = f"{one.name}_total" if one.type == "counter" else one.name
            labels = ", ".join(f"`{label}`" for label in one._labelnames)
            rows.append([f"`{name}`", one.type, labels, _plain(one.documentation)])
        return sorted(rows)

    return asyncio.run(collect())

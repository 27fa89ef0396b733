"""`equipoise policies`: what rules there are and what they take."""

from __future__ import annotations

import json
from typing import Any

from cyclopts import App

from equipoise.cli.options import Json

__all__ = ["app"]

app = App(name="policies", help="List the placement policies and their parameters.")


@app.default
def policies(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List all policies, or one with its parameters.

    Parameters
    ----------
    name
        A policy to show in full.
    """
    from rich.console import Console
    from rich.table import Table

    from equipoise.policies import names, spec

    found = [spec(n) for n in (names() if name is None else [name])]
    if as_json:
        print(
            json.dumps({"schema": "equipoise.policies/1", "policies": [_plain(s) for s in found]}, indent=2)
        )
        return
    console = Console()
    if name is None:
        table = Table(box=None, pad_edge=False)
        for column in ("policy", "also", "rule"):
            table.add_column(column)
        for s in found:
            table.add_row(s.name, ", ".join(s.aliases), s.summary)
        console.print(table)
        return
    (s,) = found
    console.print(f"[bold]{s.name}[/]: {s.summary}", highlight=False)
    console.print(f"Source: {s.source}.", highlight=False)
    for p in s.parameters:
        bounds = (
            "|".join(p.choices) if p.choices else "true|false" if isinstance(p.default, bool) else _bounds(p)
        )
        console.print(
            f"  {p.name} = {_default(p.default)}  [dim]({bounds})[/]  {p.description}", highlight=False
        )


def _bounds(parameter: Any) -> str:
    kind = "whole number" if parameter.integer else "number"
    return "|".join([f"{kind}, {parameter.low:g} to {parameter.high:g}", *parameter.words])


def _default(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(s: Any) -> dict[str, Any]:
    return {
        "name": s.name,
        "aliases": list(s.aliases),
        "summary": s.summary,
        "source": s.source,
        "parameters": [
            {
                "name": p.name,
                "default": p.default,
                "description": p.description,
                "choices": list(p.choices),
                "words": list(p.words),
            }
            for p in s.parameters
        ],
    }

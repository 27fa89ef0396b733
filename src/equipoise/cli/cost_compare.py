"""`equipoise cost compare`: step costs side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from equipoise.cli.options import Json

if TYPE_CHECKING:
    from rich.console import Console

    from equipoise.cost.side_by_side import SideBySide

__all__ = ["compare"]

WIDEST = 18
"""Characters of a cost's name in the head of a table."""


def compare(costs: Annotated[tuple[str, ...], Parameter(required=True)], /, *, as_json: Json = False) -> None:
    """Put step costs side by side: prices, exchange rates, step times on a grid of loads.

    Says in words which question about placement the difference changes.

    Parameters
    ----------
    costs
        Two or more of: a preset (v1, h200, ...), MODEL:v1, MODEL:v2, a TOML or JSON file.
    """
    from equipoise.cost import load
    from equipoise.cost.side_by_side import side_by_side

    found = side_by_side([load(name) for name in costs])
    if as_json:
        import json

        print(json.dumps(found.to_dict(), indent=2, allow_nan=False, ensure_ascii=False))
        return
    from rich.console import Console

    _print(found, Console(highlight=False))


def _print(found: SideBySide, console: Console) -> None:
    from equipoise.cli.cost_tables import plain_table, print_formula, print_list
    from equipoise.cost.side_by_side import BATCHES, CONTEXTS

    for name, cost in zip(found.names, found.costs, strict=True):
        print_formula(console, f"{name}, in microseconds", cost)
    names = [_head(n) for n in found.names]
    table = plain_table()
    table.add_column("over all terms, us", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", overflow="fold")
    totals = found.totals()
    for key, title in (
        ("constant", "fixed"),
        ("per_request", "a request more"),
        ("per_100k_context", "100k context tokens more"),
        ("per_100k_saturated", "100k tokens below saturation"),
    ):
        if any(t[key] for t in totals):
            table.add_row(title, *(_number(t[key]) for t in totals))
    table.add_row("a request, in context tokens", *(_rate(r) for r in found.rates))
    table.add_row("fixed share at 32 x 32k, %", *(f"{100 * s:.1f}" for s in found.fixed_shares))
    console.print(table)
    console.print()

    grid = plain_table("Step time, us, with this load on every rank")
    grid.add_column("batch", justify="right", no_wrap=True)
    grid.add_column("context", justify="right", no_wrap=True)
    for name in names:
        grid.add_column(name, justify="right", overflow="fold")
    grid.add_column("largest /\nsmallest", justify="right", no_wrap=True)
    *most, _ = found.largest
    for i, batch in enumerate(BATCHES):
        for j, context in enumerate(CONTEXTS):
            grid.add_row(
                f"{batch}" if j == 0 else "",
                f"{context:,}",
                *(_number(t) for t in found.time_us[:, i, j]),
                f"{found.ratio[i, j]:.2f}",
                style="bold" if [batch, context] == most else "",
            )
    console.print(grid)
    console.print()
    print_list(console, "What the difference changes", (words for _, words in found.questions()))


def _head(name: str) -> str:
    """A long name broken where it can be."""
    lines = [""]
    for word in name.replace("-", "-\0").replace(" ", " \0").split("\0"):
        if len(lines[-1]) + len(word) > WIDEST and lines[-1]:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _rate(rate: float) -> str:
    return "free" if math.isinf(rate) else f"{float(f'{rate:.4g}'):,.0f}"

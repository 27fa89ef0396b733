"""Step costs and their derivation as tables for people, at 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.cost import PrefillCost, StepCost
from equipoise.cost.summary import barriers, breakdown
from equipoise.models import ModelShape

__all__ = [
    "plain_table",
    "print_cost",
    "print_derivation",
    "print_formula",
    "print_list",
    "print_prefill",
    "print_presets",
]


def print_derivation(shape: ModelShape, costs: Mapping[str, StepCost], b0: int) -> None:
    """Print the breakdown, the formulas and what follows from them."""
    console = Console(highlight=False)
    experts = (
        f", {shape.experts:,} experts, {shape.experts_per_token} a token" if shape.experts else ", dense"
    )
    console.print(
        Text(f"{shape.name} ({shape.architecture}): {shape.layers} attention layers{experts}", "bold")
    )
    console.print(Text(shape.source, "dim"))
    console.print()
    console.print(_work_table(shape))
    if any(w.saturation_tokens is not None for c in shape.classes for w in c.work):
        console.print(
            Text("batch > n: in proportion to the context up to n tokens, constant past them", "dim")
        )
    console.print()
    names = {"v1": "V1, all work linear", "v2": f"V2, projections frozen at {b0} tokens"}
    for kind, cost in costs.items():
        print_formula(console, names[kind], cost)
    prefill = next(iter(costs.values())).prefill
    if prefill is not None:
        print_prefill(console, prefill)
    for kind, cost in costs.items():
        console.print(f"{kind.upper()}: {_exchange_rate(cost)}")
    if prefill is not None:
        console.print(_crossover(prefill, shape.max_context_tokens))
    layouts = ", ".join(f"{k} {shape.kv_bytes_per_token(k):,.6g}" for k in shape.kv_layouts)
    console.print(
        f"KV cache, bytes per token: {shape.kv_bytes_per_token():,.9g} in {shape.kv_layout} ({layouts})"
    )
    batch = shape.global_batch_for_m(64)
    if batch is not None:
        console.print(f"Each expert meets 64 tokens at a global decode batch of {batch:,}")
    clock = next(iter(costs.values())).us_per_unit
    console.print(f"Clock of timed replay: {clock:g} us per request (--us-per-unit)")


def _work_table(shape: ModelShape) -> Table:
    table = plain_table("Multiply-adds of one layer, per decode token")
    table.add_column("class", no_wrap=True)
    table.add_column("layers", justify="right", no_wrap=True)
    table.add_column("work", no_wrap=True)
    table.add_column("multiply-adds", justify="right", no_wrap=True)
    table.add_column("grows with", no_wrap=True)
    table.add_column("batched\nacross\nrequests", no_wrap=True)
    for layer in shape.classes:
        for i, row in enumerate(breakdown(layer)):
            per = " /token" if row["grows_with"] == "context" else ""
            past = f" > {row['saturation_tokens']:,}" if row["saturation_tokens"] is not None else ""
            table.add_row(
                layer.name if i == 0 else "",
                f"{layer.count}" if i == 0 else "",
                row["kind"],
                f"{row['multiply_adds']:,}{per}",
                f"{row['grows_with']}{past}",
                "yes" if row["batched_across_requests"] else "no",
            )
    return table


def plain_table(title: str | None = None) -> Table:
    """Few lines, so that wide numbers fit into 80 columns."""
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )


def print_cost(cost: StepCost) -> None:
    """Print one step cost: formula, terms, exchange rate, source."""
    console = Console(highlight=False)
    print_formula(console, cost.name, cost)
    table = plain_table()
    for title in ("term", "weight", "per request", "per 100k context", "batch price", "saturations"):
        table.add_column(title, justify="right" if title.startswith(("weight", "per")) else "left")
    for term in cost.terms:
        batch = "linear"
        if term.batch_table:
            batch = f"table of {len(term.batch_table)}"
        elif term.batch_floor:
            batch = f"flat below {term.batch_floor}"
        bounds = "\n".join(f"{s.tokens:,}: {s.per_100k:.6g}" for s in term.saturations)
        prices = (term.weight, term.per_request, term.per_100k_context)
        table.add_row(term.name, *(f"{p:.6g}" for p in prices), batch, bounds or "none")
    console.print(table)
    console.print()
    barrier = "slowest rank of every term" if cost.barrier == "layer" else "slowest rank of the whole step"
    unit = "us" if cost.unit == "us" else f"request ({cost.us_per_unit:g} us)"
    console.print(f"unit {unit}; barrier {cost.barrier}: {barrier}")
    console.print(f"{_exchange_rate(cost)[:1].upper()}{_exchange_rate(cost)[1:]}")
    fitted = _fitted(cost.metadata.get("fit"))
    if fitted:
        console.print(fitted)
    if cost.source:
        console.print(Text(f"Source: {cost.source}", "dim"))
    if cost.prefill is not None:
        console.print()
        print_prefill(console, cost.prefill)
        console.print(_crossover(cost.prefill))
        if cost.prefill.source:
            console.print(Text(f"Source: {cost.prefill.source}", "dim"))


def print_presets(costs: Mapping[str, StepCost], shapes: Mapping[str, ModelShape]) -> None:
    """Print the names of all presets."""
    console = Console(highlight=False)
    table = plain_table("Costs, for --cost and 'cost show'")
    table.add_column("name")
    table.add_column("formula")
    for name, cost in costs.items():
        table.add_row(name, cost.formula())
    console.print(table)
    console.print()
    table = plain_table("Models, for 'cost derive --model'")
    table.add_column("name")
    table.add_column("layers")
    for name, shape in shapes.items():
        table.add_row(name, ", ".join(f"{c.count} {c.name}" for c in shape.classes))
    console.print(table)


def print_formula(console: Console, title: str, cost: StepCost) -> None:
    """One line per barrier: a sum of maxima reads better in a column."""
    console.print(Text(title, "bold"))
    _print_sum(console, [_broken(part) for part in barriers(cost.formula())])
    console.print()


def _print_sum(console: Console, parts: list[str]) -> None:
    lead = "  cost = "
    for part in parts:
        console.print(f"{lead}{part}", soft_wrap=True)
        lead = "       + "


def print_prefill(console: Console, prefill: PrefillCost) -> None:
    """Formula of prefill, a line or more a barrier, and what its letters are."""
    bounded = prefill.saturation_tokens
    console.print(Text("Prefill, bounded reads priced exactly" if bounded else "Prefill", "bold"))
    _print_sum(console, [_broken(part) for part in barriers(prefill.formula())])
    letters = "T: prompt tokens of a rank, P: (query, key) pairs they attend to"
    if bounded:
        letters += ";\nSn: the same pairs, no query reading more than n keys"
    console.print(Text(letters, "dim"))
    console.print()


def _broken(body: str) -> str:
    """Break a long barrier before one of its pluses."""
    glued = body.replace(" * ", "\xa0*\xa0").replace("+ ", "+\xa0")  # no place to break for textwrap
    return textwrap.fill(glued, 80 - len("  cost = "), subsequent_indent=" " * 13).replace("\xa0", " ")


def _crossover(prefill: PrefillCost, max_context_tokens: int | None = None) -> str:
    tokens = prefill.crossover_tokens
    if tokens is None:
        return "Prefill: linear in the prompt"
    beyond = ""
    if max_context_tokens is not None and tokens > max_context_tokens:
        beyond = f"\n(beyond the longest context, {max_context_tokens:,})"
    return f"Prefill: a prompt of {tokens:,} tokens pays as much for its pairs as for the rest{beyond}"


def _exchange_rate(cost: StepCost) -> str:
    rate = cost.request_in_context_tokens
    if math.isinf(rate):
        return "context is free"
    if rate == 0:
        return "a request costs only what its context costs"
    return f"one request costs as much as {rate:,.0f} context tokens"


def _fitted(fit: Any) -> str:
    """How sure a fitted cost is, from what its file says of the fit; empty where it says nothing."""
    if not isinstance(fit, Mapping):
        return ""
    words = []
    rate = fit.get("request_in_context_tokens")
    if isinstance(rate, Mapping) and all(isinstance(rate.get(end), int | float) for end in ("low", "high")):
        words.append(f"a request is worth {rate['low']:,.0f} to {rate['high']:,.0f} tokens (95 %)")
    error = fit.get("heldout_mape")
    if isinstance(error, int | float):
        words.append(f"held-out error {100 * error:.1f} %")
    return f"Fitted: {'; '.join(words)}" if words else ""


def print_list(console: Console, title: str, lines: Iterable[str]) -> None:
    """Print a title and a bullet a line; nothing where there are none."""
    rows = list(lines)
    if not rows:
        return
    console.print(Text(title, "bold"))
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column()
    for line in rows:
        table.add_row("-", line)
    console.print(table)
    console.print()

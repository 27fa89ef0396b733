"""A calibration in the terminal, at 80 columns: one fit in full, many as a line each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.calibrate.calibration import Calibration
from equipoise.calibrate.groups import told_apart, words
from equipoise.calibrate.knobs import BestZ
from equipoise.calibrate.result import FitResult, ValueInterval
from equipoise.calibrate.words import coverage_words, no_rate, quantity, share, span
from equipoise.cli.cost_tables import plain_table, print_formula, print_list, print_prefill

__all__ = ["print_fit", "print_fits", "print_groups"]

PRICES_WIDTH = 50
"""Columns that five numbers a group take; where a name does not fit beside them, the prices are left to --json."""


def print_fit(one: Calibration, console: Console) -> None:
    """Print everything a fit has to say."""
    result = one.result
    print_formula(console, f"{result.cost.name}, in microseconds", result.cost)
    console.print(_coefficients(result))
    console.print()
    _facts(one, console)
    print_list(console, "Not identified", (_unidentified(u) for u in result.unidentified))
    _prefill(one, console)
    _knobs(one, console)
    print_list(console, "Notes", result.notes)
    console.print(f"Levels of proof: {', '.join(result.levels)}", style="dim")


def print_fits(found: Sequence[Calibration], console: Console) -> None:
    """Print a line a fit, and what all have in common above."""
    common, own = told_apart([f.result.group for f in found])
    console.print(Text(f"{len(found)} groups: {words(common)}", "bold"))
    console.print()
    names = [words(labels) for labels in own]
    prices = max(map(len, names)) + PRICES_WIDTH <= console.width
    titles = ["fixed, us", "us a\nrequest", "us a\n100k"] if prices else []
    table = plain_table()
    table.add_column("group", overflow="fold")
    for title in (*titles, "a request\nin tokens", "held-out\nerror, %"):
        table.add_column(title, justify="right", no_wrap=True)
    for one, name in zip(found, names, strict=True):
        result = one.result
        shown = [quantity(v) for v in _totals(result)] if prices else []
        rate, error = quantity(result.exchange_rate.value), f"{100 * result.heldout_mape:.1f}"
        table.add_row(name, *shown, rate, error)
    console.print(table)
    console.print()
    errors = sorted(f.result.heldout_mape for f in found)
    console.print(
        f"Held-out error: median {share(median(errors))}, from {share(errors[0])} to {share(errors[-1])}.",
        soft_wrap=True,
    )
    lacking = sum(bool(f.result.unidentified) for f in found)
    if lacking:
        console.print(
            f"In {lacking} of {len(found)} groups a coefficient is not identified (--json says which)."
        )
    console.print("One group in full: --group label=value, as often as needed.", style="dim")


def print_groups(groups: Sequence[tuple[Mapping[str, Any], int]], console: Console) -> None:
    """Print the groups of a source, fitted or not."""
    common, own = told_apart([labels for labels, _ in groups])
    console.print(Text(f"{len(groups)} groups: {words(common) or 'no label in common'}", "bold"))
    table = plain_table()
    table.add_column("group", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    for labels, (_, rows) in zip(own, groups, strict=True):
        table.add_row(words(labels) or "the only one", f"{rows:,}")
    console.print(table)
    names = dict.fromkeys(name for labels, _ in groups for name in labels)
    if names:
        console.print(f"Labels for --group: {', '.join(names)}", style="dim")


def _coefficients(result: FitResult) -> Table:
    table = plain_table()
    table.add_column("coefficient", no_wrap=True)
    table.add_column("us", justify="right", no_wrap=True)
    table.add_column("95 % interval, all at once", justify="right", no_wrap=True)
    for name, value in result.coefficients.items():
        low, high = result.intervals[name]
        table.add_row(name, quantity(value), span(low, high))
    return table


def _facts(one: Calibration, console: Console) -> None:
    result = one.result
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    rate, fixed = result.exchange_rate, result.fixed_share
    table.add_row("One request", no_rate(result) or _rate(rate))
    table.add_row("Fixed share", f"{share(fixed.value)} of a mean step{_within(fixed, share)}")
    table.add_row("Held-out error", f"{share(result.heldout_mape)}; left out: {result.heldout_regions}")
    for name, error in result.heldout_mape_by_regime.items():
        table.add_row("", f"{share(error):>7}  {name}")
    table.add_row("In-sample error", share(result.in_sample_mape))
    for beyond in result.extrapolation:
        table.add_row("Extrapolated", f"{share(beyond.mape)}, {beyond.beyond} ({beyond.steps:,} steps)")
    table.add_row("Form", f"{result.form}, of {len(result.candidates)} tried")
    table.add_row("Fitted to", _fitted(result))
    for number, line in enumerate(coverage_words(result)):
        table.add_row("" if number else "Covered", line)
    for number, drop in enumerate(sorted(result.dropped, key=lambda d: -d.rows)):
        where = f" (first: {_short_place(drop.first)})" if drop.first else ""
        rows = f"{drop.rows:,} row{'s' if drop.rows > 1 else ''}"
        table.add_row("" if number else "Left out", f"{rows}: {drop.reason}{where}")
    console.print(table)
    console.print()


def _rate(rate: ValueInterval) -> str:
    return f"costs as much as {quantity(rate.value)} context tokens{_within(rate, quantity)}"


def _within(interval: ValueInterval, shown: Any) -> str:
    if math.isfinite(interval.low) and interval.high == math.inf:
        return f" ({shown(interval.low)} or more)"
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return ""
    return f" ({shown(interval.low)} to {shown(interval.high)})"


def _fitted(result: FitResult) -> str:
    ranks = f"{result.ranks} rank{'s' if result.ranks > 1 else ''}"
    return f"{result.rows:,} rows, {result.steps:,} steps of {ranks}; {result.format}"


def _short_place(place: str) -> str:
    """The file's name without its folders."""
    return place.rpartition("/")[2]


def _unidentified(missing: Any) -> str:
    name = getattr(missing, "coefficient", None) or missing.name
    return f"{name}: {missing.reason}. Probe: {missing.probe}."


def _prefill(one: Calibration, console: Console) -> None:
    found = one.prefill
    if found is None:
        if one.prefill_missing:
            print_list(console, "No prefill cost", [one.prefill_missing])
        return
    print_prefill(console, found.cost)
    table = plain_table()
    table.add_column("coefficient", no_wrap=True)
    table.add_column("95 % interval, us", justify="right", no_wrap=True)
    for name, (low, high) in found.intervals.items():
        table.add_row(name, span(low, high))
    console.print(table)
    console.print(
        f"{found.steps:,} prefill steps; held-out error {share(found.heldout_mape)}; left out: {found.held_out}"
    )
    console.print()
    print_list(console, "Not identified in prefill", (_unidentified(u) for u in found.unidentified))


def _knobs(one: Calibration, console: Console) -> None:
    knobs = one.knobs
    console.print(Text("Knobs that follow", "bold"))
    missing = no_rate(one.result)
    if missing:
        console.print(f"  none: {missing}")
    else:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        x, w = knobs.request_equivalent_tokens, knobs.decode_active_request_weight
        table.add_row("  tokens + x requests", f"x = {quantity(x.value)}{_within(x, quantity)}")
        table.add_row(
            "  Dynamo, blocks + w requests",
            f"w = {quantity(w.value)}{_within(w, quantity)}, for blocks of "
            f"{knobs.block_tokens} tokens: --router-decode-active-request-weight",
        )
        if one.z is not None:
            table.add_row("  DualPath", _z(one.z))
        console.print(table)
    console.print()


def _z(z: BestZ) -> str:
    low, high = z.within()
    flat = (
        f"z from {low:g} to {high:g} costs less than a point more"
        if low < high
        else "no other z tried is near"
    )
    gain = z.gain
    beats = f"not shown to be better than z = {z.default_z:g}"
    if z.gain_is_shown:
        bounds = f"{100 * gain.low:.2f} to {100 * gain.high:.2f}"
        beats = f"{100 * gain.value:.2f} points less than z = {z.default_z:g} ({bounds})"
    return (
        f"z = {z.z:g}; {flat}. {100 * z.excess.value:.2f} % excess, {beats}, "
        f"on {z.trace}, {z.ranks} ranks, {z.batch} requests a rank"
    )


def _totals(result: FitResult) -> tuple[float, float, float]:
    """Constant, price of one more request and of 100k more context tokens, over all terms."""
    cost = result.cost
    request = sum(t.weight * t.per_request for t in cost.terms)
    context = sum(t.weight * t.per_100k_context for t in cost.terms)
    return cost.constant, request, context

"""Finished runs side by side in the terminal: a table a pair, then what it shows, at 80 columns and at 60."""

from __future__ import annotations

import math
from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from equipoise.study.pairs.measured import QUANTITIES, Measured, Pair, RunComparison
from equipoise.study.pairs.words import TIMES, amount, change, method_words, pair_words, short_verdict, signed

__all__ = ["pair_table", "paragraph", "print_pairs"]


def print_pairs(comparison: RunComparison, console: Console) -> None:
    """Print everything that was found."""
    for letter, source in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", comparison.sources, strict=False):
        console.print(Text(f"{letter}  {source}", overflow="fold"))
    for pair in comparison.pairs:
        console.print()
        console.print(Text(_head(pair), "bold"))
        console.print(pair_table(pair, console.width))
        console.print()
        for sentence in (*pair_words(pair), *pair.notes):
            paragraph(console, sentence)
        paragraph(console, method_words(pair), "dim")
    console.print()
    paragraph(console, _legend(comparison), "dim")


def _head(pair: Pair) -> str:
    """Who is compared with whom, and in which cell."""
    a, b = pair.letters
    names = [run.cell.get("label") for run in (pair.a, pair.b)]
    sides = [f"{letter} ({label})" if label else letter for letter, label in zip((a, b), names, strict=True)]
    if names[0] == names[1]:
        sides = [a, b]
    cell = ", ".join(_cell(k, v) for k, v in pair.cell.items() if k != "information")
    return f"{sides[1]} against {sides[0]}" + (f": {cell}" if cell else "")


def _cell(key: str, value: object) -> str:
    return str(value) if key in ("label", "trace", "cost", "mode") else f"{key.replace('_', ' ')} {value}"


def pair_table(pair: Pair, width: int = 80) -> Table:
    """A row a number: both values, the difference, the change with its interval, a word.

    Columns that there is no room for are left out: first the difference, then the word, then the values.
    """
    a, b = pair.letters
    columns: list[tuple[str, Callable[[Measured], str], int]] = [
        (a, lambda m: amount(m, m.a), 1),
        (b, lambda m: amount(m, m.b), 1),
        (f"{b} - {a}", lambda m: signed(m, m.difference.mean), 3),
        ("%", lambda m: change(m.ratio[0]), 0),
        ("interval, %", _interval, 0),
        ("shown", short_verdict, 2),
    ]
    for leave in (4, 3, 2, 1):
        table = _table(pair, [c for c in columns if c[2] < leave])
        if Measurement.get(Console(width=1000), Console(width=1000).options, table).maximum <= width:
            break
    return table


def _table(pair: Pair, columns: list[tuple[str, Callable[[Measured], str], int]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for title, _, _ in columns:
        table.add_column(title, justify="left" if title == "shown" else "right", no_wrap=True)
    last = ""
    for m in pair.measured:
        if m.quantity in TIMES and m.quantity != last:
            table.add_row(QUANTITIES[m.quantity])
        title = f"  {m.statistic}" if m.quantity in TIMES else _title(m)
        style = {"better": "green", "worse": "red"}.get(m.verdict, "")
        table.add_row(title, *(Text(show(m), style if t == "shown" else "") for t, show, _ in columns))
        last = m.quantity
    return table


def _title(m: Measured) -> str:
    return {"excess": "excess, %", "goodput_per_s": "goodput/s", "preemptions": "preemptions"}.get(
        m.quantity, QUANTITIES[m.quantity]
    )


def _interval(m: Measured) -> str:
    """Of the change; where that is not known, of the difference, in brackets."""
    if m.difference.method == "none":
        return "n/a"
    _, low, high = m.ratio
    if math.isfinite(low) and math.isfinite(high):
        return f"{change(low)} to {change(high)}"
    return f"[{signed(m, m.difference.low)} to {signed(m, m.difference.high)}]"


def _legend(comparison: RunComparison) -> str:
    n = comparison.intervals
    if not n:
        return "No interval could be made."
    together = "It holds" if n == 1 else f"All {n} hold at once"
    brackets = (
        " In brackets: of the difference, where there is no ratio."
        if any(_interval(m).startswith("[") for p in comparison.pairs for m in p.measured)
        else ""
    )
    return (
        f"Intervals: {together} with 95 % confidence. 'not shown' is not 'equal': the runs may be too short to "
        f"tell{'' if comparison.margin else '; --margin-percent asks for equality'}.{brackets}"
    )


def paragraph(console: Console, words: str, style: str = "") -> None:
    """A sentence or more, wrapped at words."""
    for line in Text(words, style).wrap(console, max(20, console.width)):
        line.rstrip()
        console.print(line)

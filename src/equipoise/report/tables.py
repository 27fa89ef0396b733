"""A comparison in the terminal, at 80 columns: a table a setting, the group study, the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.report.numbers import MISSING, half_width, percent, ratio, short
from equipoise.report.views import group_cell, tied
from equipoise.study import Cell, Comparison, Setting, setting_words, verdicts

__all__ = ["group_tables", "print_tables", "setting_table"]

BEST, TIED = "*", "~"
WIDE = 104
"""Columns from which the latencies of `timed` runs stand in the same rows."""


def print_tables(comparison: Comparison, console: Console) -> None:
    """Print everything a comparison has to say to a terminal.

    With several numbers of groups there is one full table a trace and cost, for the first of them, and the group
    tables show all.
    """
    first: dict[tuple[str, str], Setting] = {}
    for setting in comparison.settings():
        first.setdefault((setting.trace, setting.cost.name), setting)
    several = len(comparison.settings()) > len(first)
    ascii_only = console.options.ascii_only
    for setting in first.values():
        timed = setting.mode == "timed"
        wide = timed and console.width >= WIDE
        console.print(Text(setting_words(setting), "bold"))
        console.print(setting_table(comparison, setting, latency=wide, ascii_only=ascii_only))
        console.print()
        if timed and not wide:
            console.print(latency_table(comparison, setting))
            console.print()
    if several:
        for table in group_tables(comparison):
            console.print(table)
            console.print()
    console.print(Text(_legend(comparison, ascii_only), "dim"))
    for setting, sentence in zip(comparison.settings(), verdicts(comparison), strict=True):
        head = setting_words(setting)
        console.print()
        console.print(Text(head, "bold"))
        body = Text(sentence.removeprefix(f"{head}: "))
        for line in body.wrap(console, max(20, console.width - 2)):
            line.rstrip()
            console.print(Text("  ") + line)


def setting_table(
    comparison: Comparison, setting: Setting, *, latency: bool = False, ascii_only: bool = False
) -> Table:
    """One row a policy: excess, balance, imbalance of B and C, bubble; latencies too if asked for."""
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("policy", overflow="fold")
    head = (
        "excess\n%",
        "+/-" if ascii_only else "±",
        "balance\n%",
        "max/mean\nbatch",
        "max/mean\ncontext",
        "bubble\n%",
    )
    for title in head + (LATENCY_HEAD if latency else ()):
        table.add_column(title, justify="right", no_wrap=True)
    best = comparison.best(setting)
    for cell in comparison.of(setting):
        row = [
            percent(cell.excess.mean),
            half_width(cell.excess),
            percent(cell.mean("balance"), 1),
            ratio(cell.mean("max_over_mean_batch")),
            ratio(cell.mean("max_over_mean_context")),
            percent(cell.mean("bubble_share"), 1),
            *(_latencies(cell) if latency else ()),
        ]
        table.add_row(_mark(comparison, cell), _label(cell), *row, style="bold" if cell is best else "")
    return table


LATENCY_HEAD = ("TPOT\np50 ms", "TPOT\np99 ms", "wait\np99 ms")


def latency_table(comparison: Comparison, setting: Setting) -> Table:
    """The latencies of a ``timed`` setting by themselves, for a narrow terminal."""
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("policy", overflow="fold")
    for title in LATENCY_HEAD:
        table.add_column(title, justify="right", no_wrap=True)
    best = comparison.best(setting)
    for cell in comparison.of(setting):
        style = "bold" if cell is best else ""
        table.add_row(_mark(comparison, cell), _label(cell), *_latencies(cell), style=style)
    return table


def group_tables(comparison: Comparison) -> list[Table]:
    """For every trace and cost: excess of each policy, and each way to choose a group, by number of groups."""
    by_cost: dict[tuple[str, str], list[Setting]] = {}
    for setting in comparison.settings():
        by_cost.setdefault((setting.trace, setting.cost.name), []).append(setting)
    return [_group_table(comparison, settings) for settings in by_cost.values() if len(settings) > 1]


def _group_table(comparison: Comparison, settings: Sequence[Setting]) -> Table:
    counts = list(dict.fromkeys(s.pool.groups for s in settings))
    ways = list(dict.fromkeys(s.group_policy for s in settings if s.pool.groups > 1))
    title = f"{settings[0].trace}, {settings[0].cost.name}: excess % by number of groups"
    table = _table(title)
    table.add_column("policy", overflow="fold")
    if len(ways) > 1:
        table.add_column("group by")
    for n in counts:
        table.add_column(f"{n} ", justify="right", no_wrap=True)
    for policy in comparison.plan.policies:
        for w, way in enumerate(ways):
            numbers = []
            for n in counts:
                cell = group_cell(comparison, settings, policy.label, n, way)
                best = comparison.best(cell.setting) is cell
                mark = BEST if best and len(comparison.plan.policies) > 1 else " "
                numbers.append(Text(percent(cell.excess.mean) + mark, "bold" if best else ""))
            label = Text(policy.label if w == 0 else "")
            table.add_row(label, *([Text(way)] if len(ways) > 1 else []), *numbers)
    return table


def _latencies(cell: Cell) -> list[str]:
    tpot, wait = cell.percentiles("tpot_ms"), cell.percentiles("queue_wait_ms")
    return [
        MISSING if tpot is None else short(tpot["p50"]),
        MISSING if tpot is None else short(tpot["p99"]),
        MISSING if wait is None else short(wait["p99"]),
    ]


def _label(cell: Cell) -> Text:
    return Text(cell.policy.label)


def _mark(comparison: Comparison, cell: Cell) -> str:
    if cell is comparison.best(cell.setting):
        return BEST if len(comparison.of(cell.setting)) > 1 else ""
    return TIED if tied(comparison, cell) else ""


def _legend(comparison: Comparison, ascii_only: bool) -> str:
    """What the columns and marks mean, in lines that fit 80 columns."""
    seeds = comparison.plan.seeds
    methods = {c.excess.method for c in comparison.cells}
    spread = f"95 % interval, {seeds} seeds"
    if "blocks" in methods:
        spread = "95 % interval, blocks of one run"
    elif "none" in methods:
        spread = "one short run has no interval"
    sign = "+/-" if ascii_only else "±"
    lines = ["excess: cost over ideal; balance: ideal over cost", f"{sign}: {spread}"]
    if len(comparison.plan.policies) > 1:
        lines += [
            f"{BEST} least excess",
            f"{TIED} not told apart from it: the interval of the difference covers 0",
        ]
    return "\n".join(lines)


def _table(title: str | None = None) -> Table:
    """Few lines, so that the numbers fit into 80 columns."""
    return Table(
        title=None if title is None else Text(title, "bold"),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )

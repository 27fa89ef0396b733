"""A comparison in the terminal: a table a setting, the group study, the verdicts; all of it at 80 columns."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from equipoise.report.numbers import MISSING, half_width, percent, ratio, short
from equipoise.report.views import group_cell, tied
from equipoise.study import Cell, Comparison, Setting, setting_words, verdicts
from equipoise.study.bounds import BASELINE, share_of

__all__ = ["group_tables", "plain_table", "print_tables", "setting_table"]

BEST, TIED = "*", "~"
WIDE = 104
"""Columns from which the latencies of `timed` runs stand in the same rows."""
LONG_WORD = 17
"""Longest word of a label that is never folded: ``average=projected``."""


def print_tables(comparison: Comparison, console: Console) -> None:
    """Print everything a comparison has to say to a terminal.

    With several numbers of groups there is one full table a trace and cost, for the first of them, and the group
    tables show all. Columns that a narrow terminal has no room for are left out, and named below the tables.
    """
    first: dict[tuple[str, str, str | None], Setting] = {}
    for setting in comparison.settings():
        first.setdefault((setting.trace, setting.cost.name, setting.deployment_name), setting)
    several = len(comparison.settings()) > len(first)
    ascii_only = console.options.ascii_only
    missing: dict[str, None] = {}
    for setting in first.values():
        timed = setting.mode != "saturated"
        wide = timed and console.width >= WIDE
        cells = comparison.of(setting)
        columns = _costs(cells, ascii_only) + _won(comparison, cells) + (_latencies(cells) if wide else [])
        parts = [columns, _latencies(cells)] if timed and not wide else [columns]
        console.print(Text(setting_words(setting), "bold"))
        for part in parts:
            table, left_out = _rows(comparison, cells, part, console.width)
            missing |= dict.fromkeys(left_out)
            console.print(table)
            console.print()
    if several:
        for table in group_tables(comparison, console.width):
            console.print(table)
            console.print()
    console.print(Text(_legend(comparison, ascii_only, list(missing)), "dim"))
    for setting, sentence in zip(comparison.settings(), verdicts(comparison), strict=True):
        head = setting_words(setting)
        console.print()
        console.print(Text(head, "bold"))
        body = Text(sentence.removeprefix(f"{head}: "))
        for line in body.wrap(console, max(20, console.width - 2)):
            line.rstrip()
            console.print(Text("  ") + line)


def setting_table(comparison: Comparison, setting: Setting, width: int = 80) -> Table:
    """One row a policy: excess, balance, imbalance of B and C, bubble, as far as they fit."""
    cells = comparison.of(setting)
    return _rows(comparison, cells, _costs(cells, ascii_only=False), width)[0]


@dataclass(frozen=True, slots=True)
class _Column:
    """Numbers of one kind, a value a cell."""

    title: str
    values: list[str]
    rank: int
    """0 stays; of the others the highest goes first where the terminal is narrow."""

    @property
    def name(self) -> str:
        return self.title.replace("\n", " ").removesuffix(" %")


def _costs(cells: Sequence[Cell], ascii_only: bool) -> list[_Column]:
    """Excess, balance, imbalance of B and C, bubble."""
    return [
        _Column("excess\n%", [percent(c.excess.mean) for c in cells], 0),
        _Column("+/-" if ascii_only else "±", [half_width(c.excess) for c in cells], 1),
        _Column("balance\n%", [percent(c.mean("balance"), 1) for c in cells], 2),
        _Column("max/mean\nbatch", [ratio(c.mean("max_over_mean_batch")) for c in cells], 4),
        _Column("max/mean\ncontext", [ratio(c.mean("max_over_mean_context")) for c in cells], 3),
        # most of the balance again, seen from the other side
        _Column("bubble\n%", [percent(c.mean("bubble_share"), 1) for c in cells], 5),
    ]


def _won(comparison: Comparison, cells: Sequence[Cell]) -> list[_Column]:
    """Share of what any router could win, where the oracle was asked."""
    bound = comparison.bound(cells[0].setting)
    if bound is None:
        return []
    return [_Column("won\n%", [percent(share_of(c, bound).mean, 1) for c in cells], 1)]


def _latencies(cells: Sequence[Cell]) -> list[_Column]:
    """What requests of a ``timed`` setting waited and how fast they were served."""

    def numbers(field: str, percentile: str) -> list[str]:
        found = [c.percentiles(field) for c in cells]
        return [MISSING if f is None else short(f[percentile]) for f in found]

    return [
        _Column("TPOT\np50 ms", numbers("tpot_ms", "p50"), 7),
        _Column("TPOT\np99 ms", numbers("tpot_ms", "p99"), 6),
        _Column("wait\np99 ms", numbers("queue_wait_ms", "p99"), 8),
    ]


def _rows(
    comparison: Comparison, cells: Sequence[Cell], columns: Sequence[_Column], width: int
) -> tuple[Table, list[str]]:
    """A table with one row a policy, and the names of the columns there was no room for."""
    columns = list(columns)
    left_out: list[str] = []
    while True:
        table = plain_table()
        table.add_column("", no_wrap=True)
        table.add_column("policy", overflow="fold")
        for column in columns:
            table.add_column(column.title, justify="right", no_wrap=True)
        for i, cell in enumerate(cells):
            numbers = [column.values[i] for column in columns]
            best = cell is comparison.best(cell.setting)
            table.add_row(
                _mark(comparison, cell), Text(cell.policy.label), *numbers, style="bold" if best else ""
            )
        least = max(columns, key=lambda column: column.rank)
        if (
            len(columns) == 1
            or least.rank == 0
            or _least_width(table, [c.policy.label for c in cells]) <= width
        ):
            return table, left_out
        columns.remove(least)
        left_out.append(least.name)


def group_tables(comparison: Comparison, width: int = 80) -> list[Table]:
    """For every trace and cost: excess of each policy, and each way to choose a group, by number of groups.

    Where so many numbers of groups do not fit side by side, they are spread over several tables.
    """
    by_cost: dict[tuple[str, str, str | None], list[Setting]] = {}
    for setting in comparison.settings():
        by_cost.setdefault((setting.trace, setting.cost.name, setting.deployment_name), []).append(setting)
    tables = []
    for settings in by_cost.values():
        counts = list(dict.fromkeys(s.pool.groups for s in settings))
        if len(settings) == 1:
            continue
        for apart in (True, False):
            at_once = len(counts)
            while at_once > 1 and not _group_table(comparison, settings, counts[:at_once], apart, width)[1]:
                at_once -= 1
            if at_once == len(counts):
                break
        parts = [counts[i : i + at_once] for i in range(0, len(counts), at_once)]
        tables += [_group_table(comparison, settings, part, apart, width)[0] for part in parts]
    return tables


def _group_table(
    comparison: Comparison, settings: Sequence[Setting], counts: Sequence[int], apart: bool, width: int
) -> tuple[Table, bool]:
    """The table for some numbers of groups, and whether it fits.

    ``apart`` gives the way to choose a group a column of its own; else it stands with the policy.
    """
    ways = list(dict.fromkeys(s.group_policy for s in settings if s.grouped))
    title = f"{settings[0].trace}, {settings[0].cost.name}: excess % by number of groups"
    table = plain_table(title)
    own = apart and len(ways) > 1
    table.add_column("policy", overflow="fold")
    if own:
        table.add_column("group by", no_wrap=True)
    for n in counts:
        table.add_column(f"{n} ", justify="right", no_wrap=True)
    labels = []
    for policy in comparison.plan.policies:
        for w, way in enumerate(ways):
            numbers = []
            for n in counts:
                cell = group_cell(comparison, settings, policy.label, n, way)
                best = comparison.best(cell.setting) is cell
                mark = BEST if best and len(comparison.plan.policies) > 1 else " "
                numbers.append(Text(percent(cell.excess.mean) + mark, "bold" if best else ""))
            label = policy.label if w == 0 or not own else ""
            if len(ways) > 1 and not own:
                label += f", by {way}"
            labels.append(label)
            table.add_row(Text(label), *([Text(way)] if own else []), *numbers)
    return table, _least_width(table, labels) <= width


def _least_width(table: Table, labels: Sequence[str]) -> int:
    """Columns a table takes at least: numbers whole, labels folded between words.

    A longer word than `LONG_WORD`, such as the path of a policy file, is folded inside.
    """
    word = max(len(word) for label in labels for word in ("policy", *label.split()))
    console = Console(file=io.StringIO(), width=10_000)
    return Measurement.get(console, console.options, table).minimum - word + min(word, LONG_WORD)


def _mark(comparison: Comparison, cell: Cell) -> str:
    if cell is comparison.best(cell.setting):
        return BEST if len(comparison.of(cell.setting)) > 1 else ""
    return TIED if tied(comparison, cell) else ""


def _legend(comparison: Comparison, ascii_only: bool, left_out: Sequence[str]) -> str:
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
    if comparison.bounds:
        lines.append(f"won: share of what any router could win, from {BASELINE} to the oracle")
    if left_out:
        lines.append(f"no room for {', '.join(left_out)}: a wider terminal or --json has more")
    return "\n".join(lines)


def plain_table(title: str | None = None) -> Table:
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

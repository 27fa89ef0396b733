"""A ceiling in the terminal: a table a setting and the verdict under it, at 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from equipoise.report.numbers import half_width, percent, short
from equipoise.report.tables import plain_table
from equipoise.study import setting_words
from equipoise.study.bounds import BASELINE
from equipoise.study.ceiling import Ceiling
from equipoise.study.ceiling_words import words

__all__ = ["print_ceilings"]


def print_ceilings(found: list[Ceiling], seeds: int, console: Console) -> None:
    """Print the tables and the verdicts."""
    sign = "+/-" if console.options.ascii_only else "±"
    for one in found:
        table = plain_table()
        table.add_column("placed by", overflow="fold")
        for title in ("excess\n%", sign, "tokens/s", sign, "TPOT\nms", "won\n%", sign):
            table.add_column(title, justify="right", no_wrap=True)
        for row in one.rows:
            table.add_row(
                Text(row.label),
                percent(row.excess.mean),
                half_width(row.excess),
                short(row.tokens_per_s.mean),
                short(row.tokens_per_s.high - row.tokens_per_s.mean),
                short(row.tpot_ms.mean),
                percent(row.share.mean, 1),
                half_width(row.share, 1),
                style="bold" if row.label == "oracle" else "",
            )
        console.print(Text(setting_words(one.setting), "bold"))
        console.print(table)
        console.print()
        for line in Text(words(one)).wrap(console, max(20, console.width - 2)):
            line.rstrip()
            console.print(Text("  ") + line)
        console.print()
    spread = (
        f"95 % interval over {seeds} seeds"
        if seeds > 1
        else "one seed, so at most an interval over its blocks"
    )
    console.print(
        Text(
            "excess: cost over ideal, a bound no one can beat\n"
            f"won: share of what any router could win, from {BASELINE} to the oracle\n"
            "oracle: knows the future; a run that was played, not proven to be the best\n"
            f"{sign}: {spread}",
            "dim",
        )
    )

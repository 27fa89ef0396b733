"""A trace's statistics and the known formats as tables for people, at 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from equipoise.traces import TraceStatistics
from equipoise.traces.readers import Format

__all__ = ["print_formats", "print_statistics"]


def print_statistics(statistics: TraceStatistics) -> None:
    """Print what a trace looks like."""
    console = Console(highlight=False)
    console.print(Text(f"{statistics.name}: {statistics.requests:,} requests", "bold"))
    if statistics.source:
        console.print(Text(statistics.source, "dim"))
    console.print()
    console.print(_lengths(statistics))
    console.print()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    for name, value in _facts(statistics):
        facts.add_row(name, value)
    console.print(facts)


def _lengths(s: TraceStatistics) -> Table:
    table = _table("Tokens")
    table.add_column("")
    for title in ("mean", "p50", "p90", "p99", "max", "CV"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, row in (("context", s.context), ("output", s.output)):
        quantiles = [f"{value:,.0f}" for value in (row.mean, row.p50, row.p90, row.p99, row.max)]
        table.add_row(name, *quantiles, "")
    quantiles = [f"{value:,.0f}" for value in (s.decode.mean, s.decode.p50, s.decode.p90, s.decode.p99)]
    table.add_row("context while decoding", *quantiles, "", f"{s.decode.cv:.2f}", style="bold")
    return table


def _facts(s: TraceStatistics) -> list[tuple[str, str]]:
    a = s.arrivals
    drawn = "" if a.known else " (drawn, not recorded)"
    facts = [("span", f"{_duration(a.span_s)}{drawn}")]
    if a.rate_per_s is not None:
        facts.append(("rate", f"{a.rate_per_s:,.4g} requests/s"))
    if a.gap_cv is not None:
        facts.append(("gaps between arrivals", f"CV {a.gap_cv:.2f} (Poisson 1)"))
    if a.counts_variance_over_mean is not None:
        facts.append(("requests a minute", f"variance / mean {a.counts_variance_over_mean:.1f} (Poisson 1)"))
    if a.tick_s is not None:
        facts.append(("time grid", f"{a.tick_s:g} s (--spread-ticks spreads the requests over it)"))
    facts.append(
        ("context above 32k, 100k", f"{s.share_above_32k:.1%}, {s.share_above_100k:.1%} of the requests")
    )
    if s.log_correlation is not None:
        facts.append(("correlation", f"{s.log_correlation:.2f} of log context and log output"))
    if s.sessions is not None:
        n = s.sessions
        seen = f", {n.in_progress:,} of them without their first turn" if n.in_progress else ""
        facts.append(("sessions", f"{n.count:,}{seen}"))
        turns = (
            f"mean {n.turns_mean:.1f}, p50 {n.turns_p50:.0f}, p90 {n.turns_p90:.0f}, p99 {n.turns_p99:.0f}"
        )
        facts.append(("turns of a session", turns))
        if n.think_p50_s is not None and n.think_p90_s is not None:
            facts.append(("think time", f"p50 {n.think_p50_s:.3g} s, p90 {n.think_p90_s:.3g} s"))
    if s.prefix_hit_share is not None:
        facts.append(
            ("prefix reuse", f"{s.prefix_hit_share:.1%} of the context tokens, with an endless cache")
        )
    facts.append(("while decoding", "weighted by output; context + output / 2 of each request"))
    return facts


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def print_formats(formats: Iterable[Format], written: tuple[str, ...], presets: Mapping[str, str]) -> None:
    """Print the formats and the presets."""
    console = Console(highlight=False)
    table = _table("Formats, in the order they are tried; plain, .gz or .zst")
    table.add_column("name", no_wrap=True)
    table.add_column("written", no_wrap=True)
    table.add_column("what")
    for f in formats:
        table.add_row(f.name, "yes" if f.name in written else "", f.title)
    console.print(table)
    console.print()
    table = _table("Presets")
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for name, summary in presets.items():
        table.add_row(name, summary)
    console.print(table)


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )

"""An analysis in the terminal, at 80 columns: numbers by policy, what is shown, and whether the prediction held."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from equipoise.live.findings.agreement import Level
from equipoise.live.findings.analysis import Analysis, PolicyNumbers
from equipoise.live.findings.gap import Gap
from equipoise.live.findings.gap_words import agreement_words
from equipoise.live.findings.numbers import MEASURES
from equipoise.live.findings.sentences import amount, pair_sentences
from equipoise.live.findings.writing import JSON, PAGE
from equipoise.report.run_tables import paragraph
from equipoise.report.tables import plain_table
from equipoise.study.statistics import Interval

__all__ = ["HEADLINES", "headlines", "print_analysis", "subtitle"]

HEADLINES = ("itl_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean")
"""Measures whose findings are said in words; all are in the files."""
COLUMNS = (
    ("itl_ms.mean", "ITL\nmean ms"),
    ("itl_ms.p99", "ITL\np99 ms"),
    ("ttft_ms.mean", "TTFT\nmean ms"),
    ("ttft_ms.p99", "TTFT\np99 ms"),
    ("end_to_end_ms.mean", "e2e\nmean ms"),
    ("tokens_per_s.mean", "tokens/s"),
    ("goodput_per_s.mean", "good\nreq/s"),
    ("max_over_mean_batch.mean", "B max\n/mean"),
    ("max_over_mean_context.mean", "C max\n/mean"),
)


def headlines(analysis: Analysis) -> list[str]:
    """Measures to say in words: the usual ones, or those that were asked for."""
    there = list(dict.fromkeys(f.measure.name for f in analysis.findings))
    return [n for n in HEADLINES if n in there] or there[:3]


def subtitle(analysis: Analysis) -> str:
    """What was run, in a sentence."""
    about = analysis.runs.about
    size = " + ".join(f"DP{r}" for r in analysis.runs.ranks)
    mode = {
        "open": f"open loop, times x {about.scale:g}",
        "closed": f"{about.concurrency} requests at once",
        "sessions": f"sessions, times x {about.scale:g}",
    }[about.mode]
    version = f" {about.engine.version}" if about.engine.version else ""
    return (
        f"{about.engine.kind}{version}, {size}: {about.trace.requests:,} requests of {about.trace.name}, {mode}, "
        f"{len(analysis.runs.runs)} runs of {len(analysis.runs.policies)} policies"
    )


def print_analysis(analysis: Analysis, folder: Path, console: Console, *, html: bool = True) -> None:
    """Print everything a person wants to know first."""
    paragraph(console, subtitle(analysis), "bold")
    _numbers(console, analysis.policies)
    for name, found in analysis.by_class.items():
        console.print(Text(f"class: {name}", "bold"))
        _numbers(console, found)
    _failures(console, analysis)
    for name in headlines(analysis):
        for sentence in pair_sentences(analysis.of(name)):
            paragraph(console, sentence)
        console.print()
    paragraph(console, _legend(analysis), "dim")
    console.print()
    _agreement(console, analysis)
    for note in analysis.notes:
        paragraph(console, f"Note: {note}")
    files = f"{folder / JSON}{f' and {PAGE}' if html else ''}"
    console.print(Text(f"{files}: all of it"), soft_wrap=True)


def _numbers(console: Console, policies: Sequence[PolicyNumbers]) -> None:
    table = plain_table()
    table.add_column("policy", overflow="fold", max_width=18)
    columns = [(n, t) for n, t in COLUMNS if any(n in p.values for p in policies)]
    room = console.width - min(18, max(len(p.policy) for p in policies)) - 2
    for name, title in list(columns):
        wide = max(len(t) for t in (*title.split("\n"), *(_value(p, name) for p in policies))) + 2
        if room < wide:
            columns.remove((name, title))
        else:
            room -= wide
    for _, title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for p in policies:
        table.add_row(Text(p.policy), *(_value(p, n) for n, _ in columns))
    console.print(table)
    console.print()


def _value(p: PolicyNumbers, name: str) -> str:
    return amount(MEASURES[name], p.mean(name).mean) if name in p.values else "-"


def _failures(console: Console, analysis: Analysis) -> None:
    for p in analysis.policies:
        if p.failed:
            kinds = ", ".join(f"{n:,} {kind}" for kind, n in p.outcomes.items() if kind != "ok")
            paragraph(
                console,
                f"{p.policy}: {p.failed:,} of {sum(p.outcomes.values()):,} requests failed ({kinds}).",
            )
    if any(p.failed for p in analysis.policies):
        console.print()


def _legend(analysis: Analysis) -> str:
    pairs = analysis.pairs
    at_once = f"Of each measure, the intervals of all {pairs} pairs hold at once with 95 % confidence. "
    return (
        f"Paired by repeat, over requests that both policies answered. {at_once if pairs > 1 else ''}"
        f"{analysis.traffic_words} Measures are not corrected for one another: name the one that counts beforehand."
    )


def _agreement(console: Console, analysis: Analysis) -> None:
    found = analysis.agreement
    if found is None:
        paragraph(console, f"Nothing is predicted: {analysis.no_agreement}.")
        return
    console.print(Text(f"Predicted, with the cost {found.prediction.source}", "bold"))
    rows = [x for x in found.levels if x.measure.name in ("itl_ms.mean", "ttft_ms.mean")]
    table = plain_table()
    table.add_column("", no_wrap=True)
    table.add_column("policy", overflow="fold")
    for title in ("predicted", "measured", "off %", "interval, %"):
        table.add_column(title, justify="right", no_wrap=True)
    for x in rows:
        table.add_row(
            x.measure.label.removesuffix(", ms"),
            Text(x.policy),
            amount(x.measure, x.predicted),
            amount(x.measure, x.measured),
            f"{100 * x.off[0]:+.1f}",
            _ends(x),
        )
    console.print(table)
    console.print()
    _gaps(console, found.gaps)
    for sentence in (*agreement_words(found, gaps=False), *found.prediction.notes):
        paragraph(console, sentence)
    console.print()


def _gaps(console: Console, gaps: Sequence[Gap]) -> None:
    """Parts of what measured and predicted differ by."""
    if not gaps:
        return
    console.print(Text("Measured less predicted, ms, and what it is made of", "bold"))
    table = plain_table()
    table.add_column("policy", overflow="fold")
    for title in ("ITL", "other\nloads", "price", "of it\nprompts", "TTFT", "sent\nlate", "queues", "rest"):
        table.add_column(title, justify="right", no_wrap=True)
    for g in gaps:
        parts = (
            g.itl_ms,
            g.loads_ms,
            g.price_ms,
            g.prompts_ms,
            g.ttft_ms,
            g.sent_late_ms,
            g.wait_ms,
            g.rest_ms,
        )
        table.add_row(Text(g.policy), *("?" if i is None else _starred(i) for i in parts))
    console.print(table)
    paragraph(
        console,
        "* not zero with 95 % confidence; ? not identifiable from this data. Other loads: who ran where and when. "
        "Price: steps that cost more or less than priced; of it prompts: those computed in between. Rest: prompts, the "
        "way there and back, unexplained.",
        "dim",
    )
    console.print()


def _plus(value: float) -> str:
    text = f"{value:+.1f}" if abs(value) >= 10 else f"{value:+.2f}"
    return "0" if text in ("+0.00", "-0.00") else text


def _starred(i: Interval) -> str:
    text = _plus(i.mean)
    return text if text == "0" or i.covers_zero or i.method == "none" else f"{text}*"


def _ends(x: Level) -> str:
    _, low, high = x.off
    return f"{100 * low:+.1f} to {100 * high:+.1f}" if math.isfinite(low) else "n/a"

"""``live.html``: an analysis as one file that opens without a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from equipoise.live.findings import figures
from equipoise.live.findings.analysis import Agreement, Analysis
from equipoise.live.findings.gap_words import agreement_words
from equipoise.live.findings.numbers import MEASURES
from equipoise.live.findings.residuals import Region
from equipoise.live.findings.sentences import amount, pair_sentences, short_words
from equipoise.live.findings.tables import headlines, subtitle
from equipoise.report.board import Board, paint
from equipoise.report.numbers import MISSING
from equipoise.report.palette import Palette
from equipoise.report.words import formula_lines
from equipoise.study.statistics import Interval

__all__ = ["render"]

READING = (
    (
        "Three sentences",
        "Lower or higher: the interval of the difference leaves out zero. Shown equal: the whole interval lies inside "
        "the margin. No difference shown: neither; that may only mean too few repeats, and how many would be enough "
        "follows from how much the repeats differ.",
    ),
    (
        "Whose interval",
        "Repeats replay the same requests, and policies take turns. Differences are taken repeat by repeat, over "
        "requests that both policies answered; Student's t over them speaks of this trace on this machine. Of one "
        "measure, the intervals of all pairs hold at once with 95 % confidence (Bonferroni). What is said of other "
        "traffic rests on blocks of the trace drawn again, and is wider.",
    ),
    (
        "Times",
        "TTFT and end-to-end times count from when a request should have been sent, so whoever sends late does not "
        "look better. The mean ITL is over all tokens alike. Requests without an answer are in the shares and in "
        "goodput, not in the times.",
    ),
    (
        "Prediction",
        "The trace is replayed in the simulator with the policies, arrivals and seeds of the run. The level (how many "
        "milliseconds) and the order (which is better) are judged apart: a cost can know what makes ranks differ and "
        "not what every step pays besides. Intervals know what varies between repeats, not how sure the cost is.",
    ),
)


def render(analysis: Analysis) -> str:
    """The page as text: the same folder gives the same text."""
    palette = Palette.of(dict.fromkeys(figures.policy_name(p) for p in analysis.runs.policies))
    board = Board()
    about = analysis.runs.about
    found = analysis.agreement
    context: dict[str, Any] = {
        "version": version("equipoise"),
        "title": f"Live: {about.trace.name} on {about.engine.kind}",
        "subtitle": subtitle(analysis),
        "verdicts": _verdicts(analysis),
        "pairs": [
            board.pin(
                figures.pair_figure(analysis.of(name)),
                title=MEASURES[name].label.removesuffix(", ms"),
                alt=f"Differences between policies, {MEASURES[name].label}",
            )
            for name in headlines(analysis)
            if analysis.of(name)
        ],
        "margin": f"{100 * analysis.margin:g}",
        "traffic": analysis.traffic_words,
        "pair_table": _pair_table(analysis),
        "repeats": [
            board.pin(
                figures.repeat_figure(analysis, name, MEASURES[name].label, palette),
                title=MEASURES[name].label.removesuffix(", ms"),
                alt=f"{MEASURES[name].label} by repeat",
            )
            for name in headlines(analysis)[:2]
        ],
        "numbers": [
            ("", _numbers(analysis.policies)),
            *((f"class: {name}", _numbers(p)) for name, p in analysis.by_class.items()),
        ],
        "outcomes": _outcomes(analysis),
        "over_time": _over_time(analysis, board, palette),
        "no_prediction": analysis.no_agreement,
        "prediction": None if found is None else _prediction(analysis, found, board, palette),
        "reading": READING,
        "setup": _setup(analysis),
        "notes": analysis.notes,
    }
    context["contents"] = [
        (anchor, words)
        for anchor, words, there in (
            ("verdict", "Verdict", True),
            ("pairs", "Differences", context["pairs"]),
            ("prediction", "Prediction", True),
            ("numbers", "All numbers", True),
            ("time", "Over time", context["over_time"]),
            ("reading", "How to read this", True),
            ("setup", "Setup", True),
        )
        if there
    ]
    styles = {"palette_light": palette.css(dark=False), "palette_dark": palette.css(dark=True)}
    return paint("live.html.j2", context, board, styles)


def _verdicts(analysis: Analysis) -> list[tuple[str, list[str]]]:
    """Headline measures, each with what is shown of every pair."""
    found: dict[str, list[str]] = {}
    for name in headlines(analysis):
        for sentence in pair_sentences(analysis.of(name)):
            what, _, rest = sentence.partition(": ")
            found.setdefault(what, []).append(rest)
    return list(found.items())


def _pair_table(analysis: Analysis) -> dict[str, Any]:
    rows = []
    for f in analysis.findings:
        i = f.interval
        rows.append(
            [
                f.measure.label,
                f.a,
                f.b,
                amount(f.measure, sum(f.values_a) / len(f.values_a)),
                amount(f.measure, sum(f.values_b) / len(f.values_b)),
                _percent(f.change(i.mean)),
                f"{_percent(f.change(i.low))} to {_percent(f.change(i.high))}"
                if i.method != "none"
                else MISSING,
                short_words(f),
                "" if f.resolve is None else _count(f.resolve.repeats),
            ]
        )
    head = [
        "measure",
        "A",
        "B",
        "in A",
        "in B",
        "A less B, %",
        "interval, %",
        "shown",
        "repeats to resolve the margin",
    ]
    return _table(head, rows, left=(0, 1, 2, 7))


def _numbers(policies: Sequence[Any]) -> dict[str, Any]:
    rows: list[list[str | tuple[str, str]]] = []
    for name, measure in MEASURES.items():
        if any(name in p.values for p in policies):
            rows.append([measure.label, *(_with_interval(p, name) for p in policies)])
    return _table(["", *(p.policy for p in policies)], rows, left=(0,))


def _with_interval(p: Any, name: str) -> tuple[str, str]:
    if name not in p.values:
        return MISSING, ""
    measure, i = MEASURES[name], p.mean(name)
    ends = f"{amount(measure, i.low)} to {amount(measure, i.high)}" if i.method != "none" else ""
    return amount(measure, i.mean), ends


def _outcomes(analysis: Analysis) -> dict[str, Any] | None:
    kinds = list(dict.fromkeys(k for p in analysis.policies for k in p.outcomes))
    if kinds == ["ok"]:
        return None
    rows = [[p.policy, *(f"{p.outcomes.get(k, 0):,}" for k in kinds)] for p in analysis.policies]
    return _table(["policy", *(k.replace("_", " ") for k in kinds)], rows, left=(0,))


def _over_time(analysis: Analysis, board: Board, palette: Palette) -> list[dict[str, Any]]:
    found = []
    for context, title in ((False, "Batch"), (True, "Context tokens")):
        figure = figures.time_figure(analysis, palette, context=context)
        if figure is not None:
            found.append(board.pin(figure, title=title, alt=f"{title} over time, largest rank over the mean"))
    return found


def _prediction(analysis: Analysis, found: Agreement, board: Board, palette: Palette) -> dict[str, Any]:
    shown = []
    by_policy = {p.policy: p for p in analysis.policies}
    for name in ("itl_ms.mean", "ttft_ms.mean"):
        rows = [x for x in found.levels if x.measure.name == name]
        if rows:
            title = MEASURES[name].label.removesuffix(", ms")
            measured = [by_policy[x.policy].mean(name) for x in rows]
            shown.append(
                board.pin(
                    figures.level_figure(rows, measured, palette),
                    title=title,
                    alt=f"{title}: predicted, measured",
                )
            )
    levels = [
        [
            x.measure.label,
            x.policy,
            amount(x.measure, x.predicted),
            amount(x.measure, x.measured),
            _percent(x.off[0]),
            f"{_percent(x.off[1])} to {_percent(x.off[2])}" if math.isfinite(x.off[1]) else MISSING,
        ]
        for x in found.levels
    ]
    orders = [
        [
            r.measure.label.removesuffix(", ms"),
            str(r.count("right")),
            str(r.count("wrong")),
            str(r.count("undecided")),
            f"{r.tau:.2f}",
        ]
        for r in found.rankings
    ]
    gaps = [g for g in found.gaps if g.loads_ms is not None]
    return {
        "source": found.prediction.source,
        "formula": formula_lines(found.prediction.cost),
        "words": agreement_words(found),
        "notes": found.prediction.notes,
        "figures": shown,
        "levels": _table(
            ["", "policy", "predicted", "measured", "off, %", "interval, %"], levels, left=(0, 1)
        ),
        "orders": _table(
            ["order by", "pairs right", "wrong", "undecided", "Kendall's tau"], orders, left=(0,)
        ),
        "gap": board.pin(figures.gap_figure(gaps), alt="Parts of measured less predicted ITL")
        if gaps
        else None,
        "regions": _regions(found.regions) if found.regions else None,
        "no_regions": found.no_regions,
    }


def _regions(regions: Sequence[Region]) -> dict[str, Any]:
    rows = [
        [
            f"{r.batch[0]:.1f} to {r.batch[1]:.1f}",
            f"{r.context_tokens[0]:,.0f} to {r.context_tokens[1]:,.0f}",
            f"{100 * r.share:.1f}",
            f"{r.measured_ms:.2f}",
            f"{r.priced_ms:.2f}",
            _percent(math.expm1(r.log_ratio.mean)),
            _interval(r.log_ratio),
        ]
        for r in regions
    ]
    head = [
        "batch of the mean rank",
        "its context tokens",
        "tokens, %",
        "measured ms",
        "priced ms",
        "off, %",
        "interval, %",
    ]
    return _table(head, rows, left=(0, 1))


def _interval(i: Interval) -> str:
    return (
        MISSING if i.method == "none" else f"{_percent(math.expm1(i.low))} to {_percent(math.expm1(i.high))}"
    )


def _setup(analysis: Analysis) -> dict[str, Any]:
    about = analysis.runs.about
    e, m = about.engine, about.machine
    rows = [
        ["started", about.started_at],
        ["engine", f"{e.kind} {e.version or ''}".strip()],
        ["model", e.model],
        ["instances", "; ".join(f"{i.name}: {i.ranks} ranks" for i in e.instances)],
        ["trace", f"{about.trace.name}: {about.trace.cut}"],
        ["digest", about.trace.digest],
        ["policies decide by", about.cost or "no cost"],
        ["warm-up", f"{about.warmup_requests} requests a rank"],
        ["machine", f"{m.cores} cores, {m.cpu}, {m.platform}, Python {m.python}"],
        ["state", about.state],
    ]
    return _table(["", ""], rows, left=(0, 1))


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]], left: Sequence[int]
) -> dict[str, Any]:
    """As the macro of the pages takes it; a pair of texts is a value and its interval."""

    def cell(i: int, value: str | tuple[str, str]) -> dict[str, Any]:
        text, interval = (value, "") if isinstance(value, str) else value
        return {"text": text, "interval": interval, "left": i in left, "colour": ""}

    return {
        "head": [{"text": h, "left": i in left} for i, h in enumerate(head)],
        "rows": [{"best": False, "cells": [cell(i, v) for i, v in enumerate(row)]} for row in rows],
    }


def _percent(share: float) -> str:
    return f"{100 * share:+.2f}" if math.isfinite(share) else MISSING


def _count(repeats: int | None) -> str:
    return "more than 10,000" if repeats is None else f"{repeats:,}"

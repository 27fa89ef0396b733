"""What a live run showed, in sentences: lower, equal, or not shown, which are three different things."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.live.findings.numbers import Measure
from equipoise.live.findings.pairs import Finding
from equipoise.live.findings.repeats import MOST, Resolve
from equipoise.report.numbers import percent, short
from equipoise.study.statistics import Interval

__all__ = [
    "amount",
    "bounds",
    "finding_words",
    "needed_words",
    "pair_sentences",
    "short_words",
    "size",
    "traffic_words",
]


FEW = 3
"""Pairs up to which each gets a sentence of its own, whatever it says."""


def finding_words(f: Finding) -> str:
    """One number under two policies as a sentence without its full stop."""
    what = _what(f.measure)
    verdict = f.verdict
    if verdict == "no_interval":
        why = "one repeat" if len(f.values_a) == 1 else "these repeats"
        return (
            f"{what}: {f.a} {amount(f.measure, _mean(f.values_a))}, {f.b} {amount(f.measure, _mean(f.values_b))}; "
            f"{why} gives no interval".replace("repeats gives", "repeats give")
        )
    if verdict == "not_shown":
        return f"{what}: no difference shown between {f.a} and {f.b} ({bounds(f)}){needed_words(f)}"
    if verdict == "equal":
        return f"{what}: {f.a} and {f.b} are shown equal within {_margin(f)} ({bounds(f)})"
    within = f", within the margin of {_margin(f)}" if f.within_margin else ""
    return f"{what}: {f.a} is {size(f)} {verdict} than {f.b} ({bounds(f)}){within}"


def pair_sentences(findings: Sequence[Finding]) -> list[str]:
    """All pairs of one measure, with what is said of other traffic; one sentence where no pair has an interval."""
    if len(findings) > 1 and all(f.verdict == "no_interval" for f in findings):
        values = {f.a: _mean(f.values_a) for f in findings} | {f.b: _mean(f.values_b) for f in findings}
        listed = ", ".join(f"{p} {amount(findings[0].measure, v)}" for p, v in values.items())
        why = "one repeat gives" if len(findings[0].values_a) == 1 else "these repeats give"
        return [f"{_what(findings[0].measure)}: {why} no interval; {listed}."]
    apart = findings if len(findings) <= FEW else [f for f in findings if f.verdict in ("lower", "higher")]
    found = []
    for f in apart:
        more = traffic_words(f)
        found.append(f"{finding_words(f)}{f'; {more}' if more else ''}.")
    return found if len(findings) <= FEW else found + _together(findings)


def _together(findings: Sequence[Finding]) -> list[str]:
    """Pairs that are equal, and pairs of which nothing is shown, a sentence each; their numbers are in the tables."""
    what = _what(findings[0].measure)
    found = []
    equal = [f for f in findings if f.verdict == "equal"]
    if equal:
        found.append(f"{what}: shown equal within {_margin(equal[0])}: {_pairs(equal)}.")
    open_ = [f for f in findings if f.verdict == "not_shown"]
    if open_:
        needed = [f.resolve.repeats for f in open_ if f.resolve is not None]
        known = [n for n in needed if n is not None]
        most = f"more than {MOST:,}" if len(known) < len(needed) else f"{max(known):,}" if known else ""
        ends = f"{min(known):,} to {most}" if known and f"{min(known):,}" != most else most
        resolve = f"; {ends} repeats would resolve {_margin(open_[0])}, pair by pair" if needed else ""
        found.append(f"{what}: no difference shown between {_pairs(open_)}{resolve}.")
    unknown = [f for f in findings if f.verdict == "no_interval"]
    if unknown:
        found.append(f"{what}: no interval for {_pairs(unknown)}.")
    return found


def _pairs(findings: Sequence[Finding]) -> str:
    names = list(dict.fromkeys(name for f in findings for name in (f.a, f.b)))
    if len(names) > 2 and len({frozenset((f.a, f.b)) for f in findings}) == math.comb(len(names), 2):
        return f"any two of {', '.join(names)}"
    return ", ".join(f"{f.a} and {f.b}" for f in findings)


def traffic_words(f: Finding) -> str:
    """What the blocks of the trace say of other traffic; empty where nothing is known or one repeat said it already."""
    if f.traffic.method == "none" or len(f.values_a) == 1 or f.verdict in ("no_interval", "not_shown"):
        return ""
    if f.verdict == "equal":
        shown = -f.reach <= f.traffic.low and f.traffic.high <= f.reach
    else:
        shown = not f.traffic.covers_zero
    told = (
        "shown for other traffic like this, too" if shown else "for other traffic like this that is not shown"
    )
    return f"{told} ({bounds(f, f.traffic)})"


def short_words(f: Finding) -> str:
    """The verdict in a word or two, for a table."""
    found = {"not_shown": "not shown", "no_interval": ""}.get(f.verdict, f.verdict)
    return f"{found}, within" if f.verdict in ("lower", "higher") and f.within_margin else found


def needed_words(f: Finding) -> str:
    """How many repeats would tell."""
    return "" if f.resolve is None else f"; {_needed(f.resolve, f)}"


def _needed(r: Resolve, f: Finding) -> str:
    size_ = _margin(f)
    if r.repeats is None:
        return f"more than {MOST:,} repeats would be needed to resolve {size_}"
    seen = len(f.values_a)
    if r.repeats <= seen:
        # a difference as large as the margin would most likely have been seen, and equality takes a few more
        more = (
            f"{r.to_equal:,} repeats would" if r.to_equal is not None else f"more than {MOST:,} repeats would"
        )
        return f"{more} show them equal within {size_}, if they are"
    unsure = (
        "" if r.at_most is None or r.at_most <= r.repeats else f" (up to {r.at_most:,}, from so few repeats)"
    )
    return f"{r.repeats:,} repeats would resolve {size_}{unsure}"


def size(f: Finding) -> str:
    """The difference without its sign."""
    return f"{_number(abs(100 * f.change(f.interval.mean)))} {_unit(f.measure)}"


def bounds(f: Finding, interval: Interval | None = None) -> str:
    """The ends of the interval, as changes from B to A."""
    i = f.interval if interval is None else interval
    low, high = (_signed(100 * f.change(end)) for end in (i.low, i.high))
    return f"{low} to {high} {_unit(f.measure)}"


def amount(measure: Measure, value: float) -> str:
    """A value as people read it; shares in percent."""
    return f"{percent(value, 1)} %" if measure.scale == "points" else short(value)


def _what(measure: Measure) -> str:
    return measure.label.removesuffix(", ms")


def _margin(f: Finding) -> str:
    return f"{100 * f.margin:g} {_unit(f.measure)}"


def _unit(measure: Measure) -> str:
    return "%" if measure.scale == "ratio" else "points"


def _signed(value: float) -> str:
    if not math.isfinite(value):
        return "n/a"
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.1f}" if abs(value) >= 10 else f"{value:+.2f}"


def _number(value: float) -> str:
    return _signed(value).removeprefix("+")


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)

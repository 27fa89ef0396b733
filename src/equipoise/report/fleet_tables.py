"""Simulated deployments in the terminal: a row a policy, as many tables as its columns need at this width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from rich.console import Console
from rich.text import Text

from equipoise.fleet import FleetResult, RequestMetrics
from equipoise.fleet.classes import By
from equipoise.replay import Percentiles
from equipoise.report.numbers import MISSING, count, percent, short
from equipoise.report.tables import plain_table
from equipoise.study.simulation import Simulated
from equipoise.study.verdicts import setting_words

__all__ = ["print_simulated"]

LONG_WORD = 17
"""Longest word of a label that is never folded."""


@dataclass(frozen=True, slots=True)
class _Column:
    """Numbers of one kind, one a policy."""

    title: str
    values: list[str]

    @property
    def width(self) -> int:
        return max(len(text) for text in (*self.title.split("\n"), *self.values)) + 1


def print_simulated(found: Sequence[Simulated], console: Console, *, by: Sequence[By] = ()) -> None:
    """Print what requests met with, what a step was made of, and how requests ended.

    Parameters
    ----------
    found : sequence of Simulated
    console : Console
    by : sequence of {"context", "output", "turn"}
        Latencies class by class, too.
    """
    setting = found[0].setting
    console.print(Text(setting_words(setting), "bold"))
    _print(console, found, _latencies(found))
    _print(console, found, _rates(found))
    for word in by:
        for label in found[0].runs[0].by_class(word):
            console.print(Text(f"{word}: {label}" if word != "turn" else label, "bold"))
            _print(console, found, _class(found, word, label))
    console.print(Text("a step, ms", "bold"))
    _print(console, found, _parts(found))
    console.print(Text("requests", "bold"))
    _print(console, found, _ends(found))
    console.print(Text(_legend(found), "dim"))
    _requests.cache_clear()


@lru_cache(maxsize=256)
def _requests(run: FleetResult) -> RequestMetrics | None:
    """Measured once for all columns."""
    return run.requests


def _latencies(found: Sequence[Simulated]) -> list[_Column]:
    columns = []
    for title, field in (
        ("TTFT", "ttft_ms"),
        ("TPOT", "tpot_ms"),
        ("e2e", "end_to_end_ms"),
        ("wait", "queue_wait_ms"),
    ):
        for p in ("p50", "p99"):
            columns.append(_Column(f"{title}\n{p} ms", [_percentile(s, field, p) for s in found]))
    return columns


def _rates(found: Sequence[Simulated]) -> list[_Column]:
    columns = [_Column("tokens/s", [count(_mean(s, lambda r: r.tokens_per_s)) for s in found])]
    slo = found[0].runs[0].deployment.slo
    if slo.ttft_ms is not None or slo.tpot_ms is not None:
        columns += [
            _Column("goodput\nreq/s", [short(_mean(s, lambda r: _good(r, "requests_per_s"))) for s in found]),
            _Column("within\nSLO %", [percent(_mean(s, lambda r: _good(r, "share")), 1) for s in found]),
        ]
    columns += [
        _Column("excess %\nattention", [percent(_mean(s, lambda r: r.attention_excess)) for s in found]),
        _Column("excess %\nstep", [percent(_mean(s, lambda r: r.excess)) for s in found]),
        _Column("pre-\nempted", [count(_mean(s, lambda r: r.counts["preemptions"])) for s in found]),
    ]
    return columns


def _class(found: Sequence[Simulated], word: By, label: str) -> list[_Column]:
    """Latencies of one class of requests."""
    metrics = [[r.by_class(word)[label] for r in s.runs] for s in found]

    def numbers(value: Callable[[RequestMetrics], float], show: Callable[[float], str]) -> list[str]:
        return [show(_average([value(m) for m in row])) for row in metrics]

    def of(field: str, p: str) -> Callable[[RequestMetrics], float]:
        return lambda m: _of(getattr(m, field), p)

    columns = [_Column("requests", numbers(lambda m: m.requests, count))]
    for title, field in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("e2e", "end_to_end_ms")):
        columns += [_Column(f"{title}\n{p} ms", numbers(of(field, p), short)) for p in ("p50", "p99")]
    if any(m.goodput for row in metrics for m in row):
        share = numbers(lambda m: m.goodput.share if m.goodput else math.nan, lambda v: percent(v, 1))
        columns.append(_Column("within\nSLO %", share))
    return columns


def _parts(found: Sequence[Simulated]) -> list[_Column]:
    """What the mean counted step is made of; parts that are 0 everywhere are left out."""

    def ms(run: FleetResult, name: str) -> float:
        return run.parts[name] * run.cost.us_per_unit / 1000.0

    columns = [_Column("all", [short(_mean(s, lambda r: r.mean_step_ms)) for s in found])]
    for name in found[0].runs[0].parts:
        values = [_mean(s, lambda r, name=name: ms(r, name)) for s in found]  # type: ignore[misc]
        if any(values):
            columns.append(_Column(name, [short(v) for v in values]))
    return columns


def _ends(found: Sequence[Simulated]) -> list[_Column]:
    """How requests ended, over all seeds and the whole run; what never happened is left out."""
    columns = []
    for name in ("arrived", "finished", "aborted", "rejected", "failed", "dropped", "lost", "outgrown"):
        values = [
            sum(r.counts[name] if name in r.counts else getattr(r, name) for r in s.runs) for s in found
        ]
        if any(values) or name in ("arrived", "finished"):
            columns.append(_Column(name, [count(v) for v in values]))
    return columns


def _legend(found: Sequence[Simulated]) -> str:
    run = found[0].runs[0]
    seeds = len(found[0].runs)
    lines = [
        "TTFT: arrival to first token; wait: router's queue to the first step",
        "excess: price over that of the same load spread evenly",
    ]
    slo = run.deployment.slo
    bounds = [f"TTFT up to {slo.ttft_ms:g} ms"] if slo.ttft_ms is not None else []
    bounds += [f"TPOT up to {slo.tpot_ms:g} ms"] if slo.tpot_ms is not None else []
    if bounds:
        lines.append(f"goodput: requests with {' and '.join(bounds)}")
    if seeds > 1:
        lines.append(f"means over {seeds} seeds; counts of requests are sums")
    return "\n".join(lines)


def _print(console: Console, found: Sequence[Simulated], columns: Sequence[_Column]) -> None:
    """As many tables as the columns need, each as wide as the terminal allows."""
    labels = [s.policy.label for s in found]
    word = min(LONG_WORD, max(len(w) for label in labels for w in ("policy", *label.split())))
    rest = list(columns)
    while rest:
        shown, room = 0, console.width
        while shown < len(rest) and (shown == 0 or room - 1 - rest[shown].width >= word):
            room -= 1 + rest[shown].width
            shown += 1
        table = plain_table()
        table.add_column(
            "policy", overflow="fold", width=min(max(room, word), max(map(len, [*labels, "policy"])))
        )
        for column in rest[:shown]:
            table.add_column(column.title, justify="right", no_wrap=True)
        for i, label in enumerate(labels):
            table.add_row(Text(label), *(column.values[i] for column in rest[:shown]))
        console.print(table)
        console.print()
        rest = rest[shown:]


def _mean(simulated: Simulated, value: Callable[[FleetResult], float]) -> float:
    return _average([value(run) for run in simulated.runs])


def _percentile(simulated: Simulated, field: str, p: str) -> str:
    found = _mean(simulated, lambda r: _of(getattr(_requests(r), field), p))
    return short(found) if math.isfinite(found) else MISSING


def _of(found: Percentiles | None, p: str) -> float:
    return math.nan if found is None else float(getattr(found, p))


def _good(run: FleetResult, field: str) -> float:
    measured = _requests(run)
    found = None if measured is None else measured.goodput
    return math.nan if found is None else float(getattr(found, field))


def _average(values: Sequence[float]) -> float:
    """Mean of those that are known, NaN without any."""
    known = [v for v in values if math.isfinite(v)]
    return float(np.mean(known)) if known else math.nan

"""The tables and texts of the page, as plain data for its template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from equipoise.report.numbers import MISSING, bounds, count, percent, points, ratio, short
from equipoise.report.palette import Palette
from equipoise.report.views import first_scenes
from equipoise.study import Cell, Comparison, Setting, setting_words, verdicts
from equipoise.study.folder import environment, resolved_config

__all__ = [
    "config_text",
    "environment_rows",
    "headlines",
    "setting_tables",
    "subtitle",
    "title",
    "verdict_pairs",
]

LONGEST_CONFIG = 100_000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Box:
    """One box of a table on the page; numbers stand right, words left."""

    text: str
    interval: str = ""
    left: bool = False
    colour: str = ""


COUNTS = (
    "requests",
    "rejected",
    "blocked requests",
    "blocked rounds",
    "rank-steps over capacity",
    "steps counted",
    "first seed: from step",
    "to step",
)


def title(comparison: Comparison) -> str:
    """The page's title: how many policies on what."""
    traces = list(dict.fromkeys(comparison.plan.traces))
    on = Path(traces[0]).name if len(traces) == 1 else f"{len(traces)} traces"
    policies = comparison.plan.policies
    return f"{policies[0].label if len(policies) == 1 else f'{len(policies)} policies'} on {on}"


def subtitle(comparison: Comparison) -> str:
    """Pool, load, mode, seeds, counted steps, in one sentence."""
    plan = comparison.plan
    pool = plan.pool
    size = f"DP{pool.ranks}" if pool.instances == 1 else f"{pool.instances} instances of DP{pool.ranks}"
    if plan.deployments:
        size = ", ".join(plan.deployments)
    load = f"{plan.target_concurrency():,} requests kept running"
    if plan.mode == "timed":
        load = "arrivals as in the trace"
        if plan.concurrency is not None:
            load = f"arrivals at the rate that keeps about {plan.concurrency:,} requests running"
        elif plan.rate_scale != 1:
            load = f"arrivals {plan.rate_scale:g} times as fast as in the trace"
    seeds = f"{plan.seeds} seed{'s' if plan.seeds > 1 else ''} a cell"
    requests = sum(r.arrived for c in comparison.cells for r in c.runs)
    names = ", ".join(c.name for c in plan.costs)
    costs = f"cost{'s' if len(plan.costs) > 1 else ''} {names}"
    return f"{size}; {load}; {costs}; {seeds}; {requests:,} requests replayed in all."


def headlines(comparison: Comparison, palette: Palette) -> list[Row]:
    """For every trace a card a cost: the least excess, by whom, against the baseline."""
    found = []
    for scene in first_scenes(comparison):
        cards = []
        for setting in scene.settings:
            best, baseline = comparison.best(setting), comparison.baseline(setting)
            notes = []
            if best.excess.method != "none":
                notes.append(f"95 % interval {bounds(best.excess)} %")
            if baseline is not best:
                notes.append(f"baseline {baseline.policy.label}: {percent(baseline.excess.mean)} %")
            cards.append(
                {
                    "key": f"under {setting.cost.name}",
                    "number": percent(best.excess.mean),
                    "policy": best.policy.label,
                    "colour": palette.token(best.policy.name),
                    "notes": notes,
                }
            )
        found.append({"words": scene.words, "cards": cards})
    return found


def verdict_pairs(comparison: Comparison) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Every verdict as (setting, sentence that begins with a capital): those of the first scenes, the others."""
    first = {id(s) for scene in first_scenes(comparison) for s in scene.settings}
    shown: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for setting, sentence in zip(comparison.settings(), verdicts(comparison), strict=True):
        head = setting_words(setting)
        body = sentence.removeprefix(f"{head}: ")
        (shown if id(setting) in first else others).append((head, body[:1].upper() + body[1:]))
    return shown, others


def setting_tables(comparison: Comparison, setting: Setting, palette: Palette) -> Row:
    """Results, differences and counts of one setting."""
    cells = comparison.of(setting)
    best = comparison.best(setting)

    def table(head: list[str], body: list[list[Box]], *, mark: bool = True) -> Row:
        rows = [
            {"best": mark and c is best and len(cells) > 1, "cells": [_name(c, palette), *r]}
            for c, r in zip(cells, body, strict=True)
        ]
        return {"head": [Box(h, left=h in ("policy", "verdict")) for h in ["policy", *head]], "rows": rows}

    timed = setting.mode != "saturated"
    head = ["excess, %", "balance, %", "max/mean batch", "max/mean context", "bubble, %", "step, ms"]
    head += ["TPOT p50, ms", "TPOT p99, ms", "queue wait p99, ms"] if timed else []
    return {
        "words": setting_words(setting),
        "results": table(head, [_results(c, timed) for c in cells]),
        "differences": _differences(comparison, setting, table),
        "counts": table(
            list(COUNTS),
            [_counts(c) for c in cells],
            mark=False,
        ),
        "count_words": _count_words(setting),
    }


def _name(cell: Cell, palette: Palette) -> Box:
    return Box(cell.policy.label, left=True, colour=palette.token(cell.policy.name))


def _results(cell: Cell, timed: bool) -> list[Box]:
    excess = cell.excess
    row: list[Box] = [
        Box(percent(excess.mean), interval="" if excess.method == "none" else f"({bounds(excess)})"),
        Box(percent(cell.mean("balance"))),
        Box(ratio(cell.mean("max_over_mean_batch"))),
        Box(ratio(cell.mean("max_over_mean_context"))),
        Box(percent(cell.mean("bubble_share"))),
        Box(short(cell.mean("mean_step_ms"))),
    ]
    if timed:
        tpot, wait = cell.percentiles("tpot_ms"), cell.percentiles("queue_wait_ms")
        row += [Box(MISSING if tpot is None else short(tpot[k])) for k in ("p50", "p99")]
        row += [Box(MISSING if wait is None else short(wait["p99"]))]
    return row


def _differences(
    comparison: Comparison, setting: Setting, table: Callable[[list[str], list[list[Box]]], Row]
) -> Row | None:
    cells = comparison.of(setting)
    if len(cells) < 2:
        return None
    baseline, best = comparison.baseline(setting), comparison.best(setting)
    against = [baseline] if baseline is best else [baseline, best]
    head = []
    for other in against:
        role = "baseline" if other is baseline else "least"
        role = "baseline and least" if baseline is best else role
        head += [f"against {other.policy.label} ({role})", "verdict"]
    body = []
    for cell in cells:
        row: list[Box] = []
        for other in against:
            row += _difference(comparison, cell, other)
        body.append(row)
    return table(head, body)


def _difference(comparison: Comparison, cell: Cell, other: Cell) -> list[Box]:
    if cell is other:
        return [Box(""), Box("", left=True)]
    d = comparison.difference(cell, other).excess
    if d.method == "none":
        return [Box(points(d.mean)), Box("no interval", left=True)]
    word = "no difference shown" if d.covers_zero else "less" if d.mean < 0 else "more"
    return [Box(points(d.mean), interval=f"({bounds(d, sign=True)})"), Box(word, left=True)]


def _counts(cell: Cell) -> list[Box]:
    first, last = cell.runs[0].counted_range
    sums = (
        "arrived",
        "rejected",
        "blocked_requests",
        "blocked_rounds",
        "over_capacity_rank_steps",
        "counted_steps",
    )
    numbers = [sum(getattr(r, field) for r in cell.runs) for field in sums]
    return [Box(count(n)) for n in (*numbers, first, last)]


def _count_words(setting: Setting) -> str:
    pool = setting.pool
    limits = []
    if pool.kv_capacity_tokens is not None:
        limits.append(f"{pool.kv_capacity_tokens:,} tokens")
    if pool.max_batch is not None:
        limits.append(f"{pool.max_batch:,} requests")
    capacity = f"A rank holds {' and '.join(limits)}." if limits else "Ranks have no capacity limit."
    return f"Sums over all seeds. {capacity} Rejected: larger than a rank. Blocked: fitted nowhere at first and waited."


def config_text(comparison: Comparison) -> str:
    """The resolved configuration as TOML."""
    text = tomli_w.dumps(resolved_config(comparison.plan))
    if len(text) <= LONGEST_CONFIG:
        return text
    return text[:LONGEST_CONFIG] + "\n# cut here; the whole is in config.resolved.toml\n"


def environment_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """Machine and versions, one pair a line."""
    found = environment(comparison)
    rows = []
    for key, value in found.items():
        if key == "libraries":
            rows += [(name, str(version)) for name, version in value.items()]
        elif key == "arguments":
            rows.append(("arguments", " ".join(value) or "none"))
        elif key == "replay_s":
            rows.append(("time of all replays", f"{value:.2f} s"))
        else:
            rows.append((key, str(value)))
    return rows

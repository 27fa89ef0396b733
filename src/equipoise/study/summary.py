"""The summary of a comparison as plain data: ``equipoise.compare/1``, whose JSON schema is published.

Same input, seed and version give the same bytes; the one thing that cannot, how long the runs took, is only in what
``--json`` prints.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from equipoise.study.bounds import BASELINE, Bound, share_of
from equipoise.study.compare import Cell, Comparison
from equipoise.study.jobs import Run
from equipoise.study.plan import Setting
from equipoise.study.statistics import CONFIDENCE, Interval
from equipoise.study.verdicts import difference_words, verdicts

__all__ = ["SCHEMA", "plain_interval", "plain_setting", "schema", "summarize", "to_json"]

SCHEMA = "equipoise.compare/1"


def schema() -> dict[str, Any]:
    """The JSON schema of the summary."""
    text = (files("equipoise.study") / "schemas" / "compare-1.json").read_text("utf-8")
    return dict(json.loads(text))


def summarize(comparison: Comparison, *, timing: bool = False) -> dict[str, Any]:
    """Everything a script would want to know of a comparison.

    Parameters
    ----------
    comparison : Comparison
    timing : bool
        Include ``wall_s``, the one field that differs from run to run.
    """
    return {
        "schema": SCHEMA,
        "version": version("equipoise"),
        "confidence": CONFIDENCE,
        "counted": "steps from which on finished requests stay at or above warmup_turnovers x the peak of "
        "running ones, until the last request is placed",
        "warmup_turnovers": comparison.plan.warmup_turnovers,
        "cells": [_cell(comparison, c, timing) for c in comparison.cells],
        **({"oracle": [_bound(b) for b in comparison.bounds]} if comparison.bounds else {}),
        "differences": _differences(comparison),
        "verdicts": verdicts(comparison),
    }


def to_json(summary: dict[str, Any]) -> str:
    """Readable JSON with a stable order of keys, ending in a newline."""
    return json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain_setting(setting: Setting) -> dict[str, Any]:
    """A setting as plain data."""
    pool = setting.pool
    return {
        "trace": setting.trace,
        "cost": setting.cost.name,
        "mode": setting.mode,
        "ranks": pool.ranks,
        "instances": pool.instances,
        "groups": pool.groups,
        "group_policy": setting.group_policy if setting.grouped else None,
        "concurrency": setting.concurrency,
        "information": None if setting.information.plain else asdict(setting.information),
        "deployment": setting.deployment_name,
    }


def _policy(cell: Cell) -> dict[str, Any]:
    return {"policy": cell.policy.name, "params": dict(cell.policy.params), "label": cell.policy.label}


def plain_interval(interval: Interval) -> dict[str, Any]:
    """An interval as JSON can say it: null for a bound that is not known."""
    return {
        "mean": _plain(interval.mean),
        "low": _plain(interval.low),
        "high": _plain(interval.high),
        "method": interval.method,
    }


def _bound(bound: Bound) -> dict[str, Any]:
    return {
        **plain_setting(bound.setting),
        "excess": plain_interval(bound.excess),
        "tokens_per_s": sum(r.tokens_per_s for r in bound.runs) / len(bound.runs),
        "mean_step_ms": sum(r.mean_step_ms for r in bound.runs) / len(bound.runs),
        "baseline": BASELINE,
        "baseline_excess": plain_interval(bound.baseline_excess),
        "candidates": bound.candidates,
        "runs": [
            {"seed": run.seed, "excess": run.excess, "baseline_excess": plain.excess, "start": start}
            for run, plain, start in zip(bound.runs, bound.baseline, bound.starts, strict=True)
        ],
    }


def _cell(comparison: Comparison, cell: Cell, timing: bool) -> dict[str, Any]:
    row = {
        **plain_setting(cell.setting),
        **_policy(cell),
        "excess": plain_interval(cell.excess),
        "balance": cell.mean("balance"),
        "max_over_mean_batch": cell.mean("max_over_mean_batch"),
        "max_over_mean_context": cell.mean("max_over_mean_context"),
        "bubble_share": cell.mean("bubble_share"),
        "mean_step_ms": cell.mean("mean_step_ms"),
        "mean_batch": cell.mean("mean_batch"),
        "mean_context_tokens": cell.mean("mean_context_tokens"),
        "tokens_per_s": cell.mean("tokens_per_s"),
        "queue_wait_ms": cell.percentiles("queue_wait_ms"),
        "tpot_ms": cell.percentiles("tpot_ms"),
        "requests": sum(r.arrived for r in cell.runs),
        "rejected": sum(r.rejected for r in cell.runs),
        "blocked_requests": sum(r.blocked_requests for r in cell.runs),
        "blocked_rounds": sum(r.blocked_rounds for r in cell.runs),
        "over_capacity_rank_steps": sum(r.over_capacity_rank_steps for r in cell.runs),
        "steps": sum(r.counted_steps for r in cell.runs),
        "seeds": len(cell.runs),
        "runs": [_run(r) for r in cell.runs],
    }
    bound = comparison.bound(cell.setting)
    if bound is not None:
        row["share_of_winnable"] = plain_interval(share_of(cell, bound))
    if timing:
        row["wall_s"] = sum(r.wall_s for r in cell.runs)
    return row


def _run(run: Run) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "excess": run.excess,
        "rate_scale": run.rate_scale,
        "steps": run.steps,
        "counted_steps": run.counted_steps,
        "first_counted_step": run.counted_range[0],
        "last_counted_step": run.counted_range[1],
        "first_counted_s": run.counted_s[0],
        "last_counted_s": run.counted_s[1],
    }


def _differences(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for setting in comparison.settings():
        for role, against in (("baseline", comparison.baseline(setting)), ("best", comparison.best(setting))):
            for cell in comparison.of(setting):
                if cell is against:
                    continue
                difference = comparison.difference(cell, against)
                rows.append(
                    {
                        **plain_setting(setting),
                        **_policy(cell),
                        "against": role,
                        "against_label": against.policy.label,
                        "difference": plain_interval(difference.excess),
                        "verdict": difference_words(difference),
                    }
                )
    return rows


def _plain(value: float) -> float | None:
    """NaN and infinity to None."""
    return float(value) if math.isfinite(value) else None

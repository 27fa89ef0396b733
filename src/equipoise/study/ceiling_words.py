"""The verdict of a ceiling: numbers against stated thresholds, in words and as plain data."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Literal

from equipoise.study.bounds import BASELINE
from equipoise.study.ceiling import Ceiling, Row
from equipoise.study.plan import ComparePlan
from equipoise.study.statistics import CONFIDENCE, Interval
from equipoise.study.summary import plain_interval, plain_setting
from equipoise.study.verdicts import setting_words

__all__ = ["LITTLE", "MUCH", "SCHEMA", "ceiling_schema", "decide", "summarize_ceilings", "words"]

SCHEMA = "equipoise.ceiling/1"
LITTLE = 0.01
"""Share of a step's time below which nothing is worth an effort."""
MUCH = 0.05
"""Share from which balancing is one of the first things to do."""
DILUTED = 0.2
"""Fixed share of a step from which the words mention it."""
DOMINANT = 2.0
"""How many times the other part one must be to be called the one that matters."""

Answer = Literal["not shown", "no", "a simple rule is enough", "yes, a little", "yes"]


def decide(found: Ceiling) -> Answer:
    """The answer in a few words.

    ``not shown``: the seeds do not tell the baseline from the oracle. ``no``: less than `LITTLE` of a step is there to
    win. ``a simple rule is enough``: the better of the two simple rules leaves less than `LITTLE`. Else ``yes``, from
    `MUCH` of a step on, or ``yes, a little``.
    """
    if not found.lost.covers_zero or found.lost.method == "none":
        if found.lost.mean < LITTLE:
            return "no"
        if found.simple_lost.mean < LITTLE:
            return "a simple rule is enough"
        return "yes" if found.lost.mean >= MUCH else "yes, a little"
    return "no" if found.lost.mean < LITTLE and found.lost.high < LITTLE else "not shown"


def words(found: Ceiling) -> str:
    """The verdict as a paragraph."""
    answer = decide(found)
    said = [
        f"Is balancing worth doing here? {answer[:1].upper()}{answer[1:]}.",
        f"{BASELINE} spends {_percent(found.lost)} of every step on waiting that the oracle saves, random "
        f"{_number(found.random_lost)} %.",
    ]
    if answer == "not shown":
        said.append("The seeds do not tell them apart: use more (--seeds), or longer runs (--requests).")
    if answer == "a simple rule is enough":
        said.append(f"{found.simple} leaves {_percent(found.simple_lost)}.")
    if answer in ("yes", "yes, a little"):
        gain = found.best_over_simple
        if gain.covers_zero:
            said.append(
                f"{found.simple} leaves {_percent(found.simple_lost)}; that {found.best} is better is not shown."
            )
        else:
            said.append(
                f"{found.simple} still leaves {_percent(found.simple_lost)}, {found.best} "
                f"{_percent(found.best_lost)}."
            )
        if found.best_lost.mean < LITTLE:
            said.append("Beyond that even the oracle wins next to nothing.")
    if found.lost.method == "none":
        said.append("One seed shows no spread: use more (--seeds).")
    if answer != "no":
        said.append(_parameter(found))
    if found.fixed >= DILUTED:
        said.append(
            f"{_number(found.fixed, 0)} % of an ideal step are fixed, which no router touches: without it the shares "
            f"would be about {1 / (1 - found.fixed):.1f} times as large."
            if found.fixed < 0.99
            else "Nearly all of a step is fixed, which no router touches."
        )
    return " ".join(part for part in said if part)


def _parameter(found: Ceiling) -> str:
    batch, context = found.batch_part, found.context_part
    if max(batch, context) <= 0:
        return ""
    parts = f"under {BASELINE} uneven batches alone cost {_number(batch, 1)} %, uneven contexts {_number(context, 1)} %"
    if batch > DOMINANT * context:
        return f"Batches matter most: {parts}."
    if context > DOMINANT * batch:
        return f"Contexts matter most: {parts}."
    return f"Batches and contexts both matter: {parts}."


def _number(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}"


def _percent(interval: Interval) -> str:
    ends = (
        ""
        if not (math.isfinite(interval.low) and math.isfinite(interval.high))
        else f" ({_number(interval.low)} to {_number(interval.high)})"
    )
    return f"{_number(interval.mean)} %{ends}"


def ceiling_schema() -> dict[str, Any]:
    """The JSON schema of the summary."""
    return dict(json.loads((files("equipoise.study") / "schemas" / "ceiling-1.json").read_text("utf-8")))


def summarize_ceilings(plan: ComparePlan, found: list[Ceiling]) -> dict[str, Any]:
    """Everything a script would want to know."""
    return {
        "schema": SCHEMA,
        "version": version("equipoise"),
        "confidence": CONFIDENCE,
        "baseline": BASELINE,
        "seeds": plan.seeds,
        "thresholds": {"little": LITTLE, "much": MUCH},
        "ceilings": [_plain(c) for c in found],
    }


def _plain(found: Ceiling) -> dict[str, Any]:
    return {
        **plain_setting(found.setting),
        "rows": [_plain_row(row) for row in found.rows],
        "lost": plain_interval(found.lost),
        "random_lost": found.random_lost,
        "simple": found.simple,
        "simple_lost": plain_interval(found.simple_lost),
        "best": found.best,
        "best_lost": plain_interval(found.best_lost),
        "best_over_simple": plain_interval(found.best_over_simple),
        "fixed": found.fixed,
        "batch_part": found.batch_part,
        "context_part": found.context_part,
        "answer": decide(found),
        "verdict": f"{setting_words(found.setting)}: {words(found)}",
    }


def _plain_row(row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "excess": plain_interval(row.excess),
        "tokens_per_s": plain_interval(row.tokens_per_s),
        "tpot_ms": plain_interval(row.tpot_ms),
        "share_of_winnable": plain_interval(row.share),
    }

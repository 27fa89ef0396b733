"""A comparison of runs as plain data: ``equipoise.compare-runs/1``, whose JSON schema is published."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from equipoise.study.pairs.measured import LESS_IS_BETTER, Measured, Pair, RunComparison
from equipoise.study.pairs.words import pair_words, verdict_words
from equipoise.study.statistics import CONFIDENCE
from equipoise.study.summary import plain_interval

__all__ = ["SCHEMA", "schema", "summarize"]

SCHEMA = "equipoise.compare-runs/1"


def schema() -> dict[str, Any]:
    """The JSON schema of what `summarize` gives."""
    text = (files("equipoise.study") / "schemas" / "compare-runs-1.json").read_text("utf-8")
    return dict(json.loads(text))


def summarize(comparison: RunComparison) -> dict[str, Any]:
    """Everything a comparison of runs found; the same files give the same bytes."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return {
        "schema": SCHEMA,
        "version": version("equipoise"),
        "confidence": CONFIDENCE,
        "intervals": comparison.intervals,
        "margin_percent": None if comparison.margin is None else 100 * comparison.margin,
        "runs": [
            {"letter": letter, "source": s} for letter, s in zip(letters, comparison.sources, strict=False)
        ],
        "pairs": [_pair(p) for p in comparison.pairs],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    blocks = {"block_s": pair.block_s, "blocks": pair.blocks, "reason": pair.block_reason}
    return {
        "a": pair.letters[0],
        "b": pair.letters[1],
        "cell": dict(pair.cell),
        "labels": [pair.a.cell.get("label"), pair.b.cell.get("label")],
        "pairing": pair.pairing,
        "requests": list(pair.requests),
        "blocks": blocks if math.isfinite(pair.block_s) else None,
        "endings": [{"a": e.a, "b": e.b, "requests": e.requests, "rows": list(e.rows)} for e in pair.endings],
        "measures": [_measured(m, pair) for m in pair.measured],
        "notes": list(pair.notes),
        "verdicts": pair_words(pair),
    }


def _measured(m: Measured, pair: Pair) -> dict[str, Any]:
    ratio, low, high = m.ratio
    known = m.log_ratio.method
    return {
        "quantity": m.quantity,
        "statistic": m.statistic,
        "better": "less" if LESS_IS_BETTER[m.quantity] else "more",
        "a": _plain(m.a),
        "b": _plain(m.b),
        "difference": plain_interval(m.difference),
        "ratio": {"mean": _plain(ratio), "low": _plain(low), "high": _plain(high), "method": known},
        "verdict": m.verdict,
        "within_margin": m.within_margin,
        "words": verdict_words(m, *pair.letters),
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None

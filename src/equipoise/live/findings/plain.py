"""An analysis as plain data: ``equipoise.live-analysis/1``, whose JSON schema is published."""

from __future__ import annotations

import json
import math
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from equipoise.live.findings.agreement import Level, Ranking
from equipoise.live.findings.analysis import Agreement, Analysis, PolicyNumbers
from equipoise.live.findings.beyond import beyond_words
from equipoise.live.findings.gap import Gap
from equipoise.live.findings.gap_words import agreement_words, gap_words
from equipoise.live.findings.pairs import Finding
from equipoise.live.findings.residuals import Region
from equipoise.live.findings.sentences import finding_words, traffic_words
from equipoise.study.statistics import CONFIDENCE, Interval
from equipoise.study.summary import plain_interval

__all__ = ["SCHEMA", "schema", "summarize", "to_json"]

SCHEMA = "equipoise.live-analysis/1"


def schema() -> dict[str, Any]:
    """The JSON schema of what `summarize` gives."""
    text = (files("equipoise.live") / "schemas" / "analysis-1.json").read_text("utf-8")
    return dict(json.loads(text))


def to_json(analysis: Analysis) -> str:
    """`summarize` as text; the same folder gives the same bytes."""
    return json.dumps(summarize(analysis), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def summarize(analysis: Analysis) -> dict[str, Any]:
    """Everything that was found in a live run."""
    about = analysis.runs.about
    agreement = analysis.agreement
    return {
        "schema": SCHEMA,
        "version": version("equipoise"),
        "run": {
            "started_at": about.started_at,
            "state": about.state,
            "engine": about.engine.kind,
            "engine_version": about.engine.version,
            "model": about.engine.model,
            "instances": len(about.engine.instances),
            "ranks": list(analysis.runs.ranks),
            "mode": about.mode,
            "scale": about.scale,
            "concurrency": about.concurrency,
            "trace": about.trace.name,
            "trace_digest": about.trace.digest,
            "requests": about.trace.requests,
        },
        "confidence": CONFIDENCE,
        "margin_percent": 100 * analysis.margin,
        "slo": {"ttft_ms": analysis.slo.ttft_ms, "tpot_ms": analysis.slo.tpot_ms},
        "policies": [_policy(p) for p in analysis.policies],
        "classes": [
            {"class": name, "policies": [_policy(p) for p in found]}
            for name, found in analysis.by_class.items()
        ],
        "pairs": [_finding(f) for f in analysis.findings],
        "intervals_at_once": analysis.pairs,
        "traffic": analysis.traffic_words,
        "prediction": None if agreement is None else _agreement(agreement),
        "no_prediction": analysis.no_agreement or None,
        "notes": list(analysis.notes),
    }


def _policy(p: PolicyNumbers) -> dict[str, Any]:
    return {
        "policy": p.policy,
        "repeats": p.repeats,
        "outcomes": dict(p.outcomes),
        "measures": {
            name: {**plain_interval(p.mean(name)), "values": [_plain(v) for v in values]}
            for name, values in p.values.items()
        },
    }


def _finding(f: Finding) -> dict[str, Any]:
    r = f.resolve
    return {
        "measure": f.measure.name,
        "scale": f.measure.scale,
        "better": "less" if f.measure.less_is_better else "more",
        "a": f.a,
        "b": f.b,
        "values_a": [_plain(v) for v in f.values_a],
        "values_b": [_plain(v) for v in f.values_b],
        "change": _change(f, f.interval),
        "change_alone": _change(f, f.alone),
        "change_on_other_traffic": _change(f, f.traffic),
        "verdict": f.verdict,
        "within_margin": f.within_margin,
        "repeats_needed": None
        if r is None
        else {
            "difference": r.difference,
            "to_resolve": r.repeats,
            "to_resolve_at_most": r.at_most,
            "to_show_equal": r.to_equal,
        },
        "words": finding_words(f),
        "traffic_words": traffic_words(f) or None,
    }


def _change(f: Finding, i: Interval) -> dict[str, Any]:
    return {
        "mean": _plain(f.change(i.mean)),
        "low": _plain(f.change(i.low)),
        "high": _plain(f.change(i.high)),
        "method": i.method,
    }


def _agreement(a: Agreement) -> dict[str, Any]:
    from equipoise.cost import to_dict

    p = a.prediction
    return {
        "cost": to_dict(p.cost),
        "source": p.source,
        "fit": None if p.calibration is None else p.calibration.to_dict(),
        "prefill_priced": p.prefill,
        "unpredicted": dict(p.unpredicted),
        "levels": [_level(x) for x in a.levels],
        "rankings": [_ranking(x) for x in a.rankings],
        "gaps": [_gap(x) for x in a.gaps],
        "regions": [_region(x) for x in a.regions],
        "no_regions": a.no_regions or None,
        "beyond": {
            "state": a.beyond.state,
            "us_per_mean_request": None
            if a.beyond.us_per_mean_request is None
            else plain_interval(a.beyond.us_per_mean_request),
            "share_of_step": _plain(a.beyond.share),
            "noise": _plain(a.beyond.noise),
            "reason": a.beyond.reason or None,
            "words": beyond_words(a.beyond),
        },
        "notes": list(p.notes),
        "words": agreement_words(a),
    }


def _level(x: Level) -> dict[str, Any]:
    off, low, high = x.off
    return {
        "measure": x.measure.name,
        "policy": x.policy,
        "predicted": _plain(x.predicted),
        "measured": _plain(x.measured),
        "off": {"mean": _plain(off), "low": _plain(low), "high": _plain(high), "method": x.log_ratio.method},
        "partial": x.partial,
    }


def _ranking(x: Ranking) -> dict[str, Any]:
    return {
        "measure": x.measure.name,
        "right": x.count("right"),
        "wrong": x.count("wrong"),
        "undecided": x.count("undecided"),
        "tau": {"value": _plain(x.tau), "low": _plain(x.low), "high": _plain(x.high)},
        "pairs": [
            {
                "a": p.a,
                "b": p.b,
                "predicted": _plain(math.expm1(p.predicted)),
                "measured": _plain(math.expm1(p.measured.mean)),
                "agrees": p.agrees,
            }
            for p in x.pairs
        ],
    }


def _gap(x: Gap) -> dict[str, Any]:
    parts = {
        name: None if (i := getattr(x, name)) is None else plain_interval(i)
        for name in (
            *("itl_ms", "loads_ms", "price_ms", "prompts_ms"),
            *("ttft_ms", "sent_late_ms", "wait_ms", "rest_ms"),
        )
    }
    return {"policy": x.policy, **parts, "words": gap_words(x)}


def _region(x: Region) -> dict[str, Any]:
    i = x.log_ratio
    return {
        "batch": list(x.batch),
        "context_tokens": list(x.context_tokens),
        "tokens": x.tokens,
        "share": x.share,
        "measured_ms": x.measured_ms,
        "priced_ms": x.priced_ms,
        "off": {
            "mean": _plain(math.expm1(i.mean)),
            "low": _plain(math.expm1(i.low)),
            "high": _plain(math.expm1(i.high)),
            "method": i.method,
        },
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None

"""Runs in which nearly nothing came back: an analysis says what it can, and never fails."""

from __future__ import annotations

import io
from pathlib import Path

import jsonschema
import numpy as np
import polars as pl
import pytest
from made_runs import STEP, about, mixture, trace_frame

from equipoise.errors import InputError
from equipoise.live.findings import schema, summarize
from equipoise.live.findings.analysis import Analysis, analyse_runs
from equipoise.live.findings.numbers import Slo
from equipoise.live.findings.plain import to_json
from equipoise.live.findings.runs import build_runs
from equipoise.live.findings.tables import print_analysis
from equipoise.live.rows import TABLES, empty
from equipoise.traces import Trace

POLICIES = ("least_batch", "round_robin", "engine")


def rows(told: object, trace: Trace, **changes: object) -> pl.DataFrame:
    """Every request answered at an even pace, but for what is changed."""
    n = len(trace)
    frames = []
    for run in told.runs:  # type: ignore[attr-defined]
        first = trace.arrival_s + 0.02 + 0.001 * run.order
        gaps = [np.full(t - 1, 8.0) for t in trace.output_tokens]
        frame = {
            "policy": [run.policy] * n,
            "repeat": [run.repeat] * n,
            "order": [run.order] * n,
            "request": np.arange(n),
            "intended_s": trace.arrival_s,
            "sent_s": trace.arrival_s,
            "first_token_s": first,
            "finished_s": first + 0.008 * (trace.output_tokens - 1),
            "prompt_tokens": trace.context_tokens,
            "output_tokens": trace.output_tokens,
            "rank": np.arange(n) % 4,
            "instance": ["i0"] * n,
            "outcome": ["ok"] * n,
            "message": pl.Series([None] * n, dtype=pl.String),
            "itl_ms": pl.Series(gaps, dtype=pl.List(pl.Float32)),
        }
        frame |= changes
        frames.append(pl.DataFrame(frame).select(pl.col(c).cast(d) for c, d in TABLES["requests"].items()))
    return pl.concat(frames)


def analysed(trace: Trace, requests: pl.DataFrame, repeats: int = 2, **options: object) -> Analysis:
    told = about(POLICIES, repeats, trace)
    runs = build_runs(told, trace_frame(trace), requests, empty("scrapes"))
    found = analyse_runs(runs, cost=STEP, **options)  # type: ignore[arg-type]
    to_json(found)  # no number in it is none
    return found


def said(found: Analysis) -> str:
    from rich.console import Console

    console = Console(width=80, record=True, file=io.StringIO())
    print_analysis(found, Path("live-1"), console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    return text


ONE = Trace.from_columns("one", np.array([0.0]), np.array([100]), np.array([5]))
AT_ONCE = Trace.from_columns("at once", np.zeros(40), np.full(40, 50), np.full(40, 20))
SHORT = Trace.from_columns("short", np.arange(40) / 10, np.full(40, 50), np.full(40, 1))


@pytest.mark.parametrize("trace", [ONE, AT_ONCE, SHORT], ids=["one", "at once", "one token each"])
def test_strange_traces(trace: Trace) -> None:
    found = analysed(trace, rows(about(POLICIES, 2, trace), trace))
    said(found)
    jsonschema.validate(summarize(found), schema())


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": ["timeout"] * 60},
        {"outcome": ["ok"] + ["reset"] * 59},
        {"outcome": ["wrong_length"] * 60},
        {"rank": np.full(60, -1)},
        {"instance": ["elsewhere"] * 60},
        {"itl_ms": pl.Series([[]] * 60, dtype=pl.List(pl.Float32))},
        {"first_token_s": pl.Series([None] * 60, dtype=pl.Float64)},
        {"sent_s": pl.Series([None] * 60, dtype=pl.Float64)},
        {"request": np.arange(60) + 1_000_000},
        {"prompt_tokens": pl.Series([None] * 60, dtype=pl.Int64)},
    ],
    ids=lambda c: next(iter(c)),
)
def test_strange_answers(changes: dict[str, object]) -> None:
    trace = mixture(60)
    said(analysed(trace, rows(about(POLICIES, 2, trace), trace, **changes)))


def test_one_policy_lost_everything() -> None:
    trace = mixture(60)
    whole = rows(about(POLICIES, 2, trace), trace)
    lost = pl.when(pl.col("policy") == "round_robin").then(pl.lit("refused_429")).otherwise(pl.col("outcome"))
    text = said(analysed(trace, whole.with_columns(lost.alias("outcome"))))
    assert "round_robin: 120 of 120 requests failed (120 refused_429)" in " ".join(text.split())


def test_the_engines_own_router_is_not_predicted() -> None:
    trace = mixture(60)
    found = analysed(trace, rows(about(POLICIES, 2, trace), trace), slo=Slo(tpot_ms=9.0))
    assert found.agreement is not None
    assert "engine" in found.agreement.prediction.unpredicted
    assert {p.values["good_share.mean"] for p in found.policies} == {(1.0, 1.0)}


def test_a_bound_below_zero() -> None:
    with pytest.raises(InputError, match="--ttft-ms"):
        Slo(ttft_ms=-1.0)


def test_requests_twice() -> None:
    trace = mixture(60)
    with pytest.raises(InputError, match="no row numbers"):
        build_runs(
            about(POLICIES, 2, trace),
            trace_frame(trace).with_columns(request=pl.lit(1, pl.Int64)),
            rows(about(POLICIES, 2, trace), trace),
            empty("scrapes"),
        )

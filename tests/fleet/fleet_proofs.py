"""Runs of `simulate` for tests that look at everything: no verdict on the run, and lengths that repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from equipoise.cost.step_cost import StepCost, Term
from equipoise.fleet import engine, simulate
from equipoise.fleet.kernel.layout import STATUS_NAMES
from equipoise.policies.calling import learn_nothing
from equipoise.traces.trace import Trace

CONSTANT = StepCost("a second a step", (Term("none", per_request=0.0),), constant=1.0, us_per_unit=1e6)
"""Every step takes a second, so the clock counts steps."""
LINEAR = StepCost(
    "linear", (Term("shared", 0.7), Term("full", 0.3, per_100k_context=130.0)), constant=2.0, us_per_unit=1e4
)


def trace_of(arrival_s, context_tokens, output_tokens, **columns):
    n = max(np.size(arrival_s), np.size(context_tokens), np.size(output_tokens))
    spread = [np.broadcast_to(c, n) for c in (arrival_s, context_tokens, output_tokens)]
    return Trace.from_columns("test", *spread, **columns)


def simulated(trace, deployment, policy, cost, *, series_rows=1024, engine_name="kernel", **options):
    """`simulate` by the kernel, without its verdict, so that short and broken runs can be looked at too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_check", lambda *arguments, **named: None)
        patch.setattr(engine, "_check_fits", lambda *arguments, **named: None)
        patch.setattr(engine, "SERIES_ROWS", series_rows)
        return simulate(trace, deployment, policy, cost, engine=engine_name, **options)


def by_status(run):
    """How many requests ended in each way."""
    return dict(zip(STATUS_NAMES, np.bincount(run.status, minlength=len(STATUS_NAMES)).tolist(), strict=True))


def run_case(case, run_kernel):
    """Outcomes of a case by the kernel."""
    finished = case.finished if case.settings.tells_finished else learn_nothing
    return replace(case, finished=finished).run(run_kernel)


def lived(run):
    """Everything about the requests that a run keeps, bit by bit, and what all of them together came to."""
    o, m = run.outcome, run.more
    kept = {name: getattr(o, name) for name in ("start_s", "finish_s", "rank")}
    kept |= m._asdict()
    return {name: (column.shape, column.tobytes()) for name, column in kept.items()}

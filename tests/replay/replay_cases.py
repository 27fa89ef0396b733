"""What the replay tests share: runs without the last checks, results as comparable bytes, small costs and traces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from equipoise.cost.step_cost import StepCost, Term
from equipoise.replay import SnapshotPlan, engine, replay
from equipoise.replay.layout import ENDED, Outcome
from equipoise.traces.trace import Trace

CONSTANT = StepCost("one second a step", (Term("none", per_request=0.0),), constant=1.0, us_per_unit=1e6)
"""Every step takes a second, so the clock counts steps."""
LINEAR = StepCost(
    "linear", (Term("shared", 0.7), Term("full", 0.3, per_100k_context=130.0)), constant=2.0, us_per_unit=1e4
)
EVERY_STEP = SnapshotPlan(2000)


def quick(examples):
    """Hypothesis settings of this folder: the same cases every time, no clock."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )


def trace_of(arrival_s, context_tokens, output_tokens, **columns):
    n = max(np.size(arrival_s), np.size(context_tokens), np.size(output_tokens))
    spread = [np.broadcast_to(c, n) for c in (arrival_s, context_tokens, output_tokens)]
    return Trace.from_columns("test", *spread, **columns)


def run_unchecked(trace, pool, policy, cost, *, series_rows=1024, **options):
    """`replay` without its verdict on the run, so that short and broken runs can be looked at too.

    None where no request fits on a rank.
    """
    layout = pool.layout()
    if trace.context_tokens.min() > layout.kv_capacity_tokens - layout.growth_reserve_tokens:
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "check_outcome", lambda *arguments, **named: None)
        return replay(trace, pool, policy, cost, series_rows=series_rows, **options)


def as_bytes(outcome: Outcome):
    """Every array of an outcome, bit by bit."""
    return {name: (array.shape, array.tobytes()) for name, array in outcome._asdict().items()}


def ended(result):
    """Counts at the end of a run, by name."""
    return {name: int(result.outcome.ended[i]) for name, i in ENDED._asdict().items()}

"""The summary of one simulated run as plain data: ``equipoise.run/1``, whose JSON schema is published.

Same input, seed and version give the same bytes; what cannot, how long the run took, is only there with ``timing``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from equipoise.fleet import FleetResult
from equipoise.fleet.classes import By
from equipoise.fleet.kernel.layout import COUNTS
from equipoise.fleet.metrics import RequestMetrics
from equipoise.replay import Percentiles

__all__ = ["SCHEMA", "run_schema", "summarize_run"]

SCHEMA = "equipoise.run/1"
COUNTED = (
    "requests whose first token falls between the start of the first counted step and the end of the last, "
    "and that got all their tokens"
)


def run_schema() -> dict[str, Any]:
    """The JSON schema of the summary of a run."""
    text = (files("equipoise.study") / "schemas" / "run-1.json").read_text("utf-8")
    return dict(json.loads(text))


def summarize_run(result: FleetResult, *, by: Sequence[By] = (), timing: bool = False) -> dict[str, Any]:
    """Everything a script would want to know of a run.

    Parameters
    ----------
    result : FleetResult
    by : sequence of {"context", "output", "turn"}
        Measure the requests class by class, too.
    timing : bool
        Include ``wall_s`` and ``decisions_per_s``, which differ from run to run.

    Raises
    ------
    InputError
        Classes of requests that were not kept.
    """
    first, last = result.counted_s
    row: dict[str, Any] = {
        "schema": SCHEMA,
        "version": version("equipoise"),
        **run_setting(result),
        "counted": COUNTED,
        "counted_window": {
            "first_s": first,
            "last_s": last,
            "first_step": result.counted_range[0],
            "last_step": result.counted_range[1],
            "steps": result.counted_steps,
        },
        "steps": result.steps,
        "simulated_s": result.simulated_s,
        **{name: _plain(getattr(result, name)) for name in MEASURES},
        "parts": {
            name: {"mean": _plain(mean), "share": _plain(share)}
            for (name, mean), share in zip(result.parts.items(), result.part_shares.values(), strict=True)
        },
        "running_step_ms": percentiles(result.running_step_ms),
        "counts": counts(result),
        "slo": asdict(result.deployment.slo),
        "requests": None if (all_of_them := result.requests) is None else plain_requests(all_of_them),
        "classes": {
            word: {label: plain_requests(found) for label, found in result.by_class(word).items()}
            for word in by
        },
    }
    if timing:
        row |= {"wall_s": result.wall_s, "decisions_per_s": _plain(result.decisions_per_s)}
    return row


MEASURES = (
    "excess",
    "attention_excess",
    "balance",
    "bubble_share",
    "max_over_mean_batch",
    "max_over_mean_context",
    "mean_cost",
    "mean_step_ms",
    "mean_batch",
    "mean_context_tokens",
    "tokens_per_s",
    "placements_per_s",
)
"""Properties of the result that are one number each."""


def run_setting(result: FleetResult) -> dict[str, Any]:
    """What was run, the deployment and the prices of the cost left out."""
    pool, known = result.pool, result.information
    return {
        "trace": result.trace_name,
        "requests_in_trace": len(result.context_tokens),
        "policy": result.policy_name,
        "params": dict(result.params),
        "cost": result.cost.name,
        "cost_unit": result.cost.unit,
        "us_per_unit": result.cost.us_per_unit,
        "mode": result.mode,
        "seed": result.seed,
        "concurrency": result.concurrency,
        "rate_scale": result.rate_scale,
        "warmup_turnovers": result.warmup_turnovers,
        "group_policy": result.group_policy,
        "instances": pool.instances,
        "ranks": pool.ranks,
        "groups": pool.groups,
        "information": None if known.plain else asdict(known),
    }


def counts(result: FleetResult) -> dict[str, int]:
    """Counts over the whole run."""
    whole = {
        "arrived": result.arrived,
        "finished": result.finished,
        **result.counts,
        "blocked_requests": result.blocked_requests,
        "blocked_rounds": result.blocked_rounds,
        "rounds": result.rounds,
        "over_capacity_rank_steps": result.over_capacity_rank_steps,
    }
    assert len(whole) == len(COUNTS) + 6
    return whole


def plain_requests(found: RequestMetrics) -> dict[str, Any]:
    """Latencies, rates and goodput as JSON can say them."""
    good = found.goodput
    return {
        "counted": found.requests,
        "refused": found.refused,
        "requests_per_s": _plain(found.requests_per_s),
        "tokens_per_s": _plain(found.tokens_per_s),
        "ttft_ms": percentiles(found.ttft_ms),
        "tpot_ms": percentiles(found.tpot_ms),
        "mean_itl_ms": found.mean_itl_ms,
        "end_to_end_ms": percentiles(found.end_to_end_ms),
        "before_queue_ms": percentiles(found.before_queue_ms),
        "queue_wait_ms": percentiles(found.queue_wait_ms),
        "goodput": None if good is None else {k: _plain(v) for k, v in asdict(good).items()},
    }


def percentiles(found: Percentiles | None) -> dict[str, Any] | None:
    """Mean and percentiles of one quantity; null where there was nothing to measure."""
    return None if found is None else asdict(found)


def _plain(value: float) -> float | None:
    """NaN and infinity to None; whole numbers stay whole."""
    return value if math.isfinite(value) else None

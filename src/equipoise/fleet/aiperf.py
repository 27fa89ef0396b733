"""A run in the shape of ``profile_export_aiperf.json``, so that what reads a measured run reads a simulated one.

Names, units, statistics and formulas are those of NVIDIA AIPerf, schema version 1.5. Sources, in
github.com/ai-dynamo/aiperf: the pages docs/reference/json-export-schema.md and docs/metrics-reference.md; for goodput
good_request_count_metric.py, good_request_fraction_metric.py and goodput_metric.py in src/aiperf/metrics/types. Metrics
of one value a request carry the whole block; counts, rates and totals carry ``unit`` and ``avg`` alone, as there.

What there is measured at a client is here on the clock of the simulation: no network, no tokenizer, one answer a step.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from equipoise.errors import InputError
from equipoise.fleet.kernel.layout import ABORTED, FAILED, FINISHED, REJECTED
from equipoise.fleet.metrics import counted, meets, need_requests, refused

if TYPE_CHECKING:
    from equipoise.fleet.result import FleetResult

__all__ = ["PERCENTILES", "SCHEMA_VERSION", "aiperf_blocks"]

SCHEMA_VERSION = "1.5"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)

Block = dict[str, Any]


def aiperf_blocks(result: FleetResult, *, over: Literal["counted", "run"] = "counted") -> dict[str, Any]:
    """The metric blocks of a run.

    Parameters
    ----------
    result : FleetResult
    over : {"counted", "run"}
        ``counted``: the counted requests, and the counted window as duration; steady state, like AIPerf behind its
        warm-up. ``run``: all requests, from the first arrival to the last end, ramp and drain included, which is what
        AIPerf does with a trace that it replays whole.

    Returns
    -------
    dict
        Ready for `json.dump`. A metric that no request has is left out, as there.

    Raises
    ------
    InputError
        Requests were not kept; a word that is none of the two.
    """
    need_requests(result)
    m = result.more
    if over == "counted":
        chosen, errors = counted(result), refused(result)
        first, last = result.counted_s
    elif over == "run":
        chosen = m.status == FINISHED
        errors = (m.status == REJECTED) | (m.status == FAILED) | ((m.status == ABORTED) & np.isnan(m.first_s))
        first, last = float(np.nanmin(m.came_s)), float(np.nanmax(m.ended_s))
    else:
        raise InputError(f"over = {over!r}", fix="use 'counted' or 'run'")
    seconds = last - first
    tokens = m.tokens[chosen].astype(np.int64)
    context = result.context_tokens[chosen]
    came, began, ended = m.came_s[chosen], m.first_s[chosen], m.ended_s[chosen]
    several = tokens > 1
    itl_s = (ended - began)[several] / (tokens[several] - 1)
    count, failed = len(tokens), int(errors.sum())
    records = {
        "request_latency": ("ms", 1e3 * (ended - came)),
        "time_to_first_token": ("ms", 1e3 * (began - came)),
        "decode_duration": ("ms", 1e3 * (ended - began)),
        "inter_token_latency": ("ms", 1e3 * itl_s),
        "output_token_throughput_per_user": ("tokens/sec/user", 1.0 / itl_s[itl_s > 0]),
        "e2e_output_token_throughput": (
            "tokens/sec/user",
            tokens[ended > came] / (ended - came)[ended > came],
        ),
        "output_sequence_length": ("tokens", tokens),
        "output_token_count": ("tokens", tokens),
        "input_sequence_length": ("tokens", context),
    }
    totals: dict[str, tuple[str, float]] = {
        "request_throughput": ("requests/sec", count / seconds if seconds > 0 else 0.0),
        "output_token_throughput": ("tokens/sec", float(tokens.sum()) / seconds if seconds > 0 else 0.0),
        "request_count": ("requests", float(count)),
        "total_osl": ("tokens", float(tokens.sum())),
        "total_output_tokens": ("tokens", float(tokens.sum())),
        "total_isl": ("tokens", float(context.sum())),
        "benchmark_duration": ("sec", seconds),
    }
    if failed:
        totals["error_request_count"] = ("requests", float(failed))
    slo = result.deployment.slo
    if slo.ttft_ms is not None or slo.tpot_ms is not None:
        # there, a request without an inter-token latency misses a bound on it
        good = int(meets(result, chosen, slo, one_token=False).sum())
        totals["good_request_count"] = ("requests", float(good))
        totals["good_request_fraction"] = ("ratio", good / (count + failed) if count + failed else 0.0)
        totals["goodput"] = ("requests/sec", good / seconds if seconds > 0 else 0.0)
    return {
        "schema_version": SCHEMA_VERSION,
        "equipoise_version": version("equipoise"),
        **{name: _record(unit, values) for name, (unit, values) in records.items() if len(values)},
        **{name: {"unit": unit, "avg": value} for name, (unit, value) in totals.items()},
    }


def _record(unit: str, values: ArrayLike) -> Block:
    """All statistics of one value a request; ``std`` is that of a sample."""
    array = np.asarray(values, dtype=np.float64)
    block: Block = {"unit": unit, "avg": float(array.mean())}
    found = np.percentile(array, PERCENTILES)
    block |= {f"p{p}": float(v) for p, v in zip(PERCENTILES, found, strict=True)}
    return block | {
        "min": float(array.min()),
        "max": float(array.max()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0,
        "count": len(array),
        "sum": float(array.sum()),
    }

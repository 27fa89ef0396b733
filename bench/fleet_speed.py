"""Requests a second of the fleet kernel on one core.

``python bench/fleet_speed.py off|all INSTANCES RANKS REQUESTS RUNS``: ``off`` is a pool alone, saturated, 32 requests a
rank; ``all`` has a prefill pool, transfer, late acknowledged reports, KV blocks and recomputation, every part of the
step's price and speculation, timed. Prints one JSON line: the rates of the runs after one warm-up run, by the clock and
by the processor's time (on a machine that others use too, the second says what a core does), and what the pool did.
"""

from __future__ import annotations

import json
import sys
import time

from equipoise.cost import load
from equipoise.fleet import simulate
from equipoise.replay import Information, Pool
from equipoise.traces import synth
from equipoise.traces.trace import Trace
from fleet_scale import deployment

RATE_PER_RANK_S = 4.5


def run(kind: str, trace: Trace, instances: int, ranks: int) -> dict[str, float]:
    """One run."""
    began_s = time.process_time()
    how = {"drain": False, "keep_requests": False, "engine": "kernel"}
    if kind == "off":
        pool = Pool(instances, ranks, groups=instances)
        result = simulate(trace, pool, "dualpath", load("v2"), mode="saturated", **how)  # type: ignore[arg-type]
    else:
        whole = deployment(instances, ranks, Information("acknowledged", 1, 8, 4))
        scale = RATE_PER_RANK_S * instances * ranks / (len(trace) / float(trace.arrival_s[-1]))
        result = simulate(trace, whole, "dualpath", load("h200"), mode="timed", rate_scale=scale, **how)  # type: ignore[arg-type]
    return {
        "per_s": len(trace) / result.wall_s,
        "per_cpu_s": len(trace) / (time.process_time() - began_s),
        "steps": result.steps,
        "step_us": 1e6 * result.wall_s / result.steps,
        "mean_batch": result.mean_batch,
        "counted_steps": result.counted_steps,
    }


def main(kind: str, instances: str, ranks: str, requests: str, runs: str) -> None:
    """Print the figures."""
    trace = synth("agentic-coding", requests=int(requests), seed=1)
    found = [run(kind, trace, int(instances), int(ranks)) for _ in range(int(runs) + 1)][1:]
    print(
        json.dumps(
            {
                "rates": [f["per_s"] for f in found],
                "cpu_rates": [f["per_cpu_s"] for f in found],
                "runs": found,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

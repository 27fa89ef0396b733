"""Time and memory of a fit of many rows: ``python bench/fit.py [ROWS] [RANKS]`` prints one JSON line."""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np

from equipoise.calibrate import fit
from equipoise.calibrate.records import StepRecords


def records(rows: int, ranks: int) -> StepRecords:
    """Loads whose sums of contexts follow a gamma law: drawing every request of 10 M rows would be the slow part."""
    rng = np.random.default_rng(1)
    steps = rows // ranks
    level = rng.uniform(16, 48, (steps, 1))
    B = rng.poisson(level, (steps, ranks)).astype(np.int64)
    C = (rng.gamma(np.maximum(B, 1) * 0.6, 100_000) * (B > 0)).astype(np.int64)
    time_us = 4000 + (20.0 * B + 80.0 * C / 1e5).max(axis=1)
    time_us *= 1 + 0.05 * rng.standard_normal(steps)
    return StepRecords.build(
        {
            "step": np.repeat(np.arange(steps), ranks),
            "rank": np.tile(np.arange(ranks), steps),
            "batch": B.ravel(),
            "context_tokens": C.ravel(),
            "time_s": np.repeat(time_us, ranks) / 1e6,
            "clock_s": np.repeat(np.cumsum(time_us), ranks) / 1e6,
        }
    )


if __name__ == "__main__":
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 64
    data = records(rows, ranks)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    result = fit(data)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "rows": len(data),
                "steps": result.steps,
                "seconds": round(seconds, 1),
                "records_gib": round(before / 2**20, 2),
                "peak_gib": round(peak / 2**20, 2),
                "formula": result.cost.formula(),
                "intervals": {k: [round(x, 3) for x in v] for k, v in result.intervals.items()},
            }
        )
    )

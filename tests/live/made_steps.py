"""Step data of a probe, planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from equipoise.calibrate import plant
from equipoise.cost import StepCost
from equipoise.live.rows import table_path, write_table


def write_steps(
    folder: Path, cost: StepCost, *, ranks: int = 4, steps: int = 1500, noise: float = 0.02, seed: int = 0
) -> None:
    """``steps.parquet`` of loads such as `made_runs` has, priced by a cost."""
    r = plant(
        cost,
        steps=steps,
        ranks=ranks,
        noise=noise,
        mean_batch=5,
        context_median=1000,
        context_sigma=1.2,
        seed=seed,
    )
    frame = pl.DataFrame(
        {
            "instance": r.instance,
            "step": r.step,
            "rank": r.rank,
            "clock_s": r.clock_s,
            "batch": r.batch,
            "context_tokens": r.context_tokens,
            "prefill_tokens": np.zeros(len(r), np.int64),
            "time_ms": 1000 * r.time_s,
            "source": ["planted"] * len(r),
        }
    )
    write_table(table_path(folder, "steps"), "steps", frame)

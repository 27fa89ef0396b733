"""Step records made from known prices: what a fit is tested on, and what its documentation shows."""

from __future__ import annotations

import numpy as np

from equipoise.calibrate.records import StepRecords
from equipoise.cost import StepCost
from equipoise.types import Ints

__all__ = ["plant"]


def plant(
    cost: StepCost,
    *,
    steps: int = 2000,
    ranks: int = 64,
    noise: float = 0.05,
    mean_batch: float = 32.0,
    batch_swing: float = 0.5,
    context_median: float = 40_000.0,
    context_sigma: float = 1.0,
    memory_steps: float = 0.0,
    seed: int = 0,
) -> StepRecords:
    """Draw loads and price them: batches are Poisson, context lengths log-normal, the noise is on the step's time.

    Parameters
    ----------
    cost : StepCost
        The truth, in any unit with a clock.
    steps, ranks : int
    noise : float
        Relative standard deviation of a step's time.
    mean_batch : float
        Requests a rank.
    batch_swing : float
        The load of the whole pool is uniform in ``mean_batch * (1 +- batch_swing)``, step by step: an idle and a busy
        hour. 0: always full.
    context_median, context_sigma : float
        Of the log-normal context length, in tokens.
    memory_steps : float
        Steps after which the noise has forgotten itself (an autoregression); 0: independent from step to step.
    seed : int
    """
    rng = np.random.default_rng(seed)
    level = mean_batch * rng.uniform(1 - batch_swing, 1 + batch_swing, (steps, 1))
    B = rng.poisson(level, (steps, ranks)).astype(np.int64)
    rank_of = np.repeat(np.arange(steps * ranks), B.ravel())
    length = np.maximum(rng.lognormal(np.log(context_median), context_sigma, len(rank_of)).round(), 1.0)
    C = np.bincount(rank_of, length, steps * ranks).astype(np.int64)
    square = np.bincount(rank_of, length**2, steps * ranks)
    busy = np.maximum(B.ravel(), 1)
    lengths = cost.saturation_tokens
    K: Ints | None = None
    if lengths:
        K = np.stack(
            [np.bincount(rank_of, np.minimum(length, n), steps * ranks) for n in lengths], axis=-1
        ).astype(np.int64)
        K = K.reshape(steps, ranks, len(lengths))
    time_us = cost.cost(B, C.reshape(steps, ranks), K) * cost.us_per_unit
    time_us = time_us * (1 + noise * _noise(rng, steps, memory_steps))
    return StepRecords.build(
        {
            "step": np.repeat(np.arange(steps), ranks),
            "rank": np.tile(np.arange(ranks), steps),
            "batch": B.ravel(),
            "context_tokens": C,
            "context_variance": np.maximum(square / busy - (C / busy) ** 2, 0.0),
            "time_s": np.repeat(time_us, ranks) / 1e6,
            "clock_s": np.repeat(np.cumsum(time_us), ranks) / 1e6,
        },
        source="planted",
        format="planted",
    )


def _noise(
    rng: np.random.Generator, steps: int, memory_steps: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """float64[steps], standard normal, with an exponential memory."""
    fresh = rng.standard_normal(steps)
    if memory_steps <= 0:
        return fresh
    keep = float(np.exp(-1 / memory_steps))
    out = np.empty(steps)
    last = fresh[0]
    for i in range(steps):
        last = fresh[i] if i == 0 else keep * last + np.sqrt(1 - keep**2) * fresh[i]
        out[i] = last
    return out

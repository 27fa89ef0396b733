"""How much a residual counts: relative errors, a robust scale, and the usual weights."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from equipoise.calibrate.samples import Samples
from equipoise.types import Floats

__all__ = ["Loss", "divisor", "robust_scale", "robust_slope", "robust_weight"]

Loss = Literal["huber", "tukey", "squares"]

HUBER: Final = 1.345
TUKEY: Final = 4.685
"""Usual tuning constants: 95 % efficiency where the noise is normal."""


def divisor(samples: Samples, predicted: Floats) -> Floats:
    """What residuals are relative to (`bottleneck` says why)."""
    if samples.is_grid:
        return samples.time_us
    return np.asarray(np.maximum(predicted, 1e-3 * samples.time_us))


def robust_scale(relative: Floats) -> float:
    """Standard deviation by the median absolute residual; never quite 0, so that exact data stay harmless."""
    if len(relative) > 200_000:
        relative = relative[:: len(relative) // 100_000]
    return max(float(np.median(np.abs(relative))) * 1.4826, 1e-12)


def robust_weight(relative: Floats, scale: float, loss: Loss) -> Floats:
    """psi(r) / r: how much of a residual counts."""
    if loss == "squares":
        return np.ones_like(relative)
    size = np.abs(relative) / scale
    if loss == "huber":
        return np.asarray(HUBER / np.maximum(size, HUBER))
    return np.asarray(np.where(size < TUKEY, (1 - (size / TUKEY) ** 2) ** 2, 0.0))


def robust_slope(relative: Floats, scale: float, loss: Loss) -> Floats:
    """psi'(r): how the counted residual answers to the coefficients."""
    if loss == "squares":
        return np.ones_like(relative)
    size = np.abs(relative) / scale
    if loss == "huber":
        return np.asarray((size <= HUBER).astype(np.float64))
    u = (size / TUKEY) ** 2
    return np.asarray(np.where(u < 1, (1 - u) * (1 - 5 * u), 0.0))

"""Survivals that are wrong by so much: what a confidence head tells whose calibration is off.

The expected calibration error (ECE) sorts what was told into bins and averages, over all told survivals, by how much a
bin's mean is off the share that was really accepted (Naeini et al. 2015, "Obtaining well calibrated probabilities using
Bayesian binning"; bins of equal counts here). Two kinds of wrong are drawn:

- ``shifted``: every logit is off by the same amount, so all survivals are too high (ECE above 0) or too low (below);
- ``noisy``: every logit is off by an amount of its own, right on average: high ones are too high and low ones too low.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from equipoise.types import Floats

__all__ = ["KINDS", "Miscalibration", "calibration_error", "miscalibration", "survivals"]

KINDS = ("shifted", "noisy")
BINS = 20


class Miscalibration(NamedTuple):
    """What is added to the logits before they are told."""

    shift: float
    noise_sd: float


def survivals(logits: Floats) -> Floats:
    """Survivals from the logits of the chances one after another."""
    return np.asarray(np.cumprod(1.0 / (1.0 + np.exp(-logits)), axis=1))


def calibration_error(told: Floats, accepted: Floats, bins: int = BINS) -> float:
    """Expected calibration error of what was told.

    Parameters
    ----------
    told : float64[n]
        Probabilities.
    accepted : float64[n]
        What came of each: 0 or 1, or the true probability where it is known, which has less noise.
    bins : int
        Bins of equal counts.
    """
    order = np.argsort(told, kind="stable")
    off = np.array_split(told[order] - accepted[order], bins)
    return float(sum(abs(part.sum()) for part in off) / len(told))


def miscalibration(rng: np.random.Generator, logits: Floats, ece: float, kind: str) -> Miscalibration:
    """How wrong logits must be for an expected calibration error; found by halving on a sample.

    Parameters
    ----------
    rng : Generator
    logits : float64[requests, drafts]
        True ones.
    ece : float
        The error over all positions; its sign is the shift's.
    kind : {"shifted", "noisy"}
    """
    if ece == 0 or logits.size == 0:
        return Miscalibration(0.0, 0.0)
    true, noise = survivals(logits), rng.standard_normal(logits.shape)
    mean = float(true.mean())

    def shift_to(target: float, noise_sd: float) -> float:
        """The shift at which the mean survival is so much."""
        return _halved(lambda s: float(survivals(logits + s + noise_sd * noise).mean()), target, -12.0, 12.0)

    if kind == "shifted":
        return Miscalibration(shift_to(mean + ece, 0.0), 0.0)

    def error(noise_sd: float) -> float:
        told = survivals(logits + shift_to(mean, noise_sd) + noise_sd * noise)
        return calibration_error(told.ravel(), true.ravel())

    noise_sd = _halved(error, abs(ece), 0.0, 6.0)
    return Miscalibration(shift_to(mean, noise_sd), noise_sd)


def _halved(rising: Callable[[float], float], target: float, low: float, high: float) -> float:
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2

"""Drafts whose survivals move from step to step as engines' do: what simulations draw from.

The chance that draft j is accepted, those before it given, is the logistic of

    request's own level + its drift (AR(1) over steps) - decline * (j - 1) + noise of this draft

A confidence head that is perfectly calibrated reports exactly these chances. One that is not reports them shifted in
the logit by a constant, chosen so that its expected calibration error (ECE) over all positions is as asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.errors import InputError
from equipoise.types import Floats

__all__ = ["Acceptance", "survivals"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How drafts are accepted.

    Parameters
    ----------
    level, level_sd : float
        Mean and spread over requests of the logit of the first draft's chance.
    drift_sd, drift_memory : float
        Spread of a request's drift, and how much of it is left a step later.
    decline : float
        Fall of the logit a position.
    noise_sd : float
        Spread of the logit from draft to draft.
    ece : float
        Expected calibration error of what the allocator is told: above 0 too sure, below too cautious.
    """

    level: float = 1.45
    level_sd: float = 0.7
    drift_sd: float = 0.4
    drift_memory: float = 0.9
    decline: float = 0.12
    noise_sd: float = 0.3
    ece: float = 0.0

    def __post_init__(self) -> None:
        if not -0.25 <= self.ece <= 0.25:
            raise InputError(f"ece = {self.ece}", fix="must be from -0.25 to 0.25")
        for name in ("level_sd", "drift_sd", "noise_sd", "decline"):
            if not 0 <= getattr(self, name) <= 10:
                raise InputError(f"{name} = {getattr(self, name)}", fix="must be from 0 to 10")
        if not 0 <= self.drift_memory < 1:
            raise InputError(f"drift_memory = {self.drift_memory}", fix="must be from 0 to below 1")

    def levels(self, rng: np.random.Generator, count: int) -> Floats:
        """Levels of new requests."""
        return self.level + self.level_sd * rng.standard_normal(count)

    def logits(self, rng: np.random.Generator, level: Floats, drift: Floats, drafts: int) -> Floats:
        """Logits of this step's drafts, float64[requests, drafts]."""
        noise = self.noise_sd * rng.standard_normal((len(level), drafts))
        return (level + drift)[:, None] - self.decline * np.arange(drafts) + noise

    def shift(self, drafts: int) -> float:
        """Shift of the logits at which survivals are off by `ece` on average; found by halving."""
        if self.ece == 0 or drafts == 0:
            return 0.0
        rng = np.random.default_rng(0)
        logits = self.logits(rng, self.levels(rng, 4000), self.drift_sd * rng.standard_normal(4000), drafts)
        true = survivals(logits).mean()
        low, high = (0.0, 8.0) if self.ece > 0 else (-8.0, 0.0)
        for _ in range(40):
            middle = (low + high) / 2
            if survivals(logits + middle).mean() - true < self.ece:
                low = middle
            else:
                high = middle
        return (low + high) / 2


def survivals(logits: Floats) -> Floats:
    """Survivals from the logits of the chances one after another."""
    return np.asarray(np.cumprod(1.0 / (1.0 + np.exp(-logits)), axis=1))

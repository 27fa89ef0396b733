"""Drafts whose survivals move from step to step as engines' do: what simulations draw from.

The chance that draft j is accepted, those before it given, is the logistic of

    request's own level + its drift (AR(1) over steps) - decline * (j - 1) + noise of this draft

A confidence head that is perfectly calibrated reports exactly these chances; one that is not, others
(`equipoise.control.calibration`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from equipoise.control.calibration import KINDS, Miscalibration, miscalibration, survivals
from equipoise.errors import InputError, nearest
from equipoise.types import Floats

__all__ = ["Acceptance", "survivals"]

SAMPLE = 8000
"""Requests drawn to find how wrong logits must be."""


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
        Expected calibration error of what the allocator is told, over all positions.
    ece_kind : {"shifted", "noisy"}
        All survivals too high (``ece`` above 0) or too low (below); or each wrong in its own way, right on average.
    """

    level: float = 1.45
    level_sd: float = 0.7
    drift_sd: float = 0.4
    drift_memory: float = 0.9
    decline: float = 0.12
    noise_sd: float = 0.3
    ece: float = 0.0
    ece_kind: str = "shifted"

    def __post_init__(self) -> None:
        if self.ece_kind not in KINDS:
            raise InputError(
                f"no kind of calibration error named {self.ece_kind!r}", fix=nearest(self.ece_kind, KINDS)
            )
        low, high = (0.0, 0.15) if self.ece_kind == "noisy" else (-0.25, 0.25)
        if not low <= self.ece <= high:
            raise InputError(f"ece = {self.ece} ({self.ece_kind})", fix=f"must be from {low:g} to {high:g}")
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

    def sample(self, rng: np.random.Generator, requests: int, drafts: int) -> Floats:
        """True logits of so many requests at some step, float64[requests, drafts]."""
        drift = self.drift_sd * rng.standard_normal(requests)
        return self.logits(rng, self.levels(rng, requests), drift, drafts)

    def wrong_by(self, drafts: int) -> Miscalibration:
        """What is added to true logits so that survivals are off by `ece`."""
        return _wrong_by(self, drafts)

    def mean(self, drafts: int) -> Floats:
        """float64[drafts], survivals of a request nothing is known of yet."""
        return np.asarray(survivals(np.full((1, drafts), self.level) - self.decline * np.arange(drafts))[0])


@lru_cache(maxsize=64)
def _wrong_by(acceptance: Acceptance, drafts: int) -> Miscalibration:
    rng = np.random.default_rng(0)
    return miscalibration(rng, acceptance.sample(rng, SAMPLE, drafts), acceptance.ece, acceptance.ece_kind)

"""Steps that were none: pauses and clock jumps, which no robust loss should have to bear."""

from __future__ import annotations

from typing import Final

import numpy as np

from equipoise.calibrate.bottleneck import Problem, fit_bottleneck
from equipoise.calibrate.records import Drop
from equipoise.calibrate.robust import Loss
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import Form, TermForm

__all__ = ["without_pauses"]

LEAST_STEPS: Final = 32
"""With fewer, nobody can say what is far off."""

PAUSE: Final = 5.0
"""A step that took this many times what the first fit says was no step but a pause; or a fifth of it: a clock jump."""
MOST_PAUSES: Final = 0.05


def without_pauses(samples: Samples, loss: Loss) -> tuple[Samples, Drop | None]:
    """Take out steps that were none: pauses and clock jumps. Never from a measured table."""
    if samples.is_grid or len(samples) < LEAST_STEPS:
        return samples, None
    plain = _plainest(samples)
    first = fit_bottleneck(samples.thin(10_000), plain, loss=loss, tolerance=0.03)
    _, predicted = Problem(samples, plain).assign(first.coefficients)
    ratio = samples.time_us / np.maximum(predicted, 1e-9)
    wrong = (ratio > PAUSE) | (ratio < 1 / PAUSE)
    if not wrong.any() or wrong.mean() > MOST_PAUSES:
        return samples, None
    rows = int(np.diff(samples.starts)[wrong].sum())
    return samples.take(~wrong), Drop(f"pause or clock jump (beyond {PAUSE:g}x of the fit, either way)", rows)


def _plainest(samples: Samples) -> Form:
    """The plainest form: one term, linear in batch and context."""
    return Form((TermForm("decode", context=True, queries=len(samples.extra_queries) > 0),))

"""Error where the fit has not been: whole load regions left out in turn, and steps beyond the fitted range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from equipoise.calibrate.bottleneck import Problem, fit_bottleneck
from equipoise.calibrate.regions import Regions, regimes, weighted_mean
from equipoise.calibrate.robust import Loss
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import Form
from equipoise.types import Floats

__all__ = ["Extrapolation", "extrapolation", "held_out_errors", "mape_by_regime", "relative_errors"]

LONGEST_SHARE: Final = 4.0
"""A fit on contexts up to a quarter of the longest is tested above it."""


def relative_errors(samples: Samples, form: Form, coefficients: Floats) -> Floats:
    """float64[steps], |predicted - observed| / observed."""
    _, predicted = Problem(samples, form).assign(coefficients)
    return np.asarray(np.abs(predicted / samples.time_us - 1))


def held_out_errors(
    samples: Samples, form: Form, regions: Regions, start: Floats, *, loss: Loss = "huber"
) -> Floats:
    """Relative error of every step, predicted by a fit that has not seen the step's region.

    Parameters
    ----------
    samples : Samples
    form : Form
    regions : Regions
    start : float64[p]
        Coefficients of the fit on everything, from which each fit starts.

    Returns
    -------
    float64[steps]
    """
    errors = np.empty(len(samples))
    for region in range(regions.count):
        out = regions.of_step == region
        if not out.any():
            continue
        if out.all():
            errors[:] = relative_errors(samples, form, start)
            break
        fit = fit_bottleneck(
            samples.take(~out), form, start=start, loss=loss, tolerance=0.03, max_iterations=30
        )
        errors[out] = relative_errors(samples.take(out), form, fit.coefficients)
    return errors


def mape_by_regime(samples: Samples, errors: Floats) -> dict[str, float]:
    """Mean of the errors by coarse regime, as a fraction."""
    regime, names = regimes(samples)
    found = {}
    for i, name in enumerate(names):
        here = regime == i
        if here.any():
            found[name] = weighted_mean(errors[here], samples.weight[here])
    return found


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """Error beyond the range of a fit.

    Parameters
    ----------
    beyond : str
        Which way, in words.
    mape : float
        Mean absolute relative error, as a fraction.
    steps : int
        Steps it was measured on.
    """

    beyond: str
    mape: float
    steps: int


def extrapolation(
    samples: Samples, outside: Samples, form: Form, coefficients: Floats, *, loss: Loss = "huber"
) -> tuple[Extrapolation, ...]:
    """Errors beyond the fitted range, where there are steps to measure them on.

    A fit on the lower three quarters of the context range (by logarithm: up to a quarter of the largest) is tested
    above; the fit itself is tested on the steps that were out of range.
    """
    found = []
    context = samples.mean(samples.context)
    bound = float(context.max(initial=0.0)) / LONGEST_SHARE
    low = context <= bound
    if low.sum() >= 5 * form.columns and (~low).sum() >= 3:
        fit = fit_bottleneck(samples.take(low), form, start=coefficients, loss=loss, tolerance=0.03)
        errors = relative_errors(samples.take(~low), form, fit.coefficients)
        found.append(
            Extrapolation(
                f"fitted up to {bound:,.0f} context tokens a rank, tested above",
                float(errors.mean()),
                len(errors),
            )
        )
    if len(outside):
        largest = float(samples.batch.max())
        big = outside.mean(outside.batch) > largest
        for steps, name in ((big, f"batch above {largest:,.0f}"), (~big, "contexts shorter than fitted")):
            if steps.any():
                errors = relative_errors(outside.take(steps), form, coefficients)
                found.append(Extrapolation(name, float(errors.mean()), len(errors)))
    return tuple(found)

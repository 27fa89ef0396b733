"""Two shortcuts around the maximum, both wrong: here to show by how much, never used by a fit.

`rank_by_rank` regresses the step's time on every rank's own load, though one rank made it. `feature_maxima` regresses
it on the largest batch and the largest context of a step, which may belong to two ranks: it sees a heavier rank than
there is and learns prices that are too small.

``scripts/shortcut_errors.py`` measures both on logs of known prices; its table is in ``docs/explain/calibration.md``.
On a steady load the first gives a price of context eight times too small and a constant three times too large, the
second a price of a request less than half of the true one. With a term that waits for the largest batch beside the
other, maxima cannot tell the two prices of a request: they are the same column.
"""

from __future__ import annotations

import numpy as np

from equipoise.calibrate.bottleneck import Problem
from equipoise.calibrate.least_squares import nonnegative
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import PER_UNIT, Form
from equipoise.types import Floats

__all__ = ["feature_maxima", "rank_by_rank"]


def rank_by_rank(samples: Samples, form: Form) -> Floats:
    """Coefficients of a regression in which every rank of a step is an observation of the step's time.

    Parameters
    ----------
    samples : Samples
    form : Form

    Returns
    -------
    float64[p]
        In the order of ``form.names``.
    """
    sizes = np.diff(samples.starts)
    one = Samples(
        starts=np.arange(samples.rows + 1),
        batch=samples.batch,
        context=samples.context,
        extra_queries=samples.extra_queries,
        context_variance=samples.context_variance,
        time_us=np.repeat(samples.time_us, sizes),
        weight=np.repeat(samples.weight, sizes),
        instance=np.repeat(samples.instance, sizes),
    )
    problem = Problem(one, form)
    row = np.repeat(np.arange(one.rows)[None, :], len(form.terms), axis=0)
    return nonnegative(*problem.normal_equations(row, one.weight / one.time_us**2))


def feature_maxima(samples: Samples, form: Form) -> Floats:
    """Coefficients of a regression on the largest of each load over the ranks of a step.

    Parameters and result as for `rank_by_rank`.
    """
    first = samples.starts[:-1]
    problem = Problem(samples, form)
    parts = [np.ones((len(samples), 1))]
    for term in form.terms:
        parts.append(term.batch.design(np.maximum.reduceat(samples.batch, first)))
        if term.context:
            parts.append(np.maximum.reduceat(samples.context, first)[:, None] / PER_UNIT)
        if term.saturation_tokens:
            parts.append(np.maximum.reduceat(problem.saturated, first)[:, None] / PER_UNIT)
        if term.queries:
            parts.append(np.maximum.reduceat(problem.extra_queries, first)[:, None])
    X = np.concatenate(parts, axis=1) / samples.time_us[:, None]
    weighted = X * samples.weight[:, None]
    return nonnegative(weighted.T @ X, weighted.sum(axis=0))

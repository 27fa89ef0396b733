"""Error bars: blocks of consecutive steps drawn again, from sums that add up.

With the slowest ranks held fixed, an estimate is where the summed score vanishes. Per unit u (a few consecutive
steps, or a load region of a measured table) keep the score g_u = sum psi(r) x / d and its slope
H_u = sum psi'(r) x x' / d^2: r is the relative residual, x the columns at the slowest ranks, d what r is relative
to. A replicate draws blocks of consecutive units and solves ::

    minimise  theta' H theta / 2 - (H theta_hat + g)' theta   over theta >= 0,    H = sum H_u, g = sum g_u

which is one Newton step from the fit: K x K numbers a unit, whatever the size of the log. How much the moving of
slowest ranks and of robust weights adds is measured with full refits of some replicates, on a part of the steps where
there are many; where those scatter more, all deviations are stretched by the ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy.stats import norm, t

from equipoise._blocks import block_length, draw_blocks
from equipoise.calibrate.bottleneck import BottleneckFit, Problem, fit_bottleneck
from equipoise.calibrate.least_squares import nonnegative_many
from equipoise.calibrate.regions import Regions
from equipoise.calibrate.robust import Loss, divisor, robust_slope, robust_weight
from equipoise.types import Floats, Ints

__all__ = ["Bootstrap", "block_length", "bootstrap", "sandwich"]

CONFIDENCE: Final = 0.95
MOST_UNITS: Final = 4096
LEAST_REFITS: Final = 20
"""Fewer say nothing about a standard deviation."""
ROW_VISITS: Final = 1.5e8
"""Budget of the full refits, in rows looked at: about a second."""


@dataclass(frozen=True, slots=True, eq=False)
class Bootstrap:
    """Replicates of the coefficients.

    Parameters
    ----------
    replicates : float64[n, p]
        Deviations stretched by `stretch` already.
    units : "steps" or "regions"
        What was drawn: blocks of consecutive steps, or load regions of a table.
    block_steps : int
        Steps a block.
    blocks : float
        Blocks in the data: the number of nearly independent observations.
    refits : int
        Full refits that the quick replicates were compared with.
    stretch : float64[p]
        Ratio by which deviations were stretched, per coefficient; 1 where refits scatter no more.
    critical : float
        Half width of the simultaneous 95 % intervals, in standard deviations: Bonferroni's, which hold however the
        coefficients are correlated, with Student's allowance for few blocks.
    """

    replicates: Floats
    units: Literal["steps", "regions"]
    block_steps: int
    blocks: float
    refits: int
    stretch: Floats
    critical: float

    def simultaneous(self, estimate: Floats) -> tuple[Floats, Floats]:
        """Low and high of every coefficient; together they hold with 95 % confidence or more."""
        return self._interval(self.replicates, estimate, self.critical)

    def pointwise(self, values: Floats, estimate: float) -> tuple[float, float]:
        """95 % interval of one number computed from every replicate."""
        known = values[np.isfinite(values)]
        if len(known) < len(values) / 2:
            return float("nan"), float("nan")
        low, high = self._interval(known, np.float64(estimate), _student(self.blocks, 1))
        return float(low), float(high)

    def pointwise_ratio(self, values: Floats, estimate: float) -> tuple[float, float]:
        """95 % interval of a ratio whose divisor may be 0 in a replicate: the ratio is inf there, and may end there.

        Where the estimate itself is inf, the interval is that of the reciprocal, turned over.
        """
        if np.isnan(estimate):
            return float("nan"), float("nan")
        values = values[~np.isnan(values)]
        if np.isinf(estimate):
            with np.errstate(divide="ignore"):
                _, high = self.pointwise(1 / values, 0.0)
            return (1 / high if high > 0 else float("inf")), float("inf")
        low, high = self.pointwise(values, estimate)
        unbounded = len(values) and np.isinf(values).mean() > 0.5 - CONFIDENCE / 2
        return low, float("inf") if unbounded else high

    def _interval(
        self, values: Floats, estimate: Floats | np.float64, critical: float
    ) -> tuple[Floats, Floats]:
        # Percentiles at 2.5 and 97.5 %, their distances stretched: skewness stays, and no end of an interval is
        # read off a handful of replicates.
        low, high = np.quantile(values, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], axis=0)
        ratio = critical / float(norm.ppf(0.5 + CONFIDENCE / 2))
        below, above = np.maximum(estimate - low, 0.0), np.maximum(high - estimate, 0.0)
        return np.maximum(estimate - ratio * below, 0.0), np.asarray(estimate + ratio * above)


def _student(blocks: float, numbers: int) -> float:
    """Two-sided 95 % quantile for several numbers at once (Bonferroni), few blocks allowed for (Student)."""
    return float(t.ppf(1 - (1 - CONFIDENCE) / (2 * numbers), max(blocks - 1, 2)))


def sandwich(problem: Problem, fit: BottleneckFit, loss: Loss = "huber") -> Floats:
    """Asymptotic covariance of the coefficients for independent steps, slowest ranks fixed.

    H^-1 (sum g g') H^-1 with the scores g and slopes H of the module's text, times n / (n - p).
    """
    score, slope = _score_and_slope(problem, fit, loss)
    p = problem.form.columns
    H, S = np.zeros((p, p)), np.zeros((p, p))
    for steps in problem.chunks():
        X = problem.columns(fit.row, steps)
        H += (X * slope[steps, None]).T @ X
        S += (X * score[steps, None] ** 2).T @ X
    length = np.sqrt(np.maximum(np.diag(H), 1e-300))
    inverse = np.linalg.pinv(H / np.outer(length, length), rcond=1e-12) / np.outer(length, length)
    n = len(problem.samples)
    return np.asarray(inverse @ S @ inverse * n / max(n - p, 1))


def _score_and_slope(problem: Problem, fit: BottleneckFit, loss: Loss) -> tuple[Floats, Floats]:
    samples = problem.samples
    by = divisor(samples, fit.predicted)
    relative = (samples.time_us - fit.predicted) / by
    score = samples.weight * robust_weight(relative, fit.scale, loss) * relative / by
    slope = samples.weight * robust_slope(relative, fit.scale, loss) / by**2
    return score, slope


def bootstrap(
    problem: Problem,
    fit: BottleneckFit,
    regions: Regions | None,
    *,
    loss: Loss = "huber",
    replicates: int = 2000,
    refits: int | None = None,
    seed: int = 0,
) -> Bootstrap:
    """Draw replicates of the coefficients.

    Parameters
    ----------
    problem, fit
        Steps, form and the fit on all of them.
    regions : Regions, optional
        Of a measured table: the units drawn. None: blocks of consecutive steps.
    replicates : int
    refits : int, optional
        Full refits to compare with; by default as many as about a second allows, 100 at most.
    seed : int
    """
    rng = np.random.default_rng(seed)
    samples = problem.samples
    by = divisor(samples, fit.predicted)
    relative = (samples.time_us - fit.predicted) / by
    if regions is not None:
        unit, span, length = regions.of_step, 1, 1
    else:
        length = block_length(relative[:200_000])
        per_unit = max(1, length // 4, -(-len(samples) // MOST_UNITS))
        unit = (np.arange(len(samples)) // per_unit).astype(np.int64)
        span = max(1, round(length / per_unit))
        length = span * per_unit
    units = int(unit.max()) + 1
    H_unit, g_unit = _unit_sums(problem, fit, unit, units, loss)
    counts = draw_blocks(rng, replicates, units, span)
    theta = fit.coefficients
    g = counts @ g_unit
    if regions is None:
        H = np.einsum("ru,uij->rij", counts, H_unit, optimize=True)
    else:
        H = np.broadcast_to(H_unit.sum(axis=0), (replicates, *H_unit.shape[1:]))
    drawn = nonnegative_many(H, np.einsum("rij,j->ri", H, theta) + g)
    blocks = units / span
    if regions is None:
        stretch, done = _stretch(problem, fit, unit, counts, drawn, refits, loss)
    else:
        # The usual correction for few clusters and many coefficients (CR1).
        n, p = len(samples), len(theta)
        factor = np.sqrt(units / max(units - 1, 1) * (n - 1) / max(n - p, 1))
        stretch, done = np.full(p, factor), 0
    drawn = np.maximum(theta + (drawn - theta) * stretch, 0.0)
    return Bootstrap(
        replicates=drawn,
        units="steps" if regions is None else "regions",
        block_steps=length,
        blocks=blocks,
        refits=done,
        stretch=stretch,
        critical=_student(blocks, len(theta)),
    )


def _unit_sums(
    problem: Problem, fit: BottleneckFit, unit: Ints, units: int, loss: Loss
) -> tuple[Floats, Floats]:
    """H_u float64[units, p, p] and g_u float64[units, p]."""
    score, slope = _score_and_slope(problem, fit, loss)
    p = problem.form.columns
    H, g = np.zeros((units, p, p)), np.zeros((units, p))
    for steps in problem.chunks():
        X, of = problem.columns(fit.row, steps), unit[steps]
        for i in range(p):
            g[:, i] += np.bincount(of, X[:, i] * score[steps], units)
            weighted = X[:, i] * slope[steps]
            for j in range(i, p):
                H[:, i, j] += np.bincount(of, weighted * X[:, j], units)
    lower = np.tril_indices(p, -1)
    H[:, lower[0], lower[1]] = H[:, lower[1], lower[0]]
    return H, g


def _stretch(
    problem: Problem,
    fit: BottleneckFit,
    unit: Ints,
    counts: Floats,
    quick: Floats,
    refits: int | None,
    loss: Loss,
) -> tuple[Floats, int]:
    """By how much full refits of the first replicates scatter more than the quick ones do."""
    one = np.ones(problem.form.columns)
    passes = 6
    if refits is None:
        visits = passes * (problem.samples.rows + 20 * len(problem.samples))
        refits = int(np.clip(ROW_VISITS / visits, 0, 100))
    refits = min(refits, len(quick))
    if refits < LEAST_REFITS:
        return one, 0
    full = np.empty((refits, len(one)))
    for r in range(refits):
        again = fit_bottleneck(
            problem.samples,
            problem.form,
            start=quick[r],
            loss=loss,
            multiplicity=counts[r][unit],
            max_iterations=passes,
            tolerance=0.01,
            problem=problem,
        )
        full[r] = again.coefficients
    ours = np.sqrt(((quick[:refits] - fit.coefficients) ** 2).mean(axis=0))
    theirs = np.sqrt(((full - fit.coefficients) ** 2).mean(axis=0))
    ratio = np.divide(theirs, ours, out=one.copy(), where=ours > 0)
    # A standard deviation from so few refits is itself uncertain: its standard error goes to the safe side.
    ratio *= 1 + 1 / np.sqrt(2 * refits)
    return np.clip(ratio, 1.0, 5.0), refits

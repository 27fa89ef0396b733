"""Intervals: over paired seeds where there are several, over blocks of steps where there is one.

A step's neighbours look alike (requests live for hundreds of steps), so steps are never taken as independent: a run is
one observation, or it is cut into long blocks whose means are nearly independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from equipoise.types import Floats

__all__ = [
    "BLOCKS",
    "CONFIDENCE",
    "Interval",
    "block_ratio",
    "over_seeds",
    "paired",
    "simultaneous",
    "student",
    "unpaired",
    "widened",
]

CONFIDENCE = 0.95
BLOCKS = 20
"""Blocks a single run is cut into: few enough to be long, enough for a t quantile near the normal one."""

Method = Literal["seeds", "blocks", "none"]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval (95 %).

    Parameters
    ----------
    mean, low, high : float
        ``low`` and ``high`` are NaN where nothing can be said.
    method : {"seeds", "blocks", "none"}
        Over seeds (Student's t), over blocks of one run, or not at all.
    standard_error : float
    freedom : float
        Degrees of freedom of the t quantile.
    """

    mean: float
    low: float
    high: float
    method: Method
    standard_error: float
    freedom: float

    @property
    def covers_zero(self) -> bool:
        """Whether no difference is shown (also where the interval is unknown)."""
        return not (self.low > 0 or self.high < 0)

    def never_below(self, bound: float) -> Interval:
        """The part of the interval that a quantity known to be ``bound`` or more can lie in.

        Student's t knows nothing of bounds, so with few seeds its lower end may be a value that cannot be. Leaving
        such values out loses no coverage, since the truth is never among them. ``high``, `standard_error` and what is
        computed from it stay; the half width is then ``high - mean``.
        """
        # the mean of such values may itself be below by a rounding
        return replace(self, low=max(self.low, min(bound, self.mean))) if self.low < bound else self


def student(
    mean: float, standard_error: float, freedom: float, method: Method, confidence: float = CONFIDENCE
) -> Interval:
    """Student's t interval of a mean from its standard error; no interval where either is unknown."""
    if freedom < 1 or not math.isfinite(standard_error):
        return Interval(mean, math.nan, math.nan, "none", math.nan, 0)
    from scipy.special import stdtrit

    half = float(stdtrit(freedom, (1 + confidence) / 2)) * standard_error
    return Interval(mean, mean - half, mean + half, method, standard_error, freedom)


def over_seeds(values: Sequence[float]) -> Interval:
    """Mean over independent seeds with Student's t interval, n - 1 degrees of freedom."""
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    spread = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return student(float(array.mean()), spread, n - 1, "seeds")


def paired(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Mean of the differences, seed by seed: both saw the same requests."""
    return over_seeds([a - b for a, b in zip(values, others, strict=True)])


def block_ratio(numerator: Floats, denominator: Floats, weights: Floats) -> Interval:
    """Ratio of two sums along one run, minus 1, with an interval from block means.

    Parameters
    ----------
    numerator, denominator : float64[rows]
        For instance cost and ideal of each row of the step series.
    weights : float64[rows]
        Steps a row stands for; blocks hold about equally many steps.

    Notes
    -----
    Delta method for a ratio of means (Cochran, Sampling Techniques, 3rd ed., section 2.11) on batch means (Law,
    Simulation Modeling and Analysis, section 9.5.3). It underestimates where requests live longer than a block.
    """
    total = float(denominator.sum())
    ratio = float(numerator.sum()) / total
    ends = np.cumsum(weights)
    block = np.minimum((ends - weights / 2) / ends[-1] * BLOCKS, BLOCKS - 1).astype(int)
    tops, bottoms = np.bincount(block, numerator, BLOCKS), np.bincount(block, denominator, BLOCKS)
    used = bottoms > 0
    n = int(used.sum())
    if n < BLOCKS // 2:
        return student(ratio - 1, math.nan, 0, "none")
    residuals = (tops[used] - ratio * bottoms[used]) / (total / n)
    return student(ratio - 1, float(residuals.std(ddof=1)) / math.sqrt(n), n - 1, "blocks")


def unpaired(a: Interval, b: Interval) -> Interval:
    """Difference of two block estimates, their errors added as if independent.

    The runs saw the same requests, so their errors go together and this interval is wider than need be.
    """
    if "none" in (a.method, b.method):
        return student(a.mean - b.mean, math.nan, 0, "none")
    va, vb = a.standard_error**2, b.standard_error**2
    if va + vb == 0:
        return student(a.mean - b.mean, 0.0, a.freedom, "blocks")
    freedom = (va + vb) ** 2 / (va**2 / a.freedom + vb**2 / b.freedom)  # Welch-Satterthwaite
    return student(a.mean - b.mean, math.sqrt(va + vb), freedom, "blocks")


def simultaneous(interval: Interval, candidates: int) -> Interval:
    """The interval of a difference, widened so that it holds for every pair of so many candidates at once.

    Which candidate is best is read off the same runs, and the one that came out best was also lucky: a plain interval
    against it calls equal policies different far too often. Bonferroni over all pairs needs no assumption about how
    the best was picked.
    """
    return widened(interval, max(1, candidates * (candidates - 1) // 2))


def widened(interval: Interval, intervals: int) -> Interval:
    """The interval, so wide that so many of its kind hold at once, however they go together (Bonferroni)."""
    confidence = 1 - (1 - CONFIDENCE) / intervals
    return student(interval.mean, interval.standard_error, interval.freedom, interval.method, confidence)

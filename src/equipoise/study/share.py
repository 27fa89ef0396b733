"""Percent of what any router could win: where a policy stands between a baseline and the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from equipoise.study.statistics import Interval, student

__all__ = ["share"]


def share(baseline: Sequence[float], policy: Sequence[float], best: Sequence[float]) -> Interval:
    """(baseline - policy) / (baseline - best), over paired seeds.

    Parameters
    ----------
    baseline, policy, best : float64[seeds]
        Excess of each, seed by seed on the same requests.

    Returns
    -------
    Interval
        1: all that can be won, 0: no better than the baseline, below 0: worse. NaN where the baseline leaves nothing to
        win; without ends from a single seed.

    Notes
    -----
    A ratio of means, its interval by the delta method (Cochran, Sampling Techniques, 3rd ed., section 2.11): a seed
    with little to win has little weight.
    """
    won = np.asarray(baseline, float) - np.asarray(policy, float)
    there = np.asarray(baseline, float) - np.asarray(best, float)
    n, mean = len(there), float(there.mean())
    if not mean > 0:
        return student(math.nan, math.nan, 0, "none")
    ratio = float(won.mean()) / mean
    if n < 2:
        return student(ratio, math.nan, 0, "none")
    residuals = (won - ratio * there) / mean
    return student(ratio, float(residuals.std(ddof=1)) / math.sqrt(n), n - 1, "seeds")

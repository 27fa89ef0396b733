"""How many repeats it takes: to show a difference of some size, or to show that there is none that large.

Differences of paired runs are taken as normal, repeat by repeat, with the standard deviation that was seen. The power
of the t test is then that of the noncentral t distribution (Cohen, Statistical Power Analysis, 2nd ed., section 2.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from equipoise.study.statistics import CONFIDENCE

__all__ = [
    "MOST",
    "POWER",
    "Resolve",
    "power_to_equal",
    "power_to_resolve",
    "repeats_to_equal",
    "repeats_to_resolve",
]

POWER = 0.8
"""Chance that so many repeats show what is there."""
MOST = 10_000
"""More repeats are not counted."""
NODES = 64
"""Quantiles that the spread seen in an experiment is averaged over."""
UPPER = 0.9
"""The standard deviation is below its upper limit with this confidence."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Repeats needed.

    Parameters
    ----------
    difference : float
        Of this size, as a share (0.02) or in points.
    repeats : int or None
        To show it with a chance of `POWER`, if the spread is what was seen; None: more than `MOST`.
    at_most : int or None
        The same, if the spread is at the upper end of what the few repeats seen allow (90 %).
    to_equal : int or None
        To show that policies differ by less than that, if they do not differ at all.
    """

    difference: float
    repeats: int | None
    at_most: int | None
    to_equal: int | None


def resolve(
    deviation: float, freedom: float, difference: float, reach: float, intervals: int
) -> Resolve | None:
    """Repeats needed, from the standard deviation of the differences seen; None where it is not known.

    Parameters
    ----------
    deviation : float
        Of one repeat's difference.
    freedom : float
        Degrees of freedom it was estimated with.
    difference : float
        As people say it.
    reach : float
        The same on the scale of `deviation`.
    intervals : int
        Intervals that are to hold at once.
    """
    if not math.isfinite(deviation) or freedom < 1:
        return None
    from scipy.special import chdtri

    upper = deviation * math.sqrt(freedom / float(chdtri(freedom, UPPER)))
    return Resolve(
        difference,
        repeats_to_resolve(deviation, reach, intervals=intervals),
        repeats_to_resolve(upper, reach, intervals=intervals),
        repeats_to_equal(deviation, reach, intervals=intervals),
    )


def repeats_to_resolve(
    deviation: float, difference: float, *, intervals: int = 1, power: float = POWER
) -> int | None:
    """Fewest repeats with which a true difference is shown with a chance of `power`; None: more than `MOST`.

    Parameters
    ----------
    deviation : float
        Standard deviation of one repeat's difference.
    difference : float
        The true difference, on the same scale.
    intervals : int
        Intervals that hold at once (Bonferroni): the more, the more repeats.
    power : float
    """
    return _fewest(lambda n: power_to_resolve(n, deviation, difference, intervals), power)


def repeats_to_equal(
    deviation: float, margin: float, *, intervals: int = 1, power: float = POWER
) -> int | None:
    """Fewest repeats with which two equal policies are shown to be equal within a margin; None: more than `MOST`."""
    return _fewest(lambda n: power_to_equal(n, deviation, margin, intervals), power)


def power_to_resolve(repeats: int, deviation: float, difference: float, intervals: int = 1) -> float:
    """Chance that the interval over so many repeats leaves out zero."""
    from scipy.special import nctdtr

    if deviation <= 0:
        return 1.0
    critical = _critical(repeats, intervals)
    shift = abs(difference) * math.sqrt(repeats) / deviation
    if shift > critical + 30:  # beyond doubt, and beyond what nctdtr computes
        return 1.0
    freedom = repeats - 1
    wrong_way = (
        float(nctdtr(freedom, shift, -critical)) if shift < 5 else 0.0
    )  # below 1e-8; it may be NaN there
    return 1 - float(nctdtr(freedom, shift, critical)) + wrong_way


def power_to_equal(repeats: int, deviation: float, margin: float, intervals: int = 1) -> float:
    """Chance that the interval over so many repeats lies inside the margin, for policies that do not differ.

    The mean must be closer to zero than the margin less the half width; the half width follows a chi distribution,
    which is averaged over its quantiles.
    """
    from scipy.special import chdtri, ndtr

    if deviation <= 0:
        return 1.0
    freedom, root = repeats - 1, math.sqrt(repeats)
    at = (np.arange(NODES) + 0.5) / NODES
    spread = deviation * np.sqrt(chdtri(freedom, at) / freedom)
    room = np.maximum(margin - _critical(repeats, intervals) * spread / root, 0.0)
    return float(np.mean(2 * ndtr(room * root / deviation) - 1))


def _critical(repeats: int, intervals: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(repeats - 1, 1 - (1 - CONFIDENCE) / (2 * intervals)))


def _fewest(chance: Callable[[int], float], power: float) -> int | None:
    """The chance rises with the repeats: double until it is enough, then halve the rest."""
    low, high = 1, 2
    while chance(high) < power:
        low, high = high, high * 2
        if low >= MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= power else (middle, high)
    return high if high <= MOST else None

"""Numbers as text, the same in every face of a report; what is not finite reads ``n/a``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.study.statistics import Interval

__all__ = ["MISSING", "bounds", "count", "half_width", "percent", "plain", "points", "ratio", "short"]

MISSING = "n/a"


def percent(share: float, digits: int = 2) -> str:
    """A share as a number of percent: 0.0355 is ``3.55``."""
    return f"{100 * share:.{digits}f}" if math.isfinite(share) else MISSING


def points(share: float, digits: int = 2) -> str:
    """A difference of shares in points, with its sign."""
    return f"{100 * share:+.{digits}f}" if math.isfinite(share) else MISSING


def half_width(interval: Interval, digits: int = 2) -> str:
    """Half the width of an interval, in points: what stands behind the plus-minus sign.

    Measured above the mean: the lower end may have been cut at a bound (`Interval.never_below`).
    """
    return percent(interval.high - interval.mean, digits)


def bounds(interval: Interval, *, sign: bool = False) -> str:
    """An interval of shares in percent: ``3.49 to 3.61``."""
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return MISSING
    show = points if sign else percent
    return f"{show(interval.low)} to {show(interval.high)}"


def ratio(value: float) -> str:
    """A maximum over a mean, three digits behind the point."""
    return f"{value:.3f}" if math.isfinite(value) else MISSING


def short(value: float) -> str:
    """A quantity of any size in about three digits: milliseconds, seconds."""
    if not math.isfinite(value):
        return MISSING
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def count(value: float) -> str:
    """A whole number with separators."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def plain(values: Sequence[float], digits: int = 6) -> list[float | None]:
    """Numbers as JSON can hold them: rounded to so many significant digits, None where not finite."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]

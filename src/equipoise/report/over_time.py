"""Balance along a run: max/mean of B and C, thinned to what a plot can show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.replay import ReplayResult
from equipoise.replay.layout import SERIES
from equipoise.types import Floats

__all__ = ["OverTime", "over_time"]


@dataclass(frozen=True, slots=True, eq=False)
class OverTime:
    """Max/mean of B and C along a run.

    Parameters
    ----------
    time_s : float64[points]
        Start of the first step of each point, in simulated seconds.
    batch, context : float64[points]
        Largest over mean; NaN where nothing ran.
    counted_s : (float, float)
        The time that entered the averages.
    """

    time_s: Floats
    batch: Floats
    context: Floats
    counted_s: tuple[float, float]

    def counted(self, values: Floats) -> Floats:
        """Those of the points that lie in the counted time; all of them if none does."""
        inside = (self.time_s >= self.counted_s[0]) & (self.time_s < self.counted_s[1]) & np.isfinite(values)
        return values[inside] if inside.any() else values[np.isfinite(values)]


def over_time(result: ReplayResult, points: int = 400) -> OverTime:
    """Thin the step series of a run: every point stands for about equally many steps.

    A point is the sum of the maxima over the sum of the means of its steps, as in the summary. Steps of all
    instances go together.
    """
    rows = result.series
    rows = rows[rows[:, SERIES.STEPS] > 0]
    ends = np.cumsum(rows[:, SERIES.STEPS])
    middle = (ends - rows[:, SERIES.STEPS] / 2) / ends[-1]
    bin_of = np.minimum(middle * points, points - 1).astype(np.int64)
    if len(rows) <= points:
        bin_of = np.arange(len(rows))
    first = np.flatnonzero(np.diff(bin_of, prepend=-1))

    def per_point(column: int) -> Floats:
        return np.asarray(np.add.reduceat(rows[:, column], first))

    def relative(largest: int, mean: int) -> Floats:
        top, bottom = per_point(largest), per_point(mean)
        return np.asarray(np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0))

    return OverTime(
        time_s=rows[first, SERIES.START_S],
        batch=relative(SERIES.MAX_BATCH, SERIES.MEAN_BATCH),
        context=relative(SERIES.MAX_CONTEXT, SERIES.MEAN_CONTEXT),
        counted_s=result.counted_s,
    )

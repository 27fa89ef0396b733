"""What the probe's steps say of communication and of uneven experts: mostly, whether they can say anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from equipoise.study.statistics import Interval, student

if TYPE_CHECKING:
    from equipoise.calibrate.calibration import Calibration

__all__ = ["Beyond", "beyond_words", "spread_part"]

SAME = 0.95
"""R squared of total load on the slowest rank's price from which the two cannot be told apart."""
LEAST_STEPS = 50


@dataclass(frozen=True, slots=True)
class Beyond:
    """Whether steps take longer the more the ranks hold together, at the same slowest rank.

    Parameters
    ----------
    state : {"shown", "not_shown", "not_identifiable"}
    us_per_mean_request : Interval or None
        Microseconds a step takes longer for each further request of the mean rank.
    share : float
        Of a mean step; NaN where not identifiable.
    noise : float
        Relative spread of steps of equal load; NaN without a fit.
    reason : str
        Why nothing can be told.
    """

    state: Literal["shown", "not_shown", "not_identifiable"]
    us_per_mean_request: Interval | None
    share: float
    noise: float
    reason: str = ""


def spread_part(calibration: Calibration | None) -> Beyond:
    """Look for work that is spread over the ranks (communication, experts) in what the fit leaves over.

    A step is paid by its slowest rank. Work that is exchanged between all ranks grows with what they hold together. So
    the residuals are regressed on the mean rank's batch, the predicted price and a constant taken out (Frisch and
    Waugh); where the batch of the mean rank follows the price of the slowest, nothing can be told.
    """
    if calibration is None:
        return Beyond("not_identifiable", None, math.nan, math.nan, "no step data: the cost was given")
    result = calibration.result
    noise = result.convergence.noise
    if result.ranks < 2:
        return Beyond("not_identifiable", None, math.nan, noise, "steps of one rank have no slowest one")
    points = result.points
    n = len(points.observed_us)
    if n < LEAST_STEPS:
        return Beyond("not_identifiable", None, math.nan, noise, f"only {n} steps")
    weight = 1.0 / points.predicted_us
    known = np.stack([np.ones(n), points.predicted_us], axis=1) * weight[:, None]
    batch, left = points.batch * weight, (points.observed_us - points.predicted_us) * weight
    own = batch - known @ np.linalg.lstsq(known, batch, rcond=None)[0]
    total = float(((batch - weight * np.average(points.batch, weights=weight**2)) ** 2).sum())
    if total <= 0 or 1 - float((own**2).sum()) / total > SAME:
        return Beyond(
            "not_identifiable",
            None,
            math.nan,
            noise,
            "in the probe what all ranks hold together rises and falls with what the slowest one holds",
        )
    left = left - known @ np.linalg.lstsq(known, left, rcond=None)[0]
    slope = float((own @ left) / (own @ own))
    error = math.sqrt(float((((left - slope * own) * own) ** 2).sum())) / float(own @ own)  # White 1980
    interval = student(slope, error, n - 3, "blocks")
    share = slope * float(points.batch.mean() / points.observed_us.mean())
    return Beyond("not_shown" if interval.covers_zero else "shown", interval, share, noise)


def beyond_words(found: Beyond) -> str:
    """The same in sentences."""
    skew = "How evenly experts are loaded is in none of the tables, so it is not told apart from noise"
    if math.isfinite(found.noise):
        skew += f": steps of equal load vary by {100 * found.noise:.1f} %"
    if found.state == "not_identifiable":
        return f"Communication and experts: not identifiable from this data ({found.reason}). {skew}."
    assert found.us_per_mean_request is not None
    i = found.us_per_mean_request
    ends = f"{i.low:.3g} to {i.high:.3g} us for each further request of the mean rank"
    if found.state == "not_shown":
        return f"Communication and experts: no part that grows with the load of all ranks is shown ({ends}). {skew}."
    return (
        f"Communication and experts: at the same slowest rank a step takes {i.mean:.3g} us longer for each further "
        f"request of the mean rank ({ends}), {100 * found.share:.1f} % of a mean step. {skew}."
    )

"""What requests met with: latencies, goodput and rates.

A request *counts* if its first token falls inside the counted window (from the start of the first counted step to the
end of the last) and it got all its tokens. Latencies are of these; with them run, for goodput, the *refused*: requests
that ended inside the window without an answer (rejected, failed, or tired of waiting before their first token).
Requests whose client left during the answer are in neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import InputError
from equipoise.fleet.config import Slo
from equipoise.fleet.kernel.layout import ABORTED, FAILED, FINISHED, REJECTED
from equipoise.replay.layout import SERIES
from equipoise.replay.result import Percentiles
from equipoise.types import Floats

if TYPE_CHECKING:
    from equipoise.fleet.result import FleetResult

__all__ = [
    "Goodput",
    "RequestMetrics",
    "counted",
    "measure",
    "meets",
    "need_requests",
    "refused",
    "running_step_ms",
]

Chosen = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that met every bound of the SLO.

    Parameters
    ----------
    requests : int
        Counted requests that met all bounds. One of a single token has no TPOT, so no bound on it to miss.
    requests_per_s, tokens_per_s : float
        Of these and their tokens, a second of the counted window.
    share : float
        Of the counted and the refused together: who turns requests away does not look better for it. NaN without any.
    """

    requests: int
    requests_per_s: float
    tokens_per_s: float
    share: float


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Latencies and rates of the counted requests, of all or of one class; None where there is nothing to measure.

    Parameters
    ----------
    requests, refused : int
        Counted ones; and those that ended in the window without an answer.
    ttft_ms : Percentiles or None
        Arrival to first token.
    tpot_ms : Percentiles or None
        (last token - first token) / (tokens - 1), of requests of 2 tokens or more.
    mean_itl_ms : float or None
        Mean time between two tokens, all gaps alike: sum of (last - first) over sum of (tokens - 1). Long answers weigh
        more than in the mean of `tpot_ms`.
    end_to_end_ms : Percentiles or None
        Arrival to last token.
    before_queue_ms : Percentiles or None
        Arrival to the router's queue: prefill and transfer. Of requests never lost with a rank.
    queue_wait_ms : Percentiles or None
        Router's queue to the start of the first step, the wait inside the engine included. Of requests never lost.
    requests_per_s, tokens_per_s : float
        Counted requests and their tokens, a second of the counted window.
    goodput : Goodput or None
        None without any bound.
    """

    requests: int
    refused: int
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    mean_itl_ms: float | None
    end_to_end_ms: Percentiles | None
    before_queue_ms: Percentiles | None
    queue_wait_ms: Percentiles | None
    requests_per_s: float
    tokens_per_s: float
    goodput: Goodput | None


def counted(result: FleetResult) -> Chosen:
    """Which requests count, bool[requests]."""
    first, last = result.counted_s
    began = result.more.first_s
    found: Chosen = (result.more.status == FINISHED) & (began > first) & (began <= last)
    return found


def refused(result: FleetResult) -> Chosen:
    """Which requests ended inside the counted window without an answer, bool[requests]."""
    first, last = result.counted_s
    m = result.more
    unanswered = (m.status == REJECTED) | (m.status == FAILED) | ((m.status == ABORTED) & np.isnan(m.first_s))
    found: Chosen = unanswered & (m.ended_s > first) & (m.ended_s <= last)
    return found


def meets(result: FleetResult, chosen: Chosen, slo: Slo, *, one_token: bool = True) -> Chosen:
    """Which of the chosen requests meet every bound; `one_token`: what a bound on TPOT says of those without one.

    Returns
    -------
    bool[chosen]
    """
    m = result.more
    good = np.ones(int(chosen.sum()), dtype=bool)
    if slo.ttft_ms is not None:
        good &= 1000.0 * (m.first_s[chosen] - m.came_s[chosen]) <= slo.ttft_ms
    if slo.tpot_ms is not None:
        tokens = m.tokens[chosen]
        spent = 1000.0 * (m.ended_s[chosen] - m.first_s[chosen])
        good &= np.where(tokens > 1, spent <= slo.tpot_ms * (tokens - 1), one_token)
    return good


def measure(result: FleetResult, among: Chosen | None = None) -> RequestMetrics:
    """Measure the counted requests.

    Parameters
    ----------
    result : FleetResult
    among : bool[requests], optional
        Only these.

    Raises
    ------
    InputError
        Requests were not kept.
    """
    need_requests(result)
    chosen, unanswered = counted(result), refused(result)
    if among is not None:
        chosen, unanswered = chosen & among, unanswered & among
    turned_away = int(unanswered.sum())
    m, start_s = result.more, result.outcome.start_s
    first, last = result.counted_s
    span = last - first
    tokens = m.tokens[chosen].astype(np.int64)
    came, began, ended = m.came_s[chosen], m.first_s[chosen], m.ended_s[chosen]
    spent, gaps = ended - began, tokens - 1
    several = gaps > 0
    once = chosen & (m.tries == 0)  # of the others, the queue's time belongs to another life than the start
    return RequestMetrics(
        requests=len(tokens),
        refused=turned_away,
        ttft_ms=_ms(began - came),
        tpot_ms=_ms(spent[several] / gaps[several]),
        mean_itl_ms=float(1000.0 * spent.sum() / gaps.sum()) if several.any() else None,
        end_to_end_ms=_ms(ended - came),
        before_queue_ms=_ms(m.queued_s[once] - m.came_s[once]),
        queue_wait_ms=_ms(start_s[once] - m.queued_s[once]),
        requests_per_s=_rate(len(tokens), span),
        tokens_per_s=_rate(int(tokens.sum()), span),
        goodput=_goodput(result, chosen, tokens, turned_away, span),
    )


def _goodput(
    result: FleetResult, chosen: Chosen, tokens: NDArray[np.int64], turned_away: int, span: float
) -> Goodput | None:
    slo = result.deployment.slo
    if slo.ttft_ms is None and slo.tpot_ms is None:
        return None
    good = meets(result, chosen, slo)
    met, asked = int(good.sum()), len(good) + turned_away
    return Goodput(
        requests=met,
        requests_per_s=_rate(met, span),
        tokens_per_s=_rate(int(tokens[good].sum()), span),
        share=met / asked if asked else math.nan,
    )


def running_step_ms(result: FleetResult) -> Percentiles | None:
    """Length of the counted steps as their requests see it: each step weighs as much as it has decoding requests.

    What passes between two answers of the engine to one request; without speculation, the inter-token latency. From
    the series, so requests need not be kept; a row of several steps stands for its mean length. A percentile is the
    length that so large a share of the weight does not exceed.
    """
    rows = result.counted_series
    weight = rows[:, SERIES.MEAN_BATCH]
    if not len(rows) or weight.sum() <= 0:
        return None
    length_ms = rows[:, SERIES.COST] / rows[:, SERIES.STEPS] * result.cost.us_per_unit / 1000.0
    order = np.argsort(length_ms, kind="stable")
    reached = np.cumsum(weight[order])
    at = np.searchsorted(reached, reached[-1] * np.array([0.5, 0.9, 0.95, 0.99]))
    found = length_ms[order][np.minimum(at, len(order) - 1)]
    mean = float((length_ms * weight).sum() / weight.sum())
    return Percentiles(int(rows[:, SERIES.STEPS].sum()), mean, *(float(v) for v in found))


def need_requests(result: FleetResult) -> None:
    """Refuse a result that has no times of requests."""
    if not result.requests_kept:
        raise InputError("the times of the requests were not kept", fix="simulate with keep_requests=True")


def _ms(seconds: Floats) -> Percentiles | None:
    return Percentiles.of(1000.0 * seconds)


def _rate(amount: int, span: float) -> float:
    return amount / span if span > 0 else math.nan

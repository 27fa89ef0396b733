"""What a comparison of finished runs found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from equipoise.study.pairs.files import RunFile
from equipoise.study.statistics import Interval

__all__ = [
    "LESS_IS_BETTER",
    "QUANTITIES",
    "Ending",
    "Measured",
    "Pair",
    "Pairing",
    "RunComparison",
    "Verdict",
]

Verdict = Literal["better", "worse", "identical", "no_difference_shown", "no_interval"]
Pairing = Literal["requests", "seeds", "none"]

QUANTITIES = {
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "end_to_end_ms": "end to end, ms",
    "queue_wait_ms": "queue wait, ms",
    "tokens_per_s": "tokens/s",
    "goodput_per_s": "goodput, requests/s",
    "excess": "excess",
    "preemptions": "preemptions a request",
}
"""Every quantity that is compared, as tables name it."""
LESS_IS_BETTER = {name: name not in ("tokens_per_s", "goodput_per_s") for name in QUANTITIES}


@dataclass(frozen=True, slots=True)
class Measured:
    """One number in both runs.

    Parameters
    ----------
    quantity : str
        A key of `QUANTITIES`.
    statistic : {"mean", "p50", "p99"}
    a, b : float
    difference : Interval
        ``b - a``.
    log_ratio : Interval
        Of ``log(b / a)``; NaN where either is not above 0.
    margin : float or None
        Share by which the two may differ and still be called equal.
    """

    quantity: str
    statistic: str
    a: float
    b: float
    difference: Interval
    log_ratio: Interval
    margin: float | None = None

    @property
    def ratio(self) -> tuple[float, float, float]:
        """``b / a`` and the ends of its interval."""
        r = self.log_ratio
        return math.exp(r.mean), math.exp(r.low), math.exp(r.high)

    @property
    def verdict(self) -> Verdict:
        """What is shown of B against A.

        A difference is shown where neither interval that is known, that of the difference and that of the ratio, holds
        "no difference": so no number in a table contradicts the word beside it.
        """
        if self.difference.method == "none":
            return "no_interval"
        if self.a == self.b and self.difference.standard_error == 0:
            return "identical"
        ratio_covers = self.log_ratio.method != "none" and self.log_ratio.covers_zero
        if self.difference.covers_zero or ratio_covers:
            return "no_difference_shown"
        return "better" if (self.b < self.a) == LESS_IS_BETTER[self.quantity] else "worse"

    @property
    def within_margin(self) -> bool | None:
        """Whether the two are shown to be equal up to the margin; None without a margin or an interval.

        The whole interval of the ratio must lie between 1 / (1 + margin) and 1 + margin: the same words, whichever run
        is named first.
        """
        if self.margin is None or self.difference.method == "none":
            return None
        if self.log_ratio.method == "none":
            return True if self.verdict == "identical" else None
        reach = math.log1p(self.margin)
        return -reach <= self.log_ratio.low and self.log_ratio.high <= reach


@dataclass(frozen=True, slots=True)
class Ending:
    """Requests that ended otherwise in B than in A.

    Parameters
    ----------
    a, b : str
        How they ended: finished, aborted, rejected, failed, dropped, not_ended.
    requests : int
    rows : tuple of int
        The first of them, as rows of ``requests.parquet`` from 0.
    """

    a: str
    b: str
    requests: int
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Run B against run A.

    Parameters
    ----------
    letters : tuple of str
        Which of the runs named, ``("A", "C")``.
    a, b : RunFile
    cell : mapping
        Which cell of both, where they hold several.
    pairing : {"requests", "seeds", "none"}
        What was paired: requests (and, for rates and the excess, the time they came in); only seeds; nothing.
    requests : tuple of int
        Requests compared in A and in B; equal where they are paired.
    block_s : float
        Seconds a block (of A's time where the clocks differ); NaN without requests.
    blocks : float
        Blocks in the counted time.
    block_reason : str
    endings : tuple of Ending
    measured : tuple of Measured
    notes : tuple of str
        What a reader should know, in sentences.
    """

    letters: tuple[str, str]
    a: RunFile
    b: RunFile
    cell: Mapping[str, Any]
    pairing: Pairing
    requests: tuple[int, int]
    block_s: float
    blocks: float
    block_reason: str
    endings: tuple[Ending, ...]
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RunComparison:
    """Every other run against the first.

    Parameters
    ----------
    sources : tuple of str
        As named; letters A, B, C in their order.
    pairs : tuple of Pair
    intervals : int
        Differences that have an interval: all of them hold at once with 95 % confidence.
    margin : float or None
    """

    sources: tuple[str, ...]
    pairs: tuple[Pair, ...]
    intervals: int
    margin: float | None

"""`FleetResult`: what a simulated deployment did; everything of `ReplayResult`, and what the deployment adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.fleet import classes, metrics
from equipoise.fleet.classes import By
from equipoise.fleet.config import Deployment
from equipoise.fleet.kernel.layout import COUNTS, PART_NAMES, PARTS, STATUS_NAMES, FleetOutcome
from equipoise.fleet.metrics import Goodput, RequestMetrics
from equipoise.replay.layout import SERIES, TOTALS
from equipoise.replay.result import Percentiles, ReplayResult

if TYPE_CHECKING:
    import polars as pl

__all__ = ["FleetResult"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FleetResult(ReplayResult):
    """One run of a deployment.

    Parameters
    ----------
    deployment : Deployment
    more : FleetOutcome
        The raw arrays that a `ReplayResult` does not have.
    turn : int32[requests]
        Turn inside its conversation, from 0.
    """

    deployment: Deployment
    more: FleetOutcome
    turn: NDArray[np.int32]

    @property
    def counts(self) -> dict[str, int]:
        """Whole-run counts by name: aborted, failed, preemptions, ..."""
        return {name.lower(): int(self.more.counts[i]) for name, i in COUNTS._asdict().items()}

    @property
    def parts(self) -> Mapping[str, float]:
        """Mean price of a counted step, part by part, in the cost's unit; they add up to `mean_cost`."""
        steps = max(self.counted_steps, 1)
        return {name: float(self.more.parts[i]) / steps for i, name in enumerate(PART_NAMES)}

    @property
    def attention_excess(self) -> float:
        """Excess of the step cost alone, as the offline study counts it: what is beyond attention left out."""
        parts = self.more.parts
        return float(parts[PARTS.ATTENTION] / parts[PARTS.ATTENTION_IDEAL] - 1.0)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second over the counted steps, all instances together."""
        span = self.counted_s[1] - self.counted_s[0]
        return float(self.more.counts[COUNTS.COUNTED_TOKENS]) / span if span else float("nan")

    @property
    def status(self) -> NDArray[np.int32]:
        """How each request ended, as a position in `layout.STATUS_NAMES`."""
        return self.more.status

    @property
    def part_shares(self) -> Mapping[str, float]:
        """`parts` as shares of the mean price of a step."""
        steps = max(self.counted_steps, 1)
        return {name: mean * steps / self._total(TOTALS.COST) for name, mean in self.parts.items()}

    # -- requests ----------------------------------------------------------------------------------------------

    @property
    def requests_kept(self) -> bool:
        """Whether the times of every request are there."""
        return len(self.more.came_s) > 0

    @property
    def requests(self) -> RequestMetrics | None:
        """Latencies, rates and goodput of the counted requests; None if requests were not kept."""
        return metrics.measure(self) if self.requests_kept else None

    def by_class(self, by: By | ArrayLike, bounds: Sequence[int] | None = None) -> dict[str, RequestMetrics]:
        """`requests` class by class; see `equipoise.fleet.classes.by_class`."""
        return classes.by_class(self, by, bounds)

    @property
    def ttft_ms(self) -> Percentiles | None:
        """Arrival to first token, in milliseconds, of the counted requests; None if requests were not kept."""
        return found.ttft_ms if (found := self.requests) else None

    @property
    def tpot_ms(self) -> Percentiles | None:
        """Time per output token after the first, in milliseconds, of the counted requests of 2 tokens or more."""
        return found.tpot_ms if (found := self.requests) else None

    @property
    def mean_itl_ms(self) -> float | None:
        """Mean time between two tokens, in milliseconds, all gaps of all counted requests alike."""
        return found.mean_itl_ms if (found := self.requests) else None

    @property
    def running_step_ms(self) -> Percentiles | None:
        """Length of the counted steps, each weighed by its decoding requests; see `metrics.running_step_ms`."""
        return metrics.running_step_ms(self)

    @property
    def end_to_end_ms(self) -> Percentiles | None:
        """Arrival to last token, in milliseconds, of the counted requests."""
        return found.end_to_end_ms if (found := self.requests) else None

    @property
    def before_queue_ms(self) -> Percentiles | None:
        """Arrival to the router's queue (prefill, transfer), in milliseconds, of the counted requests never lost."""
        return found.before_queue_ms if (found := self.requests) else None

    @property
    def queue_wait_ms(self) -> Percentiles | None:
        """Router's queue to the start of the first step, in milliseconds, of the counted requests never lost."""
        return found.queue_wait_ms if (found := self.requests) else None

    @property
    def goodput(self) -> Goodput | None:
        """Requests that met every bound of ``deployment.slo``; None without a bound or without kept requests."""
        return found.goodput if (found := self.requests) else None

    # -- rates -------------------------------------------------------------------------------------------------

    @property
    def simulated_s(self) -> float:
        """Simulated time, from the first arrival (0) to the end of the last step; with merged rows nearly so."""
        last = self.series[-1]
        at_once = min(
            self.pool.instances, last[SERIES.STEPS]
        )  # steps of different instances lie side by side
        return float(last[SERIES.START_S] + last[SERIES.COST] / at_once * self.cost.us_per_unit * 1e-6)

    @property
    def placements_per_s(self) -> float:
        """Requests dispatched to a rank, a second of simulated time, over the whole run."""
        return (
            int(self.more.counts[COUNTS.DISPATCHED]) / self.simulated_s if self.simulated_s else float("nan")
        )

    @property
    def decisions_per_s(self) -> float:
        """Requests offered to the policy, a second of wall time: how fast this run decided, all its work included."""
        return int(self.more.counts[COUNTS.DECISIONS]) / self.wall_s if self.wall_s else float("nan")

    # -- frames ------------------------------------------------------------------------------------------------

    def requests_frame(self) -> pl.DataFrame:
        """One row a request, in the order of the trace: times in seconds, rank, lengths, how it ended.

        Times that did not come are NaN; ``rank`` -1: never placed.

        Raises
        ------
        InputError
            Requests were not kept.
        """
        import polars as pl

        metrics.need_requests(self)
        o, m = self.outcome, self.more
        columns: dict[str, Any] = {
            "context_tokens": self.context_tokens,
            "output_tokens": self.output_tokens,
            "turn": np.ascontiguousarray(self.turn),
            "status": pl.Series(STATUS_NAMES, dtype=pl.Enum(STATUS_NAMES)).gather(m.status),
            "rank": o.rank,
            "arrived_s": m.came_s,
            "queued_s": m.queued_s,
            "placed_s": m.placed_s,
            "start_s": o.start_s,
            "first_token_s": m.first_s,
            "ended_s": m.ended_s,
            "tokens": m.tokens,
            "preemptions": m.preemptions,
            "losses": m.tries,
        }
        return pl.DataFrame(columns)

    def to_polars(self) -> pl.DataFrame:
        """The step series, as `ReplayResult.to_polars`, and ``length_s``, the (mean) length of a step in seconds."""
        import polars as pl

        scale = self.cost.us_per_unit * 1e-6
        frame = super(FleetResult, self).to_polars()
        at = frame.columns.index("cost")
        return frame.insert_column(at, (pl.col("cost") * scale).alias("length_s"))

    def counted_between(self, first_s: float, last_s: float) -> FleetResult:
        """As `ReplayResult.counted_between`; parts of the price are not known by the step, so they become NaN.

        Tokens of the window are those of its running requests, at the tokens a request and step of all counted steps.

        Raises
        ------
        InputError
            No counted step starts there.
        """
        part = super(FleetResult, self).counted_between(first_s, last_s)
        assert isinstance(part, FleetResult)
        counts = self.more.counts.copy()
        running = float(self.counted_series[:, SERIES.MEAN_BATCH].sum()) * self.pool.ranks
        yielded = int(counts[COUNTS.COUNTED_TOKENS]) / running if running else 0.0
        counts[COUNTS.COUNTED_TOKENS] = round(yielded * part._total(TOTALS.TOKENS))
        return replace(part, more=self.more._replace(counts=counts, parts=np.full(len(PARTS), np.nan)))

    def __repr__(self) -> str:
        known = "" if self.information.plain else f", {self.information}"
        return (
            f"FleetResult({self.trace_name}, {self.policy_name} {dict(self.params)}, {self.cost.name}, "
            f"{self.mode}{known}: excess {self.excess:.2%} over {self.counted_steps} steps, "
            f"{self.finished} of {self.arrived} requests finished)"
        )

"""`FleetResult`: what a simulated deployment did; everything of `ReplayResult`, and what the deployment adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.fleet.config import Deployment
from equipoise.fleet.kernel.layout import COUNTS, PART_NAMES, PARTS, STATUS_NAMES, FleetOutcome
from equipoise.replay.result import ReplayResult

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
    """

    deployment: Deployment
    more: FleetOutcome

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

    def requests_frame(self) -> pl.DataFrame:
        """One row a request: times in seconds, rank, lengths, how it ended; only if requests were kept."""
        import polars as pl

        o, m = self.outcome, self.more
        names = np.array(STATUS_NAMES)
        columns: dict[str, Any] = {
            "context_tokens": self.context_tokens,
            "output_tokens": self.output_tokens,
            "status": names[m.status],
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

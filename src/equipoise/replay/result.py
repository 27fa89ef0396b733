"""`ReplayResult`: what a run did, in the words and units of the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.cost.step_cost import StepCost
from equipoise.errors import InputError
from equipoise.replay.information import Information
from equipoise.replay.layout import ENDED, SERIES, SERIES_COLUMNS, TOTALS, Outcome
from equipoise.replay.pool import Pool
from equipoise.types import Floats

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Percentiles", "ReplayResult", "Snapshots"]

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Mean and percentiles of one quantity over the counted requests; its unit is in the name of the field."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Percentiles | None:
        """None where there is nothing to measure."""
        if len(values) == 0:
            return None
        return cls(len(values), float(values.mean()), *(float(v) for v in np.percentile(values, PERCENTILES)))


@dataclass(frozen=True, slots=True, eq=False)
class Snapshots:
    """B, C and K of every rank of an instance at chosen steps.

    Parameters
    ----------
    step : int64[k]
        Index of the step over all instances, from 0.
    instance : int64[k]
    start_s, length_s : float64[k]
    batch, context_tokens : int64[k, ranks]
    saturated_tokens : int64[k, ranks, saturations]
    """

    step: NDArray[np.int64]
    instance: NDArray[np.int64]
    start_s: Floats
    length_s: Floats
    batch: NDArray[np.int64]
    context_tokens: NDArray[np.int64]
    saturated_tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """One run: a trace through a pool under a policy, priced by a step cost.

    Averages are over the counted steps: after the pool has turned over once and before it drains.

    Parameters
    ----------
    trace_name, policy_name, mode : str
    params : mapping
        Parameters of the policy.
    pool : Pool
    cost : StepCost
    concurrency : int or None
        Requests kept in the pool; None in ``timed`` mode.
    seed : int
    wall_s : float
        Time the replay took.
    outcome : Outcome
        The raw arrays.
    arrival_s : float64[requests]
        Arrivals as replayed (the rate scale applied); empty in ``saturated`` mode.
    context_tokens, output_tokens : int64[requests]
    information : Information
        Router replicas and what they knew.
    group_policy : str
    rate_scale, warmup_turnovers : float
        As asked for.
    """

    trace_name: str
    policy_name: str
    params: Mapping[str, Any]
    mode: str
    pool: Pool
    cost: StepCost
    concurrency: int | None
    seed: int
    wall_s: float
    outcome: Outcome
    arrival_s: Floats
    context_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    information: Information
    group_policy: str
    rate_scale: float
    warmup_turnovers: float

    def _total(self, position: int) -> float:
        return float(self.outcome.totals[position])

    def _ended(self, position: int) -> int:
        return int(self.outcome.ended[position])

    def _ratio(self, above: int, below: int) -> float:
        return _ratio(self._total(above), self._total(below))

    # -- the headline ------------------------------------------------------------------------------------------

    @property
    def excess(self) -> float:
        """Cost over ideal, minus 1: total price of the counted steps against the same totals spread evenly."""
        return self._ratio(TOTALS.COST, TOTALS.IDEAL) - 1.0

    @property
    def balance(self) -> float:
        """Ideal over cost."""
        return self._ratio(TOTALS.IDEAL, TOTALS.COST)

    @property
    def bubble_share(self) -> float:
        """Share of the step time that the average rank waits for the slowest one."""
        return 1.0 - self._ratio(TOTALS.WORK, TOTALS.COST)

    @property
    def max_over_mean_batch(self) -> float:
        """Largest batch of a rank over the mean batch: sums over steps of both, divided."""
        return self._total(TOTALS.MAX_BATCH) / self._total(TOTALS.MEAN_BATCH)

    @property
    def max_over_mean_context(self) -> float:
        """Most context tokens of a rank over the mean: sums over steps of both, divided."""
        return self._total(TOTALS.MAX_CONTEXT) / self._total(TOTALS.MEAN_CONTEXT)

    @property
    def mean_cost(self) -> float:
        """Mean price of a step, in the cost's unit."""
        return self._total(TOTALS.COST) / self._total(TOTALS.STEPS)

    @property
    def mean_step_ms(self) -> float:
        """Mean length of a step, in milliseconds: the inter-token latency of every request in it."""
        return self.mean_cost * self.cost.us_per_unit / 1000.0

    @property
    def mean_batch(self) -> float:
        """Mean running requests of a rank."""
        return self._total(TOTALS.MEAN_BATCH) / self._total(TOTALS.STEPS)

    @property
    def mean_context_tokens(self) -> float:
        """Mean context tokens of a rank."""
        return self._total(TOTALS.MEAN_CONTEXT) / self._total(TOTALS.STEPS)

    @property
    def block_excess(self) -> tuple[Floats, Floats, Floats]:
        """Cost, ideal and steps of each counted row of the series: what an interval of the excess is made of."""
        rows = self.counted_series
        return rows[:, SERIES.COST], rows[:, SERIES.IDEAL], rows[:, SERIES.STEPS]

    @property
    def batch_growth(self) -> float:
        """Running requests in the last quarter of the counted steps over those in the first; NaN for too few rows.

        Well above 1 in ``timed`` mode, the pool kept filling: requests come faster than it serves them.
        """
        rows = self.counted_series
        quarter = len(rows) // 4
        if quarter == 0:
            return float("nan")
        early, late = (
            r[:, SERIES.MEAN_BATCH].sum() / r[:, SERIES.STEPS].sum()
            for r in (rows[:quarter], rows[-quarter:])
        )
        return _ratio(float(late), float(early))

    @property
    def tokens_per_s(self) -> float:
        """Tokens produced a second over the counted steps, all instances together."""
        span = self.counted_s[1] - self.counted_s[0]
        return _ratio(self._total(TOTALS.TOKENS), span)

    # -- counts ------------------------------------------------------------------------------------------------

    @property
    def counted_steps(self) -> int:
        """Steps that entered the averages."""
        return int(self._total(TOTALS.STEPS))

    @property
    def counted_range(self) -> tuple[int, int]:
        """First and last counted step, as indices over the steps of all instances in the order they started."""
        return int(self._total(TOTALS.FIRST_STEP)), int(self._total(TOTALS.LAST_STEP))

    @property
    def counted_s(self) -> tuple[float, float]:
        """Start of the first counted step and end of the last, in seconds."""
        return self._total(TOTALS.FIRST_S), self._total(TOTALS.LAST_S)

    @property
    def steps(self) -> int:
        """All steps of all instances."""
        return self._ended(ENDED.STEPS)

    @property
    def arrived(self) -> int:
        """Requests that reached the router."""
        return self._ended(ENDED.ARRIVED)

    @property
    def finished(self) -> int:
        """Requests that got all their tokens."""
        return self._ended(ENDED.FINISHED)

    @property
    def rejected(self) -> int:
        """Requests larger than a rank's capacity."""
        return self._ended(ENDED.REJECTED)

    @property
    def blocked_requests(self) -> int:
        """Requests that fitted nowhere (or were held by the policy) at first."""
        return self._ended(ENDED.BLOCKED_REQUESTS)

    @property
    def blocked_rounds(self) -> int:
        """Placement rounds all requests together sat through without a rank."""
        return self._ended(ENDED.BLOCKED_ROUNDS)

    @property
    def over_capacity_rank_steps(self) -> int:
        """Counted (rank, step) pairs with more tokens than ``kv_capacity_tokens``: growth after admission."""
        return int(self._total(TOTALS.OVER_CAPACITY))

    @property
    def rounds(self) -> int:
        """Calls of the policy; one call may place many requests."""
        return self._ended(ENDED.ROUNDS)

    def counted_between(self, first_s: float, last_s: float) -> ReplayResult:
        """The same run, its averages over those of the counted steps that start from `first_s` to before `last_s`.

        Where rows of the series stand for several steps, the window is as coarse as they are.

        Raises
        ------
        InputError
            No counted step starts there.
        """
        rows = self.series
        ends = np.cumsum(rows[:, SERIES.STEPS])
        whole = (rows[:, SERIES.COUNTED] == rows[:, SERIES.STEPS]) & (rows[:, SERIES.STEPS] > 0)
        inside = whole & (rows[:, SERIES.START_S] >= first_s) & (rows[:, SERIES.START_S] < last_s)
        if not inside.any():
            raise InputError(
                f"no counted step starts from {first_s:g} s to {last_s:g} s",
                where=f"policy {self.policy_name!r}, trace {self.trace_name!r}",
                fix="use more requests or a shorter warm-up",
            )
        sums = rows[inside].sum(axis=0)
        chosen = np.flatnonzero(inside)
        totals = np.zeros(len(TOTALS))
        for name in (
            "STEPS",
            "COST",
            "IDEAL",
            "WORK",
            "MAX_BATCH",
            "MEAN_BATCH",
            "MAX_CONTEXT",
            "MEAN_CONTEXT",
        ):
            totals[getattr(TOTALS, name)] = sums[getattr(SERIES, name)]
        totals[TOTALS.TOKENS] = sums[SERIES.MEAN_BATCH] * self.pool.ranks
        totals[TOTALS.OVER_CAPACITY] = sums[SERIES.OVER_CAPACITY]
        totals[TOTALS.FIRST_S], totals[TOTALS.LAST_S] = first_s, last_s
        totals[TOTALS.FIRST_STEP] = ends[chosen[0]] - rows[chosen[0], SERIES.STEPS]
        totals[TOTALS.LAST_STEP] = ends[chosen[-1]] - 1
        series = self.outcome.series.copy()
        series[: len(rows), SERIES.COUNTED] = np.where(inside, rows[:, SERIES.COUNTED], 0.0)
        return replace(self, outcome=self.outcome._replace(totals=totals, series=series))

    # -- requests ----------------------------------------------------------------------------------------------

    def _counted_requests(self) -> NDArray[np.bool_]:
        first, last = self.counted_s
        start = self.outcome.start_s
        return (start >= first) & (start <= last) & ~np.isnan(self.outcome.finish_s)

    @property
    def queue_wait_ms(self) -> Percentiles | None:
        """Arrival to the start of the first decode step, in milliseconds; None if requests were not kept."""
        if len(self.arrival_s) == 0 or len(self.outcome.start_s) == 0:
            return None
        kept = self._counted_requests()
        return Percentiles.of(1000.0 * (self.outcome.start_s[kept] - self.arrival_s[kept]))

    @property
    def tpot_ms(self) -> Percentiles | None:
        """Time per output token of a request (decode only), in milliseconds; None if requests were not kept."""
        if len(self.outcome.start_s) == 0:
            return None
        kept = self._counted_requests()
        spent = self.outcome.finish_s[kept] - self.outcome.start_s[kept]
        return Percentiles.of(1000.0 * spent / self.output_tokens[kept])

    # -- series ------------------------------------------------------------------------------------------------

    @property
    def series(self) -> Floats:
        """float64[rows, 13], columns as `layout.SERIES`: every step, or runs of neighbouring steps added up."""
        return self.outcome.series[: self._ended(ENDED.SERIES_ROWS)]

    @property
    def counted_series(self) -> Floats:
        """The rows of `series` that hold counted steps only."""
        rows = self.series
        return rows[(rows[:, SERIES.COUNTED] == rows[:, SERIES.STEPS]) & (rows[:, SERIES.STEPS] > 0)]

    @property
    def snapshots(self) -> Snapshots:
        """The ranks at the steps asked for."""
        k = self._ended(ENDED.SNAPSHOTS)
        o = self.outcome
        return Snapshots(
            o.snapshot_step[:k, 0],
            o.snapshot_step[:k, 1],
            o.snapshot_s[:k, 0],
            o.snapshot_s[:k, 1],
            o.snapshot_batch[:k],
            o.snapshot_context[:k],
            o.snapshot_saturated[:k],
        )

    def to_polars(self) -> pl.DataFrame:
        """The step series as a data frame, columns as `layout.SERIES_COLUMNS`; means where rows hold several steps.

        ``cost``, ``ideal`` and ``work`` are in the cost's unit, ``steps`` says how many steps a row stands for.
        """
        import polars as pl

        rows = self.series
        frame = pl.DataFrame({name: rows[:, i] for i, name in enumerate(SERIES_COLUMNS)})
        whole = ["steps", "counted_steps", "instance"]
        means = [c for c in SERIES_COLUMNS if c not in (*whole, "start_s")]
        return frame.with_columns(*(pl.col(c) / pl.col("steps") for c in means)).with_columns(
            *(pl.col(c).cast(pl.Int64) for c in whole)
        )

    def requests_frame(self) -> pl.DataFrame:
        """One row a request: arrival, start, finish (seconds), rank, lengths; only if requests were kept."""
        import polars as pl

        o = self.outcome
        columns: dict[str, Any] = {
            "context_tokens": self.context_tokens,
            "output_tokens": self.output_tokens,
            "rank": o.rank,
            "start_s": o.start_s,
            "finish_s": o.finish_s,
        }
        if len(self.arrival_s):
            columns = {"arrival_s": self.arrival_s, **columns}
        return pl.DataFrame(columns)

    def __repr__(self) -> str:
        known = "" if self.information.plain else f", {self.information}"
        return (
            f"ReplayResult({self.trace_name}, {self.policy_name} {dict(self.params)}, {self.cost.name}, "
            f"{self.mode}{known}: excess {self.excess:.2%} over {self.counted_steps} steps)"
        )


def _ratio(above: float, below: float) -> float:
    """The ratio; NaN where there is nothing to divide by (a cost table may price small batches at 0)."""
    return above / below if below else float("nan")

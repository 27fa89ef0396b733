"""How a run is laid out as arrays: what the engine hands to the kernel and what the kernel hands back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.policies.rules import BAD_RANK, MAX_ROUND, NO_ROOM, UNLIMITED_TOKENS
from equipoise.types import Floats, Floats2D, Ints, Ints2D, Ints3D, SmallInts

__all__ = [
    "BAD_RANK",
    "ENDED",
    "MAX_ROUND",
    "NO_ROOM",
    "ORDERLESS_ROUNDS",
    "SERIES",
    "SERIES_COLUMNS",
    "STUCK",
    "TOTALS",
    "UNLIMITED_TOKENS",
    "Outcome",
    "PoolLayout",
    "Settings",
    "Work",
    "new_outcome",
]

ORDERLESS_ROUNDS = 1000
"""Rounds in a row a policy may place nothing on an idle pool before the run is stopped as stuck."""

STUCK = 3
"""A value of ``ended[ENDED.ERROR]``, beside `BAD_RANK` and `NO_ROOM`: a policy placed nothing for ever."""


class Work(NamedTuple):
    """The requests, in arrival order."""

    arrival_s: Floats
    context_tokens: Ints
    output_tokens: Ints
    session: Ints
    """int64[requests], or int64[1] where all requests share one value."""


class PoolLayout(NamedTuple):
    """Ranks of instance i: ``i * ranks_per_instance`` up to the next instance's first."""

    instances: int
    ranks_per_instance: int
    kv_capacity_tokens: int
    max_batch: int
    growth_reserve_tokens: int
    group_starts: Ints
    """int64[groups + 1], first instance of each group, then the number of instances."""


class Settings(NamedTuple):
    """How to run and what to keep."""

    saturated: int
    """1: keep ``concurrency`` requests in the pool; 0: follow the arrival times."""
    concurrency: int
    seconds_per_unit: float
    group_by_tokens: int
    """Group choice: 1 fewest tokens a rank, 0 fewest requests a rank."""
    warmup_turnovers: float
    """Steps count once finished requests >= this times the largest number running so far, then and ever after."""
    drain: int
    """1: run until the last request has finished; 0: stop when the last one has been placed."""
    keep_requests: int
    """1: start, finish and rank of every request are kept."""
    snapshot_first: int
    """Index of the first step (over all instances) whose ranks are kept."""
    snapshot_every: int
    tells_finished: int
    """1: the policy learns from requests that end."""


class _Totals(NamedTuple):
    """Positions in ``Outcome.totals`` (sums over counted steps unless said otherwise)."""

    STEPS: int = 0
    COST: int = 1
    IDEAL: int = 2
    WORK: int = 3  # mean over ranks of a rank's own share, its part of the constant included
    MAX_BATCH: int = 4
    MEAN_BATCH: int = 5
    MAX_CONTEXT: int = 6
    MEAN_CONTEXT: int = 7
    TOKENS: int = 8
    OVER_CAPACITY: int = 9  # rank-steps above kv_capacity_tokens
    FIRST_S: int = 10  # start of the first counted step
    LAST_S: int = 11  # end of the last counted step
    FIRST_STEP: int = 12  # index over all steps
    LAST_STEP: int = 13


TOTALS = _Totals()


class _Ended(NamedTuple):
    """Positions in ``Outcome.ended`` (whole run)."""

    ARRIVED: int = 0
    FINISHED: int = 1
    REJECTED: int = 2
    QUEUED: int = 3
    RUNNING: int = 4
    STEPS: int = 5
    TOKENS: int = 6  # all tokens produced
    FINISHED_TOKENS: int = 7  # outputs of the finished requests
    BLOCKED_REQUESTS: int = 8  # requests that had to wait for room (or were held) at least one round
    BLOCKED_ROUNDS: int = 9  # request-rounds spent so
    PEAK_RUNNING: int = 10
    ROUNDS: int = 11  # calls of the policy
    ERROR: int = 12  # 0 = none, else BAD_RANK, NO_ROOM or STUCK
    ERROR_REQUEST: int = 13
    ERROR_RANK: int = 14
    SERIES_ROWS: int = 15
    SERIES_STEPS: int = 16  # steps merged into one row
    SNAPSHOTS: int = 17
    RESIDUE: int = 18  # batch, context and saturated tokens left on the ranks at the end, added up


ENDED = _Ended()


class _Series(NamedTuple):
    """Columns of ``Outcome.series``: one row a step, in the order they started.

    Where a row stands for several steps, all columns but START_S and INSTANCE are sums over them; INSTANCE is -1 where
    they are of several instances.
    """

    START_S: int = 0
    STEPS: int = 1
    COUNTED: int = 2
    COST: int = 3
    IDEAL: int = 4
    WORK: int = 5
    MAX_BATCH: int = 6
    MEAN_BATCH: int = 7
    MAX_CONTEXT: int = 8
    MEAN_CONTEXT: int = 9
    QUEUED: int = 10
    OVER_CAPACITY: int = 11  # ranks above kv_capacity_tokens
    INSTANCE: int = 12


SERIES = _Series()
SERIES_COLUMNS = (
    "start_s",
    "steps",
    "counted_steps",
    "cost",
    "ideal",
    "work",
    "max_batch",
    "mean_batch",
    "max_context_tokens",
    "mean_context_tokens",
    "queued",
    "over_capacity_ranks",
    "instance",
)
"""Names of these columns in ``steps.parquet``."""


class Outcome(NamedTuple):
    """Arrays the kernel (or its twin) fills."""

    totals: Floats
    ended: Ints
    series: Floats2D
    """float64[rows, 13], columns as `SERIES`; when full, neighbours are merged and the rows halve."""
    start_s: Floats
    """float64[requests], start of a request's first step; NaN: never. Empty unless kept."""
    finish_s: Floats
    rank: SmallInts
    """int32[requests]; -1: never placed."""
    snapshot_step: Ints2D
    """int64[snapshots, 2], index of the step over all instances, and its instance."""
    snapshot_s: Floats2D
    """float64[snapshots, 2], start of the step, and its length in seconds."""
    snapshot_batch: Ints2D
    """int64[snapshots, ranks of one instance]."""
    snapshot_context: Ints2D
    snapshot_saturated: Ints3D


def new_outcome(
    requests: int,
    pool: PoolLayout,
    saturations: int,
    *,
    series_rows: int,
    keep_requests: bool,
    snapshots: int,
) -> Outcome:
    """Empty arrays of the right sizes (``series_rows`` must be even and at least 2)."""
    kept = requests if keep_requests else 0
    ranks = pool.ranks_per_instance
    return Outcome(
        totals=np.zeros(len(TOTALS)),
        ended=np.zeros(len(ENDED), dtype=np.int64),
        series=np.zeros((series_rows, len(SERIES))),
        start_s=np.full(kept, np.nan),
        finish_s=np.full(kept, np.nan),
        rank=np.full(requests, -1, dtype=np.int32),
        snapshot_step=np.zeros((snapshots, 2), dtype=np.int64),
        snapshot_s=np.zeros((snapshots, 2)),
        snapshot_batch=np.zeros((snapshots, ranks), dtype=np.int64),
        snapshot_context=np.zeros((snapshots, ranks), dtype=np.int64),
        snapshot_saturated=np.zeros((snapshots, ranks, saturations), dtype=np.int64),
    )

"""Rank maps: the own work of every rank of an instance, relative to the mean, along a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from equipoise.replay import SnapshotPlan
from equipoise.report.views import first_scenes
from equipoise.study import Cell, Comparison, rerun
from equipoise.types import Floats, Ints

__all__ = ["RankMap", "rank_map", "rank_maps"]

COLUMNS = 160
MOST_RANKS = 128
"""Rows of a map; of a larger instance, evenly spaced ranks are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class RankMap:
    """Own work over the mean of the instance's ranks.

    Parameters
    ----------
    cell : Cell
    role : str
        Why it is shown: ``baseline``, ``least excess``.
    ranks : int64[shown]
        The ranks shown.
    start_s : float64[columns]
        Start of the steps shown, in simulated seconds.
    relative : float64[shown, columns]
        1 is the mean; waiting and the constant of the cost are left out.
    slowest : float
        Mean over these steps of the largest of all ranks.
    """

    cell: Cell
    role: str
    ranks: Ints
    start_s: Floats
    relative: Floats
    slowest: float


def rank_map(comparison: Comparison, cell: Cell, role: str, columns: int = COLUMNS) -> RankMap:
    """Replay the first seed of a cell again and look at its first instance at evenly spaced counted steps."""
    first, last = cell.runs[0].counted_range
    instances = cell.setting.pool.instances
    wanted = columns * instances
    every = max(1, (last - first + 1) // wanted)
    # instances step in turns: with a common divisor the first one might never be met
    while gcd(every, instances) > 1:
        every += 1
    seen = rerun(comparison.plan, cell, SnapshotPlan(wanted, first, every)).snapshots
    kept = np.flatnonzero((seen.instance == 0) & (seen.step <= last))[:columns]
    if len(kept) == 0:
        kept = np.arange(min(1, len(seen.step)))
    cost = cell.setting.cost
    work = cost.work(seen.batch[kept], seen.context_tokens[kept], seen.saturated_tokens[kept]).sum(axis=0)
    mean = work.mean(axis=1, keepdims=True)
    relative = np.divide(work, mean, out=np.full_like(work, np.nan), where=mean > 0)
    peaks = relative.max(axis=1)
    peaks = peaks[np.isfinite(peaks)]
    total = work.shape[1]
    ranks = np.unique(np.linspace(0, total - 1, min(total, MOST_RANKS)).round().astype(np.int64))
    return RankMap(
        cell=cell,
        role=role,
        ranks=ranks,
        start_s=seen.start_s[kept],
        relative=relative[:, ranks].T,
        slowest=float(peaks.mean()) if len(peaks) else float("nan"),
    )


def rank_maps(comparison: Comparison) -> list[list[RankMap]]:
    """For every trace, under its first cost: the baseline and the policy with the least excess."""
    found = []
    for scene in first_scenes(comparison):
        baseline, best = comparison.baseline(scene.first), comparison.best(scene.first)
        maps = [rank_map(comparison, best, "least excess")]
        if baseline is not best:
            maps.insert(0, rank_map(comparison, baseline, "baseline"))
        found.append(maps)
    return found

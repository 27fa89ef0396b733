"""What each rank has in hand in a step, as sums that the price follows from: `worth`, vectorised.

`equipoise.control.evaluate.worth` is the plain twin: both give the same numbers, bit for bit.
"""

from __future__ import annotations

import numpy as np

from equipoise.control.evaluate import Worth
from equipoise.control.kernel.prices import captured, ep_price
from equipoise.control.layout import ONE
from equipoise.control.price import VerifyPrice
from equipoise.control.state import Snapshot
from equipoise.types import Floats, Ints, Ints2D

__all__ = ["Loads", "rank_sums"]


def rank_sums(values: Ints, first: Ints) -> Ints:
    """Sum of each rank's rows; a rank without rows has 0.

    Parameters
    ----------
    values : int64[rows]
    first : int64[ranks + 1]
    """
    ends = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    return np.asarray(ends[first[1:]] - ends[first[:-1]])


class Loads:
    """The ranks of a snapshot under a plan.

    Parameters
    ----------
    snapshot : Snapshot
    price : VerifyPrice
    lengths : int64[requests]
        Verified drafts of each request, from 0 to the snapshot's drafts.
    """

    def __init__(self, snapshot: Snapshot, price: VerifyPrice, lengths: Ints) -> None:
        self._p, self._ranks = price.arrays, snapshot.ranks
        bounds = [np.iinfo(np.int64).max, *self._p.saturation_tokens.tolist()]
        self._read = np.array([np.minimum(snapshot.context_tokens, b) for b in bounds])
        self._again = self._read * lengths
        self._reads: Ints2D = np.array([rank_sums(row, snapshot.first) for row in self._read])
        self._extra: Ints2D = np.array([rank_sums(row, snapshot.first) for row in self._again])
        self._lengths, self._queries = lengths, rank_sums(1 + lengths, snapshot.first)
        gains = (snapshot.survival.astype(np.float64) * ONE).astype(np.int64)
        self.gain = ONE + np.where(np.arange(snapshot.drafts) < lengths[:, None], gains, 0).sum(axis=1)
        """int64[requests], expected tokens of each, in parts of `ONE`."""
        self._expected = int(self.gain.sum())

    def leave_out(self, row: int, rank: int) -> None:
        """Take a request out of the step."""
        self._reads[:, rank] -= self._read[:, row]
        self._extra[:, rank] -= self._again[:, row]
        self._queries[rank] -= 1 + self._lengths[row]
        self._expected -= int(self.gain[row])

    def worth(self) -> Worth:
        """What the step yields and costs."""
        p, queries = self._p, self._queries.copy()
        level = int(captured(p, int(queries.max())))
        run = np.full(self._ranks, level) if len(p.graphs) else queries
        total, barrier, work = p.constant, 0.0, np.zeros(self._ranks)
        for group in range(len(p.tail)):
            own = self._batch(group, run) + self._context(group)
            slowest = float(own.max())
            total += slowest
            barrier += slowest
            work += own
        total += ep_price(p, int(queries.sum()), self._ranks)
        return Worth(self._expected / ONE, total, queries, work, barrier)

    def _batch(self, group: int, queries: Ints) -> Floats:
        p = self._p
        last = p.batch.shape[1] - 1
        return np.asarray(
            p.batch[group, np.minimum(queries, last)] + p.tail[group] * np.maximum(0, queries - last)
        )

    def _context(self, group: int) -> Floats:
        p = self._p
        reads = self._reads + p.query_reads * self._extra
        price = p.context[group] * reads[0]
        for s in range(len(p.saturation_tokens)):
            price = price + p.saturated[group, s] * reads[1 + s]
        return np.asarray(price)

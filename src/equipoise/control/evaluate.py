"""What a plan is worth: its expected tokens and its step's price, exactly; the plain twin of the compiled code.

Expected tokens are summed as whole numbers of 2**-22: then the order of ranks and requests cannot change the result,
and every rank of an instance computes the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.control.kernel.prices import batch_price, captured, context_price, ep_price
from equipoise.control.kernel.room import ONE
from equipoise.control.price import VerifyPrice
from equipoise.control.state import Snapshot
from equipoise.errors import InputError
from equipoise.types import Floats, Ints

__all__ = ["Worth", "worth"]


class Worth(NamedTuple):
    """What a plan is worth."""

    tokens: float
    """Expected tokens of the step, the one that every request gets anyway included."""
    price: float
    """The step's price, in the cost's unit."""
    queries: Ints
    """int64[ranks], query tokens."""
    work: Floats
    """float64[ranks], each rank's own work in the groups that wait, in the cost's unit."""
    barrier: float
    """What the slowest ranks of these groups take, in the cost's unit."""

    @property
    def rate(self) -> float:
        """Expected tokens per unit of time."""
        return self.tokens / self.price if self.price > 0 else 0.0

    @property
    def bubble_share(self) -> float:
        """Share of the barrier's time that the average rank waits."""
        return 1.0 - float(self.work.mean()) / self.barrier if self.barrier > 0 else 0.0


def worth(snapshot: Snapshot, price: VerifyPrice, lengths: Ints) -> Worth:
    """Evaluate a plan exactly as the allocator does: the plain twin of the compiled code.

    Parameters
    ----------
    snapshot : Snapshot
    price : VerifyPrice
    lengths : int64[requests]
        Verified drafts of each request.

    Raises
    ------
    InputError
        A length out of bounds.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if lengths.shape != snapshot.context_tokens.shape:
        raise InputError(
            f"{lengths.shape} lengths for {len(snapshot.context_tokens)} requests", fix="give one for each"
        )
    if len(lengths) and not (lengths.min() >= 0 and lengths.max() <= snapshot.drafts):
        raise InputError(
            f"lengths from {lengths.min()} to {lengths.max()}", fix=f"must be from 0 to {snapshot.drafts}"
        )
    p, ranks = price.arrays, snapshot.ranks
    bounds = [np.iinfo(np.int64).max, *p.saturation_tokens.tolist()]
    reads = np.zeros((ranks, len(bounds)), dtype=np.int64)
    extra, queries = np.zeros_like(reads), np.zeros(ranks, dtype=np.int64)
    gains = (snapshot.survival.astype(np.float64) * ONE).astype(np.int64)
    expected = 0
    for r in range(ranks):
        rows = slice(int(snapshot.first[r]), int(snapshot.first[r + 1]))
        mine, context = lengths[rows], snapshot.context_tokens[rows]
        queries[r] = len(mine) + int(mine.sum())
        for k, bound in enumerate(bounds):
            read = np.minimum(context, bound)
            reads[r, k], extra[r, k] = int(read.sum()), int((read * mine).sum())
        expected += len(mine) * ONE
        expected += int(gains[rows][np.arange(snapshot.drafts) < mine[:, None]].sum())
    padded = len(p.graphs) > 0
    level = int(captured(p, int(queries.max())))
    total, barrier, work = p.constant, 0.0, np.zeros(ranks)
    for group in range(len(p.tail)):
        own = np.array(
            [
                batch_price(p, group, level if padded else int(queries[r]))
                + context_price(p, group, reads[r], extra[r])
                for r in range(ranks)
            ]
        )
        slowest = float(own.max())
        total += slowest
        barrier += slowest
        work += own
    total += ep_price(p, int(queries.sum()), ranks)
    return Worth(expected / ONE, total, queries, work, barrier)

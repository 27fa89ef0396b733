"""Who decides how many drafts are verified: the rules that a simulation compares."""

from __future__ import annotations

from collections import deque

import numpy as np

from equipoise.control.price import VerifyPrice
from equipoise.control.rank_argmax import own_times, profiled_times, rank_argmax
from equipoise.control.state import Snapshot
from equipoise.control.verify import allocate
from equipoise.errors import InputError, nearest
from equipoise.types import Floats, Ints

__all__ = ["STRATEGIES", "Strategy", "strategy"]

STRATEGIES = {
    "none": "no draft is verified",
    "fixed": "the same number of drafts for every request: fixed,K",
    "argmax": "every rank for itself, by a start-up profile of token counts (DSpark, vLLM; with graph sizes all ranks "
    "are padded to the largest demand, as SGLang does)",
    "argmax_own": "every rank for itself, by its own true time with its own contexts",
    "argmax_waits": "every rank for itself, by a profile corrected with measured steps, waiting included (DeepInfer)",
    "equipoise": "ours: all ranks together",
}

WINDOW = 64
"""Steps over which measured times correct a profile."""


class Strategy:
    """A rule with what it remembers.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`; ``fixed,3`` for three drafts each.
    price : VerifyPrice
    most_queries : int
        Query tokens a rank may come to.
    """

    def __init__(self, name: str, price: VerifyPrice, most_queries: int) -> None:
        kind, _, number = name.partition(",")
        if kind not in STRATEGIES:
            raise InputError(f"no strategy named {name!r}", fix=nearest(kind, STRATEGIES))
        if (kind == "fixed") != bool(number) or (number and not number.isdigit()):
            raise InputError(
                f"strategy {name!r}", fix="give fixed its number of drafts (fixed,3), others none"
            )
        self.name, self._kind, self._price = name, kind, price
        self._drafts = int(number or 0)
        self._profile = profiled_times(price, most_queries) if kind.startswith("argmax") else np.zeros(0)
        self._residuals: deque[Floats] = deque(maxlen=WINDOW)
        self._queries = np.zeros(0, dtype=np.int64)

    def lengths(self, snapshot: Snapshot) -> Ints:
        """Verified drafts of each request, on what an earlier step knew."""
        if self._kind in ("none", "fixed"):
            return np.full(len(snapshot.context_tokens), min(self._drafts, snapshot.drafts))
        if self._kind == "equipoise":
            plan = allocate(snapshot, self._price)
            return plan.lengths(plan.for_step)
        if self._kind == "argmax_own":
            return rank_argmax(snapshot, own_times(snapshot, self._price))
        times = np.broadcast_to(self._profile, (snapshot.ranks, len(self._profile)))
        if self._kind == "argmax_waits" and self._residuals:
            slope = np.maximum(0.0, np.median(np.array(self._residuals), axis=0))
            times = times + slope[:, None] * np.arange(times.shape[1])
        lengths = rank_argmax(snapshot, np.ascontiguousarray(times))
        ends = np.concatenate([[0], np.cumsum(1 + lengths)])
        self._queries = ends[snapshot.first[1:]] - ends[snapshot.first[:-1]]
        return lengths

    def measured(self, step_time: float) -> None:
        """Tell it how long the step took: the same for all ranks, whoever waited for whom."""
        if self._kind == "argmax_waits":
            queries = np.maximum(self._queries, 1)
            self._residuals.append((step_time - self._profile[self._queries]) / queries)


def strategy(name: str, price: VerifyPrice, most_queries: int) -> Strategy:
    """Make a strategy."""
    return Strategy(name, price, most_queries)

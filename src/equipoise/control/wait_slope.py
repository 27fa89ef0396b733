"""A profile corrected by measured steps, as DeepInfer does it: ``T(g) = base(g) + max(0, k) g``.

``k`` is learnt on each rank from its residuals ``(measured - base(g)) / g`` over the last 5,000 steps: the median of
each graph size that was seen ten times or more, then the median of these. What is measured is the whole step, and so
holds the time that the rank waited for others: a light rank believes its tokens dear where they are free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from equipoise.types import Floats, Ints

__all__ = ["GRAPH_INTERVAL", "WaitSlope"]

GRAPH_INTERVAL = 8
"""Query tokens from one captured graph to the next, where a price names none (DeepInfer's default)."""
WINDOW, LEAST, EVERY = 5000, 10, 16
"""Steps looked back on, measurements a graph size must have, and steps between two looks (the last one ours)."""


class WaitSlope:
    """Each rank's slope.

    Parameters
    ----------
    profile : float64[queries + 1]
        ``base``, the start-up profile.
    graph_sizes : sequence of int
        None: as if captured every 8 query tokens.
    """

    def __init__(self, profile: Floats, graph_sizes: Sequence[int]) -> None:
        queries = np.arange(len(profile))
        sizes = np.array(graph_sizes or range(GRAPH_INTERVAL, len(profile) + GRAPH_INTERVAL, GRAPH_INTERVAL))
        at = np.minimum(np.searchsorted(sizes, queries), len(sizes) - 1)
        self.sizes: Ints = np.where(queries > sizes[-1], queries, np.where(queries == 0, 0, sizes[at]))
        """int64[queries + 1], the graph that so many query tokens run in."""
        self._profile = profile
        self._seen: deque[tuple[Ints, Floats]] = deque(maxlen=WINDOW)
        self._steps = 0
        self._slopes = np.zeros(0)

    def per_query(self, ranks: int) -> Floats:
        """float64[ranks], max(0, k)."""
        return self._slopes if len(self._slopes) == ranks else np.zeros(ranks)

    def add(self, queries: Ints, step_time: float) -> None:
        """A step with these query tokens on each rank has taken so long."""
        sizes = np.maximum(self.sizes[queries], 1)
        self._seen.append((sizes, (step_time - self._profile[queries]) / sizes))
        self._steps += 1
        if self._steps % EVERY == 0:
            sizes, residuals = (np.array(part) for part in zip(*self._seen, strict=True))
            self._slopes = np.array([_slope(s, r) for s, r in zip(sizes.T, residuals.T, strict=True)])


def _slope(sizes: Ints, residuals: Floats) -> float:
    medians = [
        float(np.median(residuals[sizes == size]))
        for size, count in zip(*np.unique(sizes, return_counts=True), strict=True)
        if count >= LEAST
    ]
    return max(0.0, float(np.median(medians))) if medians else 0.0

"""`Told`: survivals as they were some steps ago, which is what a decision may look at."""

from __future__ import annotations

from collections import deque

import numpy as np

from equipoise.types import Floats, Ints

__all__ = ["Told"]


class Told:
    """Survivals on their way to whoever decides.

    Parameters
    ----------
    horizon : int
        Steps on the way, at least 1.
    unknown : float64[drafts]
        What stands for a request of which nothing so old is known.
    """

    def __init__(self, horizon: int, unknown: Floats) -> None:
        self._unknown = unknown
        self._told: deque[Floats] = deque(maxlen=horizon)

    def swap(self, fresh: Floats) -> Floats:
        """Send this step's survivals on their way, and get those of ``horizon`` steps ago.

        Parameters
        ----------
        fresh : float64[slots, drafts]
            It is kept, not copied.
        """
        full = len(self._told) == self._told.maxlen
        known = self._told[0] if full else np.broadcast_to(self._unknown, fresh.shape)
        self._told.append(fresh)
        return known

    def forget(self, slots: Ints) -> None:
        """Other requests have taken these slots: what is on its way is not about them."""
        for survivals in self._told:
            survivals[slots] = self._unknown

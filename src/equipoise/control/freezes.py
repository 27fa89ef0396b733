"""Freezing admission: a rank that is behind takes no new requests for a while, with a bound on the wait.

A rank is frozen for at most ``freeze_steps`` steps in a row, and then takes requests for one step at least. What was
held back from it is let in then, so no request waits longer than ``freeze_steps``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.control.loads import Loads
from equipoise.control.price import VerifyPrice
from equipoise.control.state import RankDrafts, Snapshot
from equipoise.errors import InputError

__all__ = ["Freezes"]


class Freezes:
    """Which ranks take no new request.

    Parameters
    ----------
    freeze_steps : int
        Longest freeze of a rank.
    above : float
        A rank is frozen if its own work is above the mean by so much, as a share.
    """

    def __init__(self, freeze_steps: int = 16, above: float = 0.05) -> None:
        if (
            isinstance(freeze_steps, bool)
            or not isinstance(freeze_steps, int)
            or not 0 <= freeze_steps <= 10**6
        ):
            raise InputError(
                f"freeze_steps = {freeze_steps!r}", fix="must be a whole number from 0 to 1000000"
            )
        if not above >= 0:
            raise InputError(f"above = {above}", fix="must be 0 or more")
        self.freeze_steps, self.above = freeze_steps, above
        self._frozen = np.zeros(0, dtype=np.int64)

    def decide(self, ranks: Snapshot | Sequence[RankDrafts], price: VerifyPrice) -> NDArray[np.bool_]:
        """Which ranks take none at the next step, from mandatory work alone: verified drafts come and go.

        Returns
        -------
        bool[ranks]
            Never all of them.
        """
        snapshot = ranks if isinstance(ranks, Snapshot) else Snapshot.of(ranks)
        if len(self._frozen) != snapshot.ranks:
            self._frozen = np.zeros(snapshot.ranks, dtype=np.int64)
        work = Loads(snapshot, price, np.zeros(len(snapshot.context_tokens), dtype=np.int64)).worth().work
        heavy = work > work.mean() * (1 + self.above)
        frozen = heavy & (self._frozen < self.freeze_steps)
        self._frozen = np.where(frozen, self._frozen + 1, 0)
        return np.asarray(frozen)

"""Survivals learnt from what was accepted: for schedulers that are told no confidences, as vLLM's.

For each position, the share of verified drafts that were accepted while those before them were: of the request
itself, older steps counting less, and towards the instance's own share of that position where the request has few. It
contains steps whose outcome is known, and nothing of the drafts that wait for their turn.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from equipoise.errors import InputError
from equipoise.types import Floats

__all__ = ["LearntSurvivals"]


class LearntSurvivals:
    """What one rank has seen accepted.

    Parameters
    ----------
    drafts : int
        Draft positions of a request.
    first : float
        Chance of a draft before anything was seen.
    memory : float
        Weight of a request's step against that of the next one.
    weight : float
        Verified drafts that the share over all requests counts for beside a request's own.
    """

    def __init__(self, drafts: int, first: float = 0.7, memory: float = 0.9, weight: float = 2.0) -> None:
        for name, value, low, high in (
            ("first", first, 0, 1),
            ("memory", memory, 0, 1),
            ("weight", weight, 1e-9, 1e9),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InputError(f"{name} = {value!r}", fix=f"must be a number from {low:g} to {high:g}")
        self._drafts, self._memory, self._weight = drafts, memory, weight
        self._all = np.array([np.full(drafts, 8.0 * first), np.full(drafts, 8.0)])
        self._of: dict[Hashable, Floats] = {}

    def saw(self, name: Hashable, verified: int, accepted: int, offered: int | None = None) -> None:
        """Count what came of one request's step.

        Parameters
        ----------
        name : hashable
        verified, accepted : int
            Drafts that were verified, and how many of them were accepted, from the first on.
        offered : int, optional
            Drafts there were before a plan cut them; `verified` by default. Where all that a drafter offered was
            accepted and it offered fewer than it might, the next position counts as not accepted: it yields nothing
            either.
        """
        offered = verified if offered is None else offered
        if not 0 <= accepted <= verified <= offered <= self._drafts:
            raise InputError(
                f"{accepted} accepted of {verified} verified of {offered} offered drafts",
                fix=f"must not fall, from 0 to {self._drafts}",
            )
        tried = min(accepted + 1, verified)
        if accepted == verified == offered < self._drafts:
            tried = accepted + 1
        own = self._of.get(name)
        if own is None:
            own = self._of[name] = np.zeros((2, self._drafts))
        own *= self._memory
        own[0, :accepted] += 1.0
        own[1, :tried] += 1.0
        self._all *= 0.999
        self._all[0, :accepted] += 1.0
        self._all[1, :tried] += 1.0

    def forget(self, names: Sequence[Hashable]) -> None:
        """Drop requests that have left."""
        for name in names:
            self._of.pop(name, None)

    def survival(self, names: Sequence[Hashable]) -> Floats:
        """Survivals of some requests, float64[requests, drafts]; one not seen yet has those of the instance."""
        share = self._all[0] / np.maximum(self._all[1], 1e-9)
        none = np.zeros((2, self._drafts))
        counts = np.array([self._of.get(name, none) for name in names]).reshape(len(names), 2, self._drafts)
        chance = (counts[:, 0] + self._weight * share) / (counts[:, 1] + self._weight)
        return np.asarray(np.cumprod(np.minimum(chance, 1.0), axis=1))

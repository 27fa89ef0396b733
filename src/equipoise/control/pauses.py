"""Pausing requests and freezing admission: the second means against a straggler, with a bound on unfairness.

A paused request keeps its KV cache and sits out steps, so that its rank stops holding up the others. No request sits
out more than ``most_steps`` steps in a row, and after each pause it runs at least ``rest_steps``: whatever the load, it
is in at least ``rest_steps / (rest_steps + most_steps)`` of the steps. A rank takes no new requests for at most
``freeze_steps`` steps in a row, and then for one step it does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.control.evaluate import worth
from equipoise.control.layout import ONE
from equipoise.control.price import VerifyPrice
from equipoise.control.state import RankDrafts, Snapshot
from equipoise.errors import InputError
from equipoise.types import Ints

__all__ = ["Freezes", "Pauses"]


class Pauses:
    """Who sits out the next step.

    Parameters
    ----------
    most_steps : int
        Longest pause.
    rest_steps : int
        Steps a request runs after a pause before it may be paused again.
    most_share : float
        Share of an instance's requests that may be paused at a time.
    least_gain : float
        Pauses are made only if the step then yields so much more per unit of time, as a share.
    """

    def __init__(
        self, most_steps: int = 4, rest_steps: int = 12, most_share: float = 0.02, least_gain: float = 0.002
    ) -> None:
        for name, value, low in (("most_steps", most_steps, 0), ("rest_steps", rest_steps, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= 1_000_000:
                raise InputError(f"{name} = {value!r}", fix=f"must be a whole number from {low} to 1000000")
        for name, share in (("most_share", most_share), ("least_gain", least_gain)):
            if not 0 <= share <= 1:
                raise InputError(f"{name} = {share}", fix="must be from 0 to 1")
        self.most_steps, self.rest_steps = most_steps, rest_steps
        self.most_share, self.least_gain = most_share, least_gain
        self.longest_pause_steps = 0
        self._out: dict[int, int] = {}
        """Steps that each paused request has sat out, the coming one included."""
        self._rest: dict[int, int] = {}
        """Steps that others must still run."""

    @property
    def least_share(self) -> float:
        """Share of the steps that every request is in at least, over any span that begins or ends with its rest."""
        return self.rest_steps / (self.rest_steps + self.most_steps)

    def paused(self, numbers: ArrayLike) -> NDArray[np.bool_]:
        """Which of these requests sit out the coming step."""
        out = self._out
        return np.array([int(n) in out for n in np.asarray(numbers)], dtype=bool)

    def decide(self, snapshot: Snapshot, price: VerifyPrice, lengths: Ints, numbers: Ints) -> None:
        """Say who sits out the step after this one; ``numbers`` names the snapshot's requests."""
        for number in list(self._rest):
            self._rest[number] -= 1
            if self._rest[number] <= 0:
                del self._rest[number]
        for number in list(self._out):
            if self._out[number] >= self.most_steps:
                del self._out[number]
                self._rest[number] = self.rest_steps
            else:
                self._out[number] += 1
        if self.most_steps > 0:
            self._add(snapshot, price, lengths, numbers)
        self.longest_pause_steps = max(self.longest_pause_steps, *self._out.values(), 0)

    def forget(self, number: int) -> None:
        """A request has left."""
        self._out.pop(number, None)
        self._rest.pop(number, None)

    def _add(self, snapshot: Snapshot, price: VerifyPrice, lengths: Ints, numbers: Ints) -> None:
        """From the slowest rank, the request that costs most per token, again and again while it pays."""
        room = int(self.most_share * (len(numbers) + len(self._out))) - len(self._out)
        keep = np.ones(len(numbers), dtype=bool)
        rank_of = np.repeat(np.arange(snapshot.ranks), np.diff(snapshot.first))
        free = np.array([int(n) not in self._rest and int(n) not in self._out for n in numbers], dtype=bool)
        gains = (snapshot.survival.astype(np.float64) * ONE).astype(np.int64)
        tokens = 1 + np.where(np.arange(snapshot.drafts) < lengths[:, None], gains, 0).sum(axis=1) / ONE
        start = worth(snapshot, price, lengths)
        best, chosen, picked = start.rate * (1 + self.least_gain), 0, list[int]()
        work = start.work.copy()
        while len(picked) < room:
            slowest = int(np.argmax(work))
            own = np.flatnonzero(keep & free & (rank_of == slowest))
            if len(own) == 0:
                break
            at = own[np.argmax(snapshot.context_tokens[own] / tokens[own])]
            keep[at] = False
            picked.append(int(at))
            found = _without(snapshot, price, lengths, keep)
            work = found[1]
            if found[0] > best:
                best, chosen = found[0], len(picked)
        for at in picked[:chosen]:
            self._out[int(numbers[at])] = 1


def _without(snapshot: Snapshot, price: VerifyPrice, lengths: Ints, keep: NDArray[np.bool_]):  # type: ignore[no-untyped-def]
    first = np.concatenate([[0], np.cumsum(keep)])[snapshot.first]
    left = Snapshot(snapshot.context_tokens[keep], snapshot.survival[keep], first, snapshot.step)
    found = worth(left, price, lengths[keep])
    return found.rate, found.work


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
        work = worth(snapshot, price, np.zeros(len(snapshot.context_tokens), dtype=np.int64)).work
        heavy = work > work.mean() * (1 + self.above)
        frozen = heavy & (self._frozen < self.freeze_steps)
        self._frozen = np.where(frozen, self._frozen + 1, 0)
        return np.asarray(frozen)

"""Pausing requests: the second means against a straggler, with a bound on unfairness.

A paused request keeps its KV cache and sits out steps, so that its rank stops holding up the others. No request sits
out more than ``most_steps`` steps in a row, and after each pause it runs at least ``rest_steps``: whatever the load, it
is in at least ``rest_steps / (rest_steps + most_steps)`` of the steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.control.loads import Loads
from equipoise.control.price import VerifyPrice
from equipoise.control.state import Snapshot
from equipoise.errors import InputError
from equipoise.types import Ints

__all__ = ["Pauses"]


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
        return np.array([n in out for n in np.asarray(numbers).tolist()], dtype=bool)

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
        if room <= 0:
            return
        rank_of = np.repeat(np.arange(snapshot.ranks), np.diff(snapshot.first))
        free = np.array([n not in self._rest and n not in self._out for n in numbers.tolist()], dtype=bool)
        loads = Loads(snapshot, price, lengths)
        per_token = snapshot.context_tokens / loads.gain
        found = loads.worth()
        best, chosen, picked = found.rate * (1 + self.least_gain), 0, list[int]()
        while len(picked) < room:
            slowest = int(np.argmax(found.work))
            own = np.flatnonzero(free & (rank_of == slowest))
            if len(own) == 0:
                break
            at = int(own[np.argmax(per_token[own])])
            free[at] = False
            picked.append(at)
            loads.leave_out(at, slowest)
            found = loads.worth()
            if found.rate > best:
                best, chosen = found.rate, len(picked)
        for at in picked[:chosen]:
            self._out[int(numbers[at])] = 1

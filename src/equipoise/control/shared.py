"""The distributed form: each rank publishes some points of its curve, and every rank computes the same plan from them.

A rank's message fits into the all-gather that engines with data parallelism do before each step anyway. What is
computed from the gathered messages is arithmetic on whole numbers and IEEE doubles in one fixed order, so all ranks
come to the same bytes; each then fills its own requests up to the agreed deadline.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.control.kernel.room import Room
from equipoise.control.kernel.shared import agree_kernel, curve_kernel, fill_kernel
from equipoise.control.layout import ONE, drafts_of, new_room
from equipoise.control.messages import POINTS, message_bytes, pack_curve, unpack_curves
from equipoise.control.price import VerifyPrice
from equipoise.control.state import RankDrafts, Snapshot
from equipoise.control.verify import bad_survival, check_horizon
from equipoise.errors import InputError
from equipoise.types import Ints

__all__ = ["POINTS", "OwnCurve", "SharedPlan", "agree", "message_bytes"]

ROUNDS = 4
"""Times that the price of a token in experts is found anew from the rate it leads to."""
SHARES = (0.25, 0.5, 0.75)
"""Parts of that price tried besides, where some query tokens are free: the best plan may have just these."""


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """What all ranks agree on for one step.

    Parameters
    ----------
    observed_step, for_step : int
        The step the curves are of, and the later one the plan is for.
    cap_queries : int
        Query tokens no rank exceeds.
    deadline : float
        Price no rank exceeds in the groups that look at contexts.
    rate : float
        Expected tokens of the instance per unit of the cost.
    trim : float
        Survival up to which a draft does not pay for its experts and communication.
    """

    observed_step: int
    for_step: int
    cap_queries: int
    deadline: float
    rate: float
    trim: float

    def to_bytes(self) -> bytes:
        """The plan as 48 bytes, for ranks to compare."""
        steps = self.observed_step, self.for_step, self.cap_queries
        return struct.pack("<qqqddd", *steps, self.deadline, self.rate, self.trim)


class OwnCurve:
    """A rank's own drafts of one step: what it publishes, and what it does with the plan.

    Parameters
    ----------
    drafts : RankDrafts
    price : VerifyPrice
        The same on all ranks.

    Raises
    ------
    InputError
        As `allocate`.
    """

    def __init__(self, drafts: RankDrafts, price: VerifyPrice) -> None:
        self._snapshot, self._prices = Snapshot.of([drafts]), price.arrays
        self._room = new_room(self._snapshot, self._prices)
        self._trim = -1.0
        self._draw(0.0)

    def _draw(self, trim: float) -> None:
        if trim == self._trim:
            return
        wrong = curve_kernel(drafts_of(self._snapshot), self._prices, self._room, trim)
        if wrong >= 0:
            raise bad_survival(self._snapshot, int(wrong))
        self._trim = trim

    @property
    def requests(self) -> int:
        """Requests of the rank."""
        return len(self._snapshot.context_tokens)

    def message(self, points: int = POINTS) -> bytes:
        """What the rank publishes: so many points of its curve, the same number on all ranks."""
        self._draw(0.0)
        return pack_curve(self._room, self._snapshot.step, points)

    def lengths(self, plan: SharedPlan, step: int) -> Ints:
        """Verified drafts of each request of this rank at a step.

        Raises
        ------
        InputError
            A plan of another step than this curve, or a step the plan is not for.
        """
        if plan.observed_step != self._snapshot.step or step != plan.for_step:
            raise InputError(
                f"lengths for step {step} of a plan for step {plan.for_step}, observed at {plan.observed_step}; "
                f"this curve is of step {self._snapshot.step}",
                fix="verify lengths may depend on earlier steps only, and a plan goes with its own step's curves",
            )
        self._draw(plan.trim)
        drafts = drafts_of(self._snapshot)
        fill_kernel(drafts, self._prices, self._room, plan.trim, plan.cap_queries, plan.deadline)
        return self._room.trial.copy()


def agree(messages: Sequence[bytes], price: VerifyPrice, horizon: int = 1) -> SharedPlan:
    """Compute the plan from all ranks' messages, in rank order; the same bytes on every rank.

    Parameters
    ----------
    messages : sequence of bytes
        One a rank.
    price : VerifyPrice
    horizon : int
        Steps from the curves' step to the one the plan is for, at least 1.

    Raises
    ------
    InputError
        A message that is none, or ranks of different steps.
    """
    check_horizon(horizon)
    step, room = unpack_curves(messages, price)
    out, best = np.zeros(3), (0, 0.0, -1.0, 0.0)

    def scan(trim: float) -> None:
        nonlocal best
        agree_kernel(price.arrays, _trimmed(room, trim), out)
        if out[2] > best[2]:
            best = int(out[0]), float(out[1]), float(out[2]), trim

    def full() -> float:
        return min(1.0, best[2] / ONE * price.ep_per_query / len(messages))

    scan(0.0)
    if price.ep_per_query > 0:
        tried = 0.0
        for _ in range(ROUNDS):
            if full() <= tried * 1.01:
                break
            tried = full()
            scan(tried)
        if price.ep_free_queries > 0:
            for share in SHARES:
                scan(share * tried)
    cap, deadline, rate, trim = best
    return SharedPlan(step, step + horizon, cap, deadline, rate / ONE, trim)


def _trimmed(room: Room, trim: float) -> Room:
    """The curves without the stretches whose drafts survive more rarely than that, on average."""
    if trim == 0.0:
        return room
    more, won = np.diff(room.taken, axis=1), np.diff(room.gain, axis=1)
    kept = won > trim * ONE * more
    found = room._replace(taken=room.taken.copy(), gain=room.gain.copy(), work=room.work.copy())
    np.cumsum(np.where(kept, more, 0), axis=1, out=found.taken[:, 1:])
    np.cumsum(np.where(kept, won, 0), axis=1, out=found.gain[:, 1:])
    work = np.cumsum(np.where(kept, np.diff(room.work, axis=2), 0.0), axis=2)
    found.work[:, :, 1:] = room.work[:, :, :1] + work
    return found

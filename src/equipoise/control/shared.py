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

from equipoise.control.kernel_shared import agree_kernel, curve_kernel, fill_kernel
from equipoise.control.layout import ONE, Room, drafts_of, new_room
from equipoise.control.price import VerifyPrice, VerifyPrices
from equipoise.control.state import RankDrafts, Snapshot
from equipoise.control.verify import bad_survival, check_horizon
from equipoise.errors import InputError
from equipoise.types import Floats, Ints

__all__ = ["POINTS", "OwnCurve", "SharedPlan", "agree", "message_bytes"]

POINTS = 16
"""Points of a curve that a rank publishes."""

HEADER = struct.Struct("<4sqiHH")
"""Magic, step, requests, points, groups that look at contexts."""
MAGIC = b"EQV1"
MOST_REQUESTS = 2**20


def message_bytes(price: VerifyPrice, points: int = POINTS) -> int:
    """Size of a rank's message: a header of 20 bytes, then 12 bytes and 8 a group for each point."""
    return HEADER.size + points * (12 + 8 * (len(price.arrays.tail) - 1))


def _points(groups: int) -> np.dtype[np.void]:
    return np.dtype([("taken", "<i4"), ("gain", "<i8"), ("work", "<f8", (groups,))])


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
    next_trim : float
        Survival from which a draft of the next curve pays for its experts and communication.
    """

    observed_step: int
    for_step: int
    cap_queries: int
    deadline: float
    rate: float
    next_trim: float

    def to_bytes(self) -> bytes:
        """The plan as 48 bytes, for ranks to compare."""
        steps = self.observed_step, self.for_step, self.cap_queries
        return struct.pack("<qqqddd", *steps, self.deadline, self.rate, self.next_trim)


class OwnCurve:
    """A rank's own drafts of one step: what it publishes, and what it does with the plan.

    Parameters
    ----------
    drafts : RankDrafts
    price : VerifyPrice
        The same on all ranks.
    previous : SharedPlan, optional
        The plan before this: what a draft must yield to pay for its experts follows from it. All ranks must give the
        same, so none at the first step.

    Raises
    ------
    InputError
        As `allocate`.
    """

    def __init__(self, drafts: RankDrafts, price: VerifyPrice, previous: SharedPlan | None = None) -> None:
        self._snapshot, self._price = Snapshot.of([drafts]), price
        self._room = new_room(self._snapshot, price.arrays)
        self._trim = 0.0 if previous is None else previous.next_trim
        wrong = curve_kernel(drafts_of(self._snapshot), price.arrays, self._room, self._trim)
        if wrong >= 0:
            raise bad_survival(self._snapshot, int(wrong))

    def message(self, points: int = POINTS) -> bytes:
        """What the rank publishes.

        The points are spread evenly over the verified drafts, the first and the last among them.
        """
        if not 2 <= points <= 1024:
            raise InputError(f"points = {points}", fix="must be from 2 to 1024")
        room, last = self._room, int(self._room.points[0])
        taken = room.taken[0, : last + 1]
        wanted = np.linspace(0, taken[-1], points)
        at = np.minimum(np.searchsorted(taken, wanted), last)
        groups = len(self._price.arrays.tail) - 1
        rows = np.zeros(points, dtype=_points(groups))
        rows["taken"], rows["gain"] = taken[at], room.gain[0, at]
        rows["work"] = room.work[1:, 0, at].T
        requests = int(room.batch[0])
        return HEADER.pack(MAGIC, self._snapshot.step, requests, points, groups) + rows.tobytes()

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
        drafts, prices = drafts_of(self._snapshot), self._price.arrays
        fill_kernel(drafts, prices, self._room, self._trim, plan.cap_queries, plan.deadline)
        return self._room.trial.copy()


def agree(
    messages: Sequence[bytes], price: VerifyPrice, horizon: int = 1, previous: SharedPlan | None = None
) -> SharedPlan:
    """Compute the plan from all ranks' messages, in rank order; the same bytes on every rank.

    Parameters
    ----------
    messages : sequence of bytes
        One a rank.
    price : VerifyPrice
    horizon : int
        Steps from the curves' step to the one the plan is for, at least 1.
    previous : SharedPlan, optional
        The plan before this, as in `OwnCurve`.

    Raises
    ------
    InputError
        A message that is none, or ranks of different steps.
    """
    check_horizon(horizon)
    if not messages:
        raise InputError("no message", fix="give one a rank")
    prices = price.arrays
    read = [_read(message, len(prices.tail) - 1, rank) for rank, message in enumerate(messages)]
    steps = {step for step, _, _ in read}
    if len(steps) > 1:
        raise InputError(
            f"messages of the steps {', '.join(map(str, sorted(steps)))}", fix="gather those of one step"
        )
    room = _gathered(prices, [(requests, rows) for _, requests, rows in read])
    out = np.zeros(3)
    agree_kernel(prices, room, out)
    step, rate = steps.pop(), float(out[2]) / ONE
    trim = _next_trim(price, room, rate, out, 0.0 if previous is None else previous.next_trim)
    return SharedPlan(step, step + horizon, int(out[0]), float(out[1]), rate, trim)


def _next_trim(price: VerifyPrice, room: Room, rate: float, out: Floats, last: float) -> float:
    """What a token costs in experts at this rate; near the query tokens that are free there, a share of it.

    Trimming takes the instance below them and not trimming above: the share moves in quarters and settles between.
    """
    ranks = len(room.batch)
    full = min(1.0, rate * price.ep_per_query / ranks)
    inside = (room.taken <= (out[0] - room.batch)[:, None]) & (room.work[0] <= out[1])
    taken = np.where(inside, room.taken, 0).max(axis=1)
    if price.ep_free_queries == 0:
        return full
    paid = (room.batch + taken).mean() > price.ep_free_queries
    return min(full, last + full / 4) if paid else max(0.0, last - full / 4)


def _read(
    message: bytes, groups: int, rank: int
) -> tuple[int, int, np.ndarray[tuple[int], np.dtype[np.void]]]:
    def bad(what: str) -> InputError:
        return InputError(
            f"the message of rank {rank} {what}", fix="gather what OwnCurve.message() made, unchanged"
        )

    if len(message) < HEADER.size or message[:4] != MAGIC:
        raise bad("is none")
    _, step, requests, points, theirs = HEADER.unpack_from(message)
    kind = _points(groups)
    if theirs != groups or len(message) != HEADER.size + points * kind.itemsize or points < 2:
        raise bad(f"has {len(message)} bytes for {points} points of {theirs} groups")
    rows = np.frombuffer(message, dtype=kind, offset=HEADER.size)
    falls = (np.diff(rows["taken"]) < 0).any() or (np.diff(rows["gain"]) < 0).any()
    work = rows["work"]
    if (
        falls
        or rows["taken"][0] != 0
        or rows["gain"][0] != 0
        or not np.isfinite(work).all()
        or (work < 0).any()
    ):
        raise bad("holds no curve")
    if not (0 <= requests <= MOST_REQUESTS and rows["taken"][-1] <= MOST_REQUESTS * 64 and step >= 0):
        raise bad(f"holds {requests} requests and {rows['taken'][-1]} drafts")
    return step, requests, rows


def _gathered(
    prices: VerifyPrices, curves: Sequence[tuple[int, np.ndarray[tuple[int], np.dtype[np.void]]]]
) -> Room:
    """All curves in one room."""
    most = max(len(rows) for _, rows in curves)
    first = np.zeros(len(curves) + 1, dtype=np.int64)
    room = new_room(Snapshot(np.zeros(0, np.int64), np.zeros((0, 1), np.float32), first), prices)
    taken = np.zeros((len(curves), most), dtype=np.int64)
    gain = np.zeros_like(taken)
    work = np.zeros((len(prices.tail), len(curves), most))
    for r, (requests, rows) in enumerate(curves):
        n = len(rows)
        room.batch[r], room.points[r] = requests, n - 1
        taken[r, :n], gain[r, :n] = rows["taken"], rows["gain"]
        work[1:, r, :n] = rows["work"].T
        work[0, r, :n] = rows["work"].sum(axis=1)
    return room._replace(taken=taken, gain=gain, work=work)

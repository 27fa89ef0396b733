"""What ranks publish of their curves, as bytes: a header, then some points of (drafts, yield, time of each group)."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from equipoise.control.kernel.room import Room
from equipoise.control.layout import empty_room
from equipoise.control.price import VerifyPrice
from equipoise.errors import InputError

__all__ = ["POINTS", "message_bytes", "pack_curve", "unpack_curves"]

POINTS = 16
"""Points of a curve that a rank publishes."""

HEADER = struct.Struct("<4sqiHH")
"""Magic, step, requests, points, groups that look at contexts."""
HEAD = [("magic", "S4"), ("step", "<i8"), ("requests", "<i4"), ("points", "<u2"), ("groups", "<u2")]
MAGIC = b"EQV1"
MOST_REQUESTS = 2**20


def message_bytes(price: VerifyPrice, points: int = POINTS) -> int:
    """Size of a rank's message: a header of 20 bytes, then 12 bytes and 8 a group for each point."""
    return HEADER.size + points * (12 + 8 * (len(price.arrays.tail) - 1))


def _point(groups: int) -> np.dtype[np.void]:
    return np.dtype([("taken", "<i4"), ("gain", "<i8"), ("work", "<f8", (groups,))])


def pack_curve(room: Room, step: int, points: int = POINTS) -> bytes:
    """The first rank's curve in a room.

    The points are spread evenly over the verified drafts, the first and the last among them.
    """
    if not 2 <= points <= 1024:
        raise InputError(f"points = {points}", fix="must be from 2 to 1024")
    last, groups = int(room.points[0]), len(room.work) - 1
    taken = room.taken[0, : last + 1]
    at = np.minimum(np.searchsorted(taken, np.linspace(0, taken[-1], points)), last)
    rows = np.zeros(points, dtype=_point(groups))
    rows["taken"], rows["gain"] = taken[at], room.gain[0, at]
    rows["work"] = room.work[1:, 0, at].T
    return HEADER.pack(MAGIC, step, int(room.batch[0]), points, groups) + rows.tobytes()


def unpack_curves(messages: Sequence[bytes], price: VerifyPrice) -> tuple[int, Room]:
    """The step of some curves and a room with all of them, one a rank.

    Raises
    ------
    InputError
        A message that is none, or messages of different steps or sizes.
    """
    if not messages:
        raise InputError("no message", fix="give one a rank")
    groups, size = len(price.arrays.tail) - 1, len(messages[0])
    points, left = divmod(size - HEADER.size, _point(groups).itemsize)
    kind = np.dtype([("head", HEAD), ("rows", _point(groups), (max(points, 1),))])
    same = np.array([len(message) == size for message in messages])
    if points < 2 or left or not same.all():
        rank = 0 if points < 2 or left else int(np.argmin(same))
        raise _bad(rank, f"has {len(messages[rank])} bytes for a price of {groups} groups")
    whole = np.frombuffer(b"".join(messages), dtype=kind)
    head, rows = whole["head"], whole["rows"]
    taken, gain = rows["taken"].astype(np.int64), rows["gain"].astype(np.int64)
    work = np.empty((1 + groups, len(messages), points))
    work[1:] = np.moveaxis(rows["work"], 2, 0)
    ours = (head["magic"] == MAGIC) & (head["points"] == points) & (head["groups"] == groups)
    with np.errstate(over="ignore", invalid="ignore"):
        work[0] = work[1:].sum(axis=0)
        curve = (taken[:, 0] == 0) & (gain[:, 0] == 0)
        curve &= (taken[:, 1:] >= taken[:, :-1]).all(axis=1) & (gain[:, 1:] >= gain[:, :-1]).all(axis=1)
        curve &= (np.isfinite(work) & (work >= 0)).all(axis=(0, 2))
    most = MOST_REQUESTS * 64
    bounded = (head["requests"] >= 0) & (head["requests"] <= MOST_REQUESTS) & (head["step"] >= 0)
    bounded &= (taken[:, -1] <= most) & (gain[:, -1] <= most << 22)
    for fine, what in (
        (ours, "is none"),
        (curve, "holds no curve"),
        (bounded, "holds numbers out of bounds"),
    ):
        if not fine.all():
            raise _bad(int(np.argmin(fine)), what)
    steps = np.unique(head["step"]).tolist()
    if len(steps) > 1:
        raise InputError(
            f"messages of the steps {', '.join(map(str, steps))}", fix="gather those of one step"
        )
    room = empty_room(len(messages), price.arrays)
    room.batch[:], room.points[:] = head["requests"], points - 1
    return steps[0], room._replace(taken=taken, gain=gain, work=work)


def _bad(rank: int, what: str) -> InputError:
    return InputError(
        f"the message of rank {rank} {what}", fix="gather what OwnCurve.message() made, unchanged"
    )

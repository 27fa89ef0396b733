"""The best plan by trying them all: for small cases, and to measure the fast method against."""

from __future__ import annotations

from equipoise.control.evaluate import worth
from equipoise.control.kernel.central import enumerate_kernel
from equipoise.control.layout import drafts_of, new_room
from equipoise.control.price import VerifyPrice
from equipoise.control.state import Snapshot
from equipoise.errors import InputError
from equipoise.types import Ints

__all__ = ["MOST_PLANS", "best_by_enumeration"]

MOST_PLANS = 2_000_000


def best_by_enumeration(snapshot: Snapshot, price: VerifyPrice) -> tuple[Ints, float]:
    """Every combination of verify lengths; the first best one, and its expected tokens per unit of time.

    Parameters
    ----------
    snapshot : Snapshot
    price : VerifyPrice

    Returns
    -------
    lengths : int64[requests]
    rate : float

    Raises
    ------
    InputError
        More than 2,000,000 combinations.
    """
    requests = len(snapshot.context_tokens)
    plans = (snapshot.drafts + 1) ** requests
    if plans > MOST_PLANS:
        raise InputError(f"{plans} combinations", fix=f"at most {MOST_PLANS}: fewer requests or drafts")
    room = new_room(snapshot, price.arrays)
    enumerate_kernel(drafts_of(snapshot), price.arrays, room)
    return room.lengths, worth(snapshot, price, room.lengths).rate

"""`allocate`: how many drafts each request of an instance should verify at the next step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.control.evaluate import worth
from equipoise.control.kernel.central import allocate_kernel
from equipoise.control.layout import ONE, drafts_of, new_room
from equipoise.control.plan import Plan
from equipoise.control.price import VerifyPrice
from equipoise.control.state import RankDrafts, Snapshot
from equipoise.errors import InputError

__all__ = ["MOST_HORIZON", "allocate", "allocate_verify", "check_horizon", "snapshot_of"]

MOST_HORIZON = 64


def allocate(
    ranks: Snapshot | Sequence[RankDrafts],
    price: VerifyPrice,
    horizon: int = 1,
    *,
    previous: Plan | None = None,
) -> Plan:
    """Choose verify lengths so that an instance's expected tokens per unit of step time are greatest.

    The step waits for its slowest rank, so a rank with little context verifies more until it takes as long as the
    heaviest one, and that one verifies less than it would alone::

        maximise  sum over ranks of expected tokens(r) / (constant + sum of the slowest ranks' times + EP(mean queries))

    Parameters
    ----------
    ranks : Snapshot or sequence of RankDrafts
        The instance as it stood at one step.
    price : VerifyPrice
    horizon : int
        Steps from that one to the one the plan is for: at least 1, since a plan may not depend on the drafts it is
        about. Engines that schedule ahead need 2.
    previous : Plan, optional
        The instance's plan before this; saves a pass where experts and communication have a price.

    Returns
    -------
    Plan
        Never worth less than one length for all requests, if the survivals and prices are right.

    Raises
    ------
    InputError
        A horizon below 1, or survivals that are no probabilities or rise along a request.

    Examples
    --------
    The first rank has no time to spare, the second one has:

    >>> from equipoise.cost import load
    >>> heavy = RankDrafts([900_000, 900_000], [[0.9, 0.5], [0.9, 0.5]], step=7)
    >>> light = RankDrafts([1_000, 1_000], [[0.9, 0.5], [0.9, 0.5]], step=7)
    >>> plan = allocate([heavy, light], VerifyPrice(load("v2")))
    >>> plan.lengths(step=8).tolist()
    [0, 0, 2, 2]
    """
    snapshot = snapshot_of(ranks)
    check_horizon(horizon)
    prices = price.arrays
    room, out = new_room(snapshot, prices), np.zeros(5)
    last = 0.0 if previous is None else previous.rate
    wrong = allocate_kernel(drafts_of(snapshot), prices, room, last, out)
    if wrong >= 0:
        raise bad_survival(snapshot, int(wrong))
    cap, deadline, trim, rate, tokens = out.tolist()
    return Plan(
        observed_step=snapshot.step,
        for_step=snapshot.step + horizon,
        tokens=tokens / ONE,
        price=tokens / rate if tokens > 0 else worth(snapshot, price, room.lengths).price,
        cap_queries=int(cap),
        deadline=deadline,
        trim=trim,
        _lengths=room.lengths,
        _first=snapshot.first,
    )


allocate_verify = allocate


def snapshot_of(ranks: Snapshot | Sequence[RankDrafts]) -> Snapshot:
    """The ranks as a snapshot."""
    return ranks if isinstance(ranks, Snapshot) else Snapshot.of(ranks)


def check_horizon(horizon: int) -> None:
    """Steps to the one a plan is for."""
    if (
        isinstance(horizon, bool)
        or not isinstance(horizon, (int, np.integer))
        or not 1 <= horizon <= MOST_HORIZON
    ):
        raise InputError(
            f"horizon = {horizon!r}",
            fix=f"must be a whole number from 1 to {MOST_HORIZON}: a plan may not depend on the drafts it is about",
        )


def bad_survival(snapshot: Snapshot, row: int) -> InputError:
    """What to say of a row that is no survival."""
    return InputError(
        f"survival[{row}] = {[round(float(s), 6) for s in snapshot.survival[row]]}",
        fix="give probabilities from 0 to 1 that never rise along a request: draft 2 counts only where draft 1 did",
    )

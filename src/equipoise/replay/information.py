"""`Information`: who decides, and on what picture of the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from equipoise.errors import InputError
from equipoise.replay.pool import whole_number

__all__ = ["Information", "Knows", "Split"]

Knows = Literal["exact", "ledger", "extrapolated", "acknowledged", "erased"]
Split = Literal["request", "instance"]
MOST_REPLICAS = 64
MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Information:
    """Router replicas and what they know.

    Every instance reports after each `period_steps` steps, and when it falls idle; a report comes in `delay_steps`
    steps of that instance and `delay_s` seconds later. A conversation belongs to one replica; requests without one go
    to the replicas in turn.

    Parameters
    ----------
    knows : {"exact", "ledger", "extrapolated", "acknowledged", "erased"}
        ``exact``: the true state at any time. ``ledger``: own requests exactly, those of other replicas by reports.
        ``extrapolated``: the same without seeing tokens: own requests are taken to grow at the pace of those that
        finished last.
        ``acknowledged``: reports, and own dispatches that they have not seen. ``erased``: reports alone, and own
        dispatches until the next report comes in.
    replicas : int
    period_steps : int
    delay_steps : int
    delay_s : float
    period_s : float
        If above 0, an instance reports at the first step end at or after each multiple of it, and ``period_steps`` is
        not looked at.
    split : {"request", "instance"}
        What replicas share among themselves. ``request``: each places its own requests on any rank. ``instance``: each
        owns some instances; any replica chooses the instance, on its own picture, and the owner the rank, on the exact
        one.

    Raises
    ------
    InputError
        A number out of bounds.
    """

    knows: Knows = "exact"
    replicas: int = 1
    period_steps: int = 1
    delay_steps: int = 0
    delay_s: float = 0.0
    period_s: float = 0.0
    split: Split = "request"

    def __post_init__(self) -> None:
        if self.knows not in get_args(Knows):
            raise InputError(f"knows = {self.knows!r}", fix=f"use one of {', '.join(get_args(Knows))}")
        whole_number("replicas", self.replicas, 1, MOST_REPLICAS)
        whole_number("period_steps", self.period_steps, 1, MOST_STEPS)
        whole_number("delay_steps", self.delay_steps, 0, MOST_STEPS)
        for name in ("delay_s", "period_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} = {value}", fix="must be a finite number, 0 or more")
        if self.split not in get_args(Split):
            raise InputError(f"split = {self.split!r}", fix=f"use one of {', '.join(get_args(Split))}")
        late = (self.period_steps, self.delay_steps, self.delay_s, self.period_s)
        if self.knows == "exact" and late != (1, 0, 0.0, 0.0):
            raise InputError(
                "reports that are late, of a router that knows the true state",
                where="knows = 'exact'",
                fix="leave period and delay out, or use 'ledger', 'acknowledged' or 'erased'",
            )

    @property
    def plain(self) -> bool:
        """One router that knows all: what the plain kernel does."""
        return self.knows == "exact" and self.replicas == 1 and self.split == "request"

"""`Information`: who decides, and on what picture of the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from equipoise.errors import InputError
from equipoise.replay.layout import ACKNOWLEDGED, ERASED, EXACT, LEDGER
from equipoise.replay.pool import whole_number

__all__ = ["Information", "Knows"]

Knows = Literal["exact", "ledger", "acknowledged", "erased"]
CODES = {"exact": EXACT, "ledger": LEDGER, "acknowledged": ACKNOWLEDGED, "erased": ERASED}
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
    knows : {"exact", "ledger", "acknowledged", "erased"}
        ``exact``: the true state at any time. ``ledger``: own requests exactly, those of other replicas by reports.
        ``acknowledged``: reports, and own dispatches that they have not seen. ``erased``: reports alone, and own
        dispatches until the next report comes in.
    replicas : int
    period_steps : int
    delay_steps : int
    delay_s : float

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

    def __post_init__(self) -> None:
        if self.knows not in get_args(Knows):
            raise InputError(f"knows = {self.knows!r}", fix=f"use one of {', '.join(get_args(Knows))}")
        whole_number("replicas", self.replicas, 1, MOST_REPLICAS)
        whole_number("period_steps", self.period_steps, 1, MOST_STEPS)
        whole_number("delay_steps", self.delay_steps, 0, MOST_STEPS)
        if not (math.isfinite(self.delay_s) and self.delay_s >= 0):
            raise InputError(f"delay_s = {self.delay_s}", fix="must be a finite number, 0 or more")

        if self.knows == "exact" and (self.period_steps, self.delay_steps, self.delay_s) != (1, 0, 0.0):
            raise InputError(
                "reports that are late, of a router that knows the true state",
                where="knows = 'exact'",
                fix="leave period and delay out, or use 'ledger', 'acknowledged' or 'erased'",
            )

    @property
    def plain(self) -> bool:
        """One router that knows all: what the plain kernel does."""
        return self.knows == "exact" and self.replicas == 1

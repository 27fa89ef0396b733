"""`Alarm`: wakes somebody up when something is due, and looks once a turn of the loop how soon that is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Alarm"]

SHORTEST_S = 0.002
"""Between two alarms: who is due now is not asked in a circle."""


class Alarm:
    """A timer on the running loop.

    Parameters
    ----------
    due : callable
        When something is due, in seconds of `now_s`; none: never.
    now_s : callable
    ring : callable
        Called then; it sets the alarm again.
    on : bool
        Off, it never rings.
    """

    def __init__(
        self,
        due: Callable[[], float | None],
        now_s: Callable[[], float],
        ring: Callable[[], None],
        on: bool = True,
    ) -> None:
        self._due, self._now_s, self._ring, self._on = due, now_s, ring, on
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = float("inf")
        self._looking = False

    @property
    def is_set(self) -> bool:
        """Whether it will ring."""
        return self._timer is not None

    def set_soon(self) -> None:
        """Look at the time once in this turn, however much happens in it."""
        if self._on and not self._looking:
            self._looking = True
            self._loop.call_soon(self._look)

    def close(self) -> None:
        """Ring no more."""
        self._on = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._looking = False
        if not self._on:
            return
        due_s = self._due()
        if self._timer is not None:
            if due_s is not None and self._due_s <= due_s:
                return  # it rings before, and looks again
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._due_s = due_s
            self._timer = self._loop.call_later(max(due_s - self._now_s(), SHORTEST_S), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._ring()

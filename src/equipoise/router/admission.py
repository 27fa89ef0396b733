"""How fast requests leave, and so when a client that is turned away should come back."""

from __future__ import annotations

import math

from equipoise.router.settings import Settings

__all__ = ["ReleaseRate"]

MEMORY_S = 10.0
"""Time over which the rate is averaged."""


class ReleaseRate:
    """Requests released a second: a sum that fades, divided by the time it stands for.

    Parameters
    ----------
    now_s : float
    """

    __slots__ = ("_began_s", "_last_s", "_sum")

    def __init__(self, now_s: float) -> None:
        self._began_s = self._last_s = now_s
        self._sum = 0.0

    def note(self, now_s: float) -> None:
        """A request has been released."""
        if now_s > self._last_s:
            self._sum *= math.exp((self._last_s - now_s) / MEMORY_S)
            self._last_s = now_s
        self._sum += 1.0

    def per_s(self, now_s: float) -> float:
        """The rate; 0 where nothing was released for long."""
        since_s = max(now_s - self._began_s, 1e-3)
        faded = self._sum * math.exp(min(self._last_s - now_s, 0.0) / MEMORY_S)
        return faded / (MEMORY_S * -math.expm1(-since_s / MEMORY_S))

    def retry_after_s(self, now_s: float, waiting: int, settings: Settings) -> float:
        """How long until those who wait will have gone, in whole seconds within the bounds set."""
        rate = self.per_s(now_s)
        wait_s = (waiting + 1) / rate if rate > 1e-9 else settings.retry_after_max_s
        return float(math.ceil(min(max(wait_s, settings.retry_after_min_s), settings.retry_after_max_s)))

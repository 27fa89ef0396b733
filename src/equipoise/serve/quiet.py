"""Logs that do not flood: a line a kind of failure and second, with the number of those left out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["QuietLog"]

MOST_KINDS = 256


class QuietLog:
    """Says each kind of thing at most once in a while.

    Parameters
    ----------
    log : logging.Logger
    every_s : float
    clock : callable
    """

    def __init__(
        self, log: logging.Logger, every_s: float = 1.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._every_s, self._clock = log, every_s, clock
        self._said: dict[str, tuple[float, int]] = {}

    def __call__(self, kind: str, text: str, level: int = logging.WARNING) -> bool:
        """Say it, unless its kind was said less than `every_s` ago; whether it was said."""
        now_s = self._clock()
        if kind not in self._said and len(self._said) >= MOST_KINDS:
            kind = "other"
        last_s, left_out = self._said.get(kind, (float("-inf"), 0))
        if now_s - last_s < self._every_s:
            self._said[kind] = (last_s, left_out + 1)
            return False
        self._said[kind] = (now_s, 0)
        # Whoever chose some of the text has not chosen how many lines it takes.
        plain = " ".join(text.split())[:400]
        self._log.log(level, "%s%s", plain, f" ({left_out} more before)" if left_out else "")
        return True

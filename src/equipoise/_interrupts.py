"""Signals that end a command, as exceptions: SIGTERM and SIGHUP clean up as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Stopped", "held_back", "stop_on_signals"]

ENDINGS = {"SIGTERM": "terminated", "SIGHUP": "hung up"}
"""Signals whose default is to end the process on the spot, leaving temporary files behind."""


class Stopped(KeyboardInterrupt):
    """Someone asked the process to end; whatever answers Ctrl-C answers this.

    Parameters
    ----------
    number : int
        The signal.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(ENDINGS.get(signal.Signals(number).name, "stopped"))

    @property
    def exit_code(self) -> int:
        """128 and the number of the signal, as shells report it: 143 for SIGTERM."""
        return 128 + self.number


def stop_on_signals() -> None:
    """From now on SIGTERM and SIGHUP raise `Stopped` in the main thread.

    A signal that is already answered or ignored stays so: ``nohup`` ignores SIGHUP and means it.
    """
    for name in ENDINGS:
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


@contextmanager
def held_back() -> Iterator[None]:
    """Keep Ctrl-C, SIGTERM and SIGHUP waiting until the block is done, for steps that belong together.

    Masking signals is no help here: another thread would take them and Python would still answer in this one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # exceptions of signals only ever rise in the main thread
        return
    came: list[tuple[int, FrameType | None]] = []
    before: dict[int, Any] = {}
    for name in ("SIGINT", *ENDINGS):
        number = getattr(signal, name, None)
        if number is not None and callable(signal.getsignal(number)):
            before[number] = signal.signal(number, lambda *what: came.append(what))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        before[came[0][0]](*came[0])

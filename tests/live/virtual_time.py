"""An event loop whose time passes only while nothing happens: what a load generator measures there is exact.

Sockets are real and on the loopback, where bytes written can be read at once, so nothing ever has to be waited for. A
turn of the loop costs `TURN_S`, so that loops which wait turn by turn come to an end.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

TURN_S = 20e-6


class _Selector(selectors.DefaultSelector):
    now_s = 1000.0
    threads = 0

    def select(self, timeout: float | None = None) -> Any:
        """Events that are there; else time passes."""
        _Selector.now_s += TURN_S
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if timeout is None or _Selector.threads:
            return super().select(
                0.05 if timeout is None else min(timeout, 0.001)
            )  # another thread is to be waited for
        _Selector.now_s += timeout
        return events


def run_virtually(main: Coroutine[Any, Any, T], monkeypatch: pytest.MonkeyPatch) -> T:
    """Run to the end, on a clock that starts at 1,000 s."""
    _Selector.now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: _Selector.now_s)
    original = asyncio.to_thread

    async def to_thread(*what: Any) -> Any:
        _Selector.threads += 1
        try:
            return await original(*what)
        finally:
            _Selector.threads -= 1

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    loop = asyncio.SelectorEventLoop(_Selector())
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        monkeypatch.undo()

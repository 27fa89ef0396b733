"""When requests are sent: at the times of the trace, so many at once, or turn by turn.

Times are those of the schedule, not of the sending: a request that could not be sent in time, because the router
queued it or this process was busy, has waited since it was due (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from equipoise.live.plan import Mode
from equipoise.live.sender import Prepared
from equipoise.traces.trace import Trace

__all__ = ["Load", "sleep_until"]

SPIN_S = 0.0012
"""Timers of event loops go by milliseconds; the rest is waited out turn by turn."""

Prepare = Callable[[int], Prepared]
Send = Callable[[Prepared, float], Awaitable[Any]]


async def sleep_until(at_s: float) -> None:
    """Wait until a time of `time.monotonic`, to some hundredths of a millisecond."""
    while (left_s := at_s - time.monotonic()) > 0:
        await asyncio.sleep(left_s - SPIN_S if left_s > SPIN_S else 0)


class Load:
    """Sends the requests of a trace.

    Parameters
    ----------
    trace : Trace
    mode : {"open", "closed", "sessions"}
    scale : float
        Factor on arrival and think times.
    concurrency : int, optional
        Of ``closed``.
    prepare : callable
        Makes a request of a row; called before its time.
    send : callable
        Carries it to its end; given when it was due.
    start_s : float
        Beginning of the run on `time.monotonic`.

    Attributes
    ----------
    late_s : list of float
        How late each request was handed on, in seconds: what this process itself is to blame for.
    """

    def __init__(
        self,
        trace: Trace,
        mode: Mode,
        *,
        scale: float,
        concurrency: int | None,
        prepare: Prepare,
        send: Send,
        start_s: float,
    ) -> None:
        self._trace, self._mode, self._scale, self._concurrency = trace, mode, scale, concurrency
        self._prepare, self._send, self.start_s = prepare, send, start_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self.late_s: list[float] = []

    async def run(self) -> None:
        """Send all of them and wait for their ends; cancelled, what is under way is cut off."""
        run = {"open": self._open, "closed": self._closed, "sessions": self._sessions}[self._mode]
        try:
            await run()
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # a bug of ours is not to be lost
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self, job: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)

    def _now_s(self) -> float:
        return time.monotonic() - self.start_s

    async def _open(self) -> None:
        begin_s = float(self._trace.arrival_s[0])
        for row, arrival_s in enumerate(self._trace.arrival_s.tolist()):
            due_s = (arrival_s - begin_s) * self._scale
            prepared = self._prepare(row)
            await self._due(due_s)
            self._start(self._send(prepared, due_s))

    async def _closed(self) -> None:
        rows = iter(range(len(self._trace)))

        async def slot() -> None:
            for row in rows:  # shared: each takes the next one
                prepared = self._prepare(row)
                await self._send(prepared, self._now_s())

        for _ in range(min(self._concurrency or 1, len(self._trace))):
            self._start(slot())

    async def _sessions(self) -> None:
        trace, scale = self._trace, self._scale
        begin_s = float(trace.arrival_s[0])
        turns: dict[int, list[int]] = {}
        for row in np.lexsort((trace.turn, trace.session)).tolist():
            session = int(trace.session[row])
            turns.setdefault(session if session >= 0 else -1 - row, []).append(row)

        async def talk(rows: list[int], first: Prepared, due_s: float) -> None:
            await self._send(first, due_s)
            for row in rows:
                due_s = self._now_s() + float(trace.think_s[row]) * scale
                prepared = self._prepare(row)
                await sleep_until(self.start_s + due_s)
                await self._send(prepared, due_s)

        starts = sorted((float(trace.arrival_s[rows[0]]), rows) for rows in turns.values())
        for arrival_s, rows in starts:
            due_s = (arrival_s - begin_s) * scale
            first = self._prepare(rows[0])
            await self._due(due_s)
            self._start(talk(rows[1:], first, due_s))

    async def _due(self, due_s: float) -> None:
        await sleep_until(self.start_s + due_s)
        self.late_s.append(self._now_s() - due_s)

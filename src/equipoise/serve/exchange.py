"""One request under way, and all the ways it can be stopped: by a timer, by the router, by a shutdown.

Whoever stops it gives a reason and cancels its task; the task finds the reason and answers for it. A task that is
cancelled without one has lost its client.
"""

from __future__ import annotations

import asyncio

import aiohttp

__all__ = ["Exchange", "Exchanges", "Failure", "failure"]

NEVER = float("inf")


class Failure(Exception):  # noqa: N818  it is an outcome, most often nobody's error
    """An exchange that ended otherwise than well.

    Parameters
    ----------
    status : int
        What the client is told, if its answer has not begun.
    reason : str
        The code of it.
    message : str
        For a person; it names no address and no header.
    retry : bool
        Whether the engine has surely not begun to answer, so that another may be asked.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.retry = status, reason, message, retry


FAILURES: dict[str, tuple[int, str, bool]] = {
    "body_timeout": (408, "the body did not come in time", False),
    "connect_timeout": (504, "an engine could not be reached in time", True),
    "first_byte_timeout": (504, "the engine did not begin to answer in time", False),
    "idle_timeout": (504, "the engine stopped in the middle of its answer", False),
    "total_timeout": (504, "the request took longer than any may", False),
    "slow_client": (408, "the client reads too slowly", False),
    "connect_error": (502, "an engine cannot be reached", True),
    "reset": (502, "the engine closed the connection before it answered", True),
    "reset_midway": (502, "the engine closed the connection in the middle of its answer", False),
    "bad_answer": (502, "the engine answered in no HTTP", False),
    "engine_unavailable": (503, "the engine cannot take it now", True),
    "shutdown": (503, "the router is shutting down", False),
    "instance_lost": (502, "the engine is gone", True),
    "rank_lost": (502, "a rank of the engine is gone", True),
    "instance_changed": (502, "the engine has been replaced", True),
    "expired": (504, "nothing was heard of the request for too long", False),
    "leaked": (502, "the engine has lost the request", False),
    "cancelled": (499, "the request was cancelled", False),
}
"""Reason to status, words, and whether another engine may be asked: only ever before the first byte."""


def failure(reason: str) -> Failure:
    """What a reason means to a client."""
    status, words, retry = FAILURES.get(reason, (502, reason.replace("_", " "), False))
    return Failure(status, reason, words, retry=retry)


class Exchange:
    """One request and its deadlines, in the task that handles it.

    Parameters
    ----------
    now_s : float
        On the loop's clock.
    total_s : float
        The whole request may take so long; 0: as long as it likes.

    Attributes
    ----------
    moved : bool
        Set by whoever sees that the phase goes well: it may take as long again.
    answer : aiohttp.ClientResponse, optional
        Of the engine, while it is read.
    """

    __slots__ = ("_due_s", "_name", "_span_s", "_task", "_total_s", "answer", "moved", "why")

    def __init__(self, now_s: float, total_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._total_s = now_s + total_s if total_s else NEVER
        self._name, self._due_s, self._span_s = "", NEVER, NEVER
        self.moved = False
        self.answer: aiohttp.ClientResponse | None = None
        self.why: str | None = None

    def phase(self, name: str, now_s: float, seconds: float) -> None:
        """From now on `name` may take so long; 0: as long as it likes."""
        self._name, self._span_s = name, seconds or NEVER
        self._due_s = now_s + self._span_s
        self.moved = False

    def stop(self, reason: str) -> None:
        """Stop it, if nothing has stopped it before."""
        if self.why is None:
            self.why = reason
            self._task.cancel()

    def stopped(self) -> Failure | None:
        """After `asyncio.CancelledError`: why, with the cancellation taken back; None: the client is gone."""
        if self.why is None or self._task.uncancel() > 0:
            return None
        why, self.why = self.why, None
        return failure(why)

    def look(self, now_s: float) -> None:
        """Stop it if its time is up."""
        if self.moved:
            self.moved, self._due_s = False, now_s + self._span_s
        if now_s >= self._total_s:
            self.stop("total_timeout")
        elif now_s >= self._due_s:
            self.stop(self._name)
        elif self.answer is not None and _broken(self.answer):
            self.stop("reset_midway")


def _broken(answer: aiohttp.ClientResponse) -> bool:
    """Whether the engine's connection is gone and nobody will ever say so to the reader.

    aiohttp closes a connection whose chunks are framed wrongly, and leaves who waits for the next one waiting.
    """
    connection, content = answer.connection, answer.content
    gone = connection is not None and connection.transport is None
    return gone and not content.is_eof() and content.exception() is None


class Exchanges:
    """All that are under way, looked at together now and then: a deadline costs a request nothing but a number.

    Parameters
    ----------
    shortest_s : float
        The shortest of the times they may take; a fifth of it, at most half a second, is how late they are stopped.
    """

    def __init__(self, shortest_s: float) -> None:
        self.under_way: set[Exchange] = set()
        self._loop = asyncio.get_running_loop()
        self._period_s = min(max(shortest_s / 5.0, 0.01), 0.5)
        self._handle: asyncio.TimerHandle | None = None

    def begin(self, total_s: float) -> Exchange:
        """One more, in the current task."""
        exchange = Exchange(self._loop.time(), total_s)
        self.under_way.add(exchange)
        if self._handle is None:
            self._handle = self._loop.call_later(self._period_s, self._look)
        return exchange

    def stop_all(self, reason: str) -> None:
        """Stop them all."""
        for exchange in list(self.under_way):
            exchange.stop(reason)

    def close(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        for exchange in self.under_way:
            exchange.look(now_s)
        self._handle = self._loop.call_later(self._period_s, self._look) if self.under_way else None

"""`Acts`: a router on a loop's clock, and the hands that carry out what it decides."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from equipoise.router import Abort, Action, Dispatch, Reject, Router
from equipoise.serve.alarm import Alarm
from equipoise.serve.lease import Lease

__all__ = ["Acts"]

_log = logging.getLogger(__name__)

TAIL = 256
"""Decisions kept for the admin page."""


class Acts:
    """The lowest layer of `Driver`.

    Parameters
    ----------
    router : Router
    targets : sequence of object, optional
    clock : callable
    timers : bool
    """

    def __init__(
        self, router: Router, targets: Sequence[Any] | None, clock: Callable[[], float], timers: bool
    ) -> None:
        self.router = router
        self.targets: list[Any] = list(targets if targets is not None else self._names())
        self.leases: dict[int, Lease] = {}
        self.tail: deque[tuple[float, Dispatch]] = deque(maxlen=TAIL)
        """The last decisions, and when."""
        self.lease_type: Callable[[Any, Dispatch, Any], Lease] = Lease
        self._clock = clock
        self._now_s = float("-inf")
        self._waiting: dict[str, asyncio.Future[Lease | Reject]] = {}
        self._alarm = Alarm(router.next_wakeup_s, self.now_s, self.tick, timers)

    def now_s(self) -> float:
        """The router's time: the clock, never back."""
        now_s = self._clock()
        if now_s > self._now_s:
            self._now_s = now_s
        return self._now_s

    def tick(self) -> None:
        """Do what is due; the timers call it."""
        self.act(self.router.tick(self.now_s()))
        self._alarm.set_soon()

    def act(self, actions: Sequence[Action]) -> None:
        """Hand the router's actions to whom they concern."""
        if not actions:
            return
        for action in actions:
            if isinstance(action, Dispatch):
                again = self._dispatched(action)
                if again:
                    self.act(again)
            elif isinstance(action, Reject):
                self._settle(action.request_id, action)
            else:
                self._aborted(action)

    def _dispatched(self, dispatch: Dispatch) -> Sequence[Action]:
        future = self._waiting.pop(dispatch.request_id, None)
        if future is None or future.done():  # whoever asked has left in this very turn
            return self.router.aborted(self.now_s(), dispatch.lease, "cancelled")
        target = self.targets[dispatch.instance]
        lease = self.lease_type(self, dispatch, target)
        self.leases[dispatch.lease] = lease
        self.tail.append((self._now_s, dispatch))
        future.set_result(lease)
        return ()

    def _settle(self, name: str, answer: Lease | Reject) -> None:
        future = self._waiting.pop(name, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _aborted(self, abort: Abort) -> None:
        lease = self.leases.pop(abort.lease, None)
        if lease is None or lease.ended is not None:
            return
        lease.ended = abort.reason
        if lease.on_abort is not None:
            try:
                lease.on_abort(abort.reason)
            except Exception:
                _log.exception("a lease could not be told that it ended (%s)", abort.reason)

    def _names(self) -> list[str]:
        return [spec.name for spec in self.router.instances]

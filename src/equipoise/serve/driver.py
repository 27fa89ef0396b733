"""`Driver`: the router on an event loop. It holds the clock and the timers; what it decides, the router decides.

Requests that arrive in the same turn of the loop are placed together in one round, as the simulator places those that
wait at a step boundary. Nothing here is specific to HTTP: the proxy, the decision API and the Envoy picker share it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from equipoise.router import (
    Arrival,
    Reject,
    RejectReason,
    Router,
)
from equipoise.router.reasons import STATUS
from equipoise.serve.elsewhere import arrived_elsewhere
from equipoise.serve.engine_events import Engines
from equipoise.serve.lease import Lease, Placer

__all__ = ["Driver", "Lease"]

_log = logging.getLogger(__name__)


class Driver(Engines):
    """Drives one `Router` on the running event loop.

    Parameters
    ----------
    router : Router
    targets : sequence of object, optional
        One an instance of the router, handed to the leases on it; the instances' names if left out.
    clock : callable
        Seconds that do not go back. With another clock than the real one, or without timers, call `tick`.
    gather_s : float
        How long requests are gathered into one round; 0: those of one turn of the loop.
    timers : bool
        Whether the driver wakes up by itself.
    """

    def __init__(
        self,
        router: Router,
        targets: Sequence[Any] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        gather_s: float = 0.0,
        timers: bool = True,
    ) -> None:
        super().__init__(router, targets, clock, timers)
        self.owners: Placer | None = None
        """Who places where several routers share the instances; none: the own router."""
        self.on_round: Callable[[int, float], None] | None = None
        """Told how many requests a round had and how long it took, in seconds."""
        self._gather_s = gather_s
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Arrival] = []
        self._flushing: asyncio.Handle | None = None

    def elsewhere(self) -> list[Any]:
        """Targets that other routers place on, and that take requests."""
        return self.owners.reach() if self.owners is not None else []

    # -- requests ------------------------------------------------------------------------------------------------

    async def place(self, arrival: Arrival, *, avoid: str | None = None) -> Lease | Reject:
        """Have a request placed; waits as long as it is queued. Cancelled meanwhile, it leaves the queue.

        Parameters
        ----------
        arrival : Arrival
        avoid : str, optional
            Name of an instance that it must not go to now: where it has just failed.
        """
        if self.owners is not None:
            return await self.owners.place(arrival, avoid=avoid)
        return await self.place_here(arrival, avoid=avoid)

    async def place_here(self, arrival: Arrival, *, avoid: str | None = None) -> Lease | Reject:
        """The same by the own router, whoever else there is."""
        name = arrival.request_id
        if name in self._waiting:
            return Reject(name, STATUS[RejectReason.DUPLICATE], RejectReason.DUPLICATE.value)
        future: asyncio.Future[Lease | Reject] = self._loop.create_future()
        self._waiting[name] = future
        if avoid is not None:
            self.act(arrived_elsewhere(self.router, self.now_s(), arrival, self.index(avoid)))
            self._alarm.set_soon()
        else:
            self._gathered.append(arrival)
            if self._flushing is None:
                if self._gather_s > 0:
                    self._flushing = self._loop.call_later(self._gather_s, self._flush)
                else:
                    self._flushing = self._loop.call_soon(self._flush)
        try:
            return await future
        except asyncio.CancelledError:
            self._gone(name, future)
            raise

    def release(self, lease: Lease, how: str) -> bool:
        """End a lease: ``finished`` or a reason; of the second and later times only the number is kept."""
        if lease.ended is not None:
            return False
        lease.ended = how
        self.leases.pop(lease.key, None)
        now_s = self.now_s()
        if how == "finished":
            self.act(self.router.finished(now_s, lease.key))
        else:
            self.act(self.router.aborted(now_s, lease.key, how))
        self._alarm.set_soon()
        return True

    def adopt(
        self,
        lease: Lease,
        request_id: str,
        instance: str,
        rank: int,
        context_tokens: int,
        output_tokens: int,
        prompt_tokens: int,
    ) -> int | None:
        """Take over a request that another router has placed; its lease's key, none if it cannot be."""
        i, now_s = self.index(instance), self.now_s()
        if i is None:
            return None
        key = self.router.adopt(now_s, request_id, i, rank, context_tokens, output_tokens)
        if key is None:
            return None
        lease.key, lease.instance, lease.target = key, i, self.targets[i]
        self.leases[key] = lease
        if prompt_tokens > 0:
            self.act(self.router.usage(now_s, key, prompt_tokens=prompt_tokens))
        self._alarm.set_soon()
        return key

    def turn_away(self, status: int, reason: str) -> None:
        """Refuse all that wait."""
        for name in list(self._waiting):
            self._settle(name, Reject(name, status, reason))
            self.act(self.router.cancelled(self.now_s(), name))

    @property
    def waiting(self) -> int:
        """Requests whose place is awaited."""
        return len(self._waiting)

    # -- time ----------------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """Have those that wait placed again, as at a step boundary; routers that place on release need no such word."""
        self.act(self.router.arrived_many(self.now_s(), ()))
        self._alarm.set_soon()

    def close(self) -> None:
        """End all timers; who waits for a place is told that the router is going."""
        self._alarm.close()
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        going = RejectReason.DRAINING
        names = list(self._waiting)
        for name in names:
            self._settle(name, Reject(name, STATUS[going], going.value, 1.0))
        for name in names:
            self.act(self.router.cancelled(self.now_s(), name))
        self._gathered.clear()

    # -- inside --------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flushing = None
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        began_s = time.perf_counter()
        now_s = self.now_s()
        try:
            if len(gathered) == 1:
                actions = self.router.arrived(now_s, gathered[0])
            else:
                actions = self.router.arrived_many(now_s, gathered)
        except Exception:  # a bug of ours must not leave requests without an answer
            _log.exception("a round of %d requests failed", len(gathered))
            for one in gathered:
                self._settle(one.request_id, Reject(one.request_id, 500, "internal"))
            return
        if self.on_round is not None:
            self.on_round(len(gathered), time.perf_counter() - began_s)
        self.act(actions)
        if (
            self._waiting or not self._alarm.is_set
        ):  # what was placed at once makes nothing due before the timer
            self._alarm.set_soon()

    def _gone(self, name: str, future: asyncio.Future[Lease | Reject]) -> None:
        """Whoever asked has been cancelled."""
        if future.done() and not future.cancelled():
            answer = future.result()
            if isinstance(answer, Lease):
                answer.aborted("cancelled")
            return
        if self._waiting.get(name) is not future:  # dispatched, and taken back by `_dispatched`
            return
        del self._waiting[name]
        before = len(self._gathered)
        self._gathered = [one for one in self._gathered if one.request_id != name]
        if len(self._gathered) == before:
            self.act(self.router.cancelled(self.now_s(), name))
            self._alarm.set_soon()

"""`Driver`: the router on an event loop. It holds the clock and the timers; what it decides, the router decides.

Requests that arrive in the same turn of the loop are placed together in one round, as the simulator places those that
wait at a step boundary. Nothing here is specific to HTTP: the proxy, the decision API and the Envoy picker share it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from equipoise.router import (
    Abort,
    Action,
    Arrival,
    Dispatch,
    InstanceSpec,
    RankReport,
    Reject,
    RejectReason,
    Router,
)
from equipoise.router.reasons import STATUS
from equipoise.serve.alarm import Alarm
from equipoise.serve.elsewhere import arrived_elsewhere
from equipoise.serve.lease import Lease, Placer

__all__ = ["Driver", "Lease"]

_log = logging.getLogger(__name__)

TAIL = 256
"""Decisions kept for the admin page."""


class Driver:
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
        self.router = router
        self.targets: list[Any] = list(targets if targets is not None else self._names())
        self.leases: dict[int, Lease] = {}
        self.tail: deque[tuple[float, Dispatch]] = deque(maxlen=TAIL)
        """The last decisions, and when."""
        self.owners: Placer | None = None
        """Who places where several routers share the instances; none: the own router."""
        self.lease_type: Callable[[Driver, Dispatch, Any], Lease] = Lease
        self.on_round: Callable[[int, float], None] | None = None
        """Told how many requests a round had and how long it took, in seconds."""
        self._clock, self._gather_s = clock, gather_s
        self._now_s = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Lease | Reject]] = {}
        self._gathered: list[Arrival] = []
        self._flushing: asyncio.Handle | None = None
        self._alarm = Alarm(router.next_wakeup_s, self.now_s, self.tick, timers)

    def now_s(self) -> float:
        """The router's time: the clock, never back."""
        now_s = self._clock()
        if now_s > self._now_s:
            self._now_s = now_s
        return self._now_s

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

    # -- engines -------------------------------------------------------------------------------------------------

    def report(self, reports: Iterable[RankReport]) -> None:
        """What engines say of their ranks."""
        self.act(self.router.report_many(self.now_s(), reports))
        self._alarm.set_soon()

    def instance_lost(self, instance: int, reason: str = "lost") -> None:
        """An instance is gone."""
        self.act(self.router.instance_lost(self.now_s(), instance, reason))
        self._alarm.set_soon()

    def instance_ok(self, instance: int) -> None:
        """It is well again."""
        self.act(self.router.instance_ok(self.now_s(), instance))
        self._alarm.set_soon()

    def rank_lost(self, instance: int, rank: int, reason: str = "lost") -> None:
        """A rank is gone."""
        self.act(self.router.rank_lost(self.now_s(), instance, rank, reason))
        self._alarm.set_soon()

    def drain(self, instance: int, rank: int | None = None, *, undo: bool = False) -> None:
        """Send nothing more to an instance or a rank; with ``undo`` send there again."""
        turn = self.router.undrain if undo else self.router.drain
        self.act(turn(self.now_s(), instance, rank))
        self._alarm.set_soon()

    def set_instances(
        self,
        specs: Sequence[InstanceSpec],
        targets: Sequence[Any] | None = None,
        *,
        warm: Collection[str] = (),
        offer: bool = True,
    ) -> None:
        """These are the instances now: `Router.set_instances`."""
        actions = self.router.set_instances(self.now_s(), specs, warm=warm, offer=offer)
        self.targets = list(targets if targets is not None else self._names())
        self.act(actions)
        self._alarm.set_soon()

    def index(self, name: str) -> int | None:
        """Position of an instance in the router's list."""
        for i, spec in enumerate(self.router.instances):
            if spec.name == name:
                return i
        return None

    # -- time ----------------------------------------------------------------------------------------------------

    def offer(self) -> None:
        """Have those that wait placed again, as at a step boundary; routers that place on release need no such word."""
        self.act(self.router.arrived_many(self.now_s(), ()))
        self._alarm.set_soon()

    def tick(self) -> None:
        """Do what is due; the timers call it."""
        self.act(self.router.tick(self.now_s()))
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

    def _names(self) -> list[str]:
        return [spec.name for spec in self.router.instances]

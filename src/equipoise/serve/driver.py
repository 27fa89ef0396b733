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
from types import TracebackType
from typing import Any, Protocol

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

__all__ = ["Driver", "Lease"]

_log = logging.getLogger(__name__)

SHORTEST_S = 0.002
"""Between two ticks: a router that is due now is not asked in a circle."""
TAIL = 256
"""Decisions kept for the admin page."""


class Lease:
    """A place on a rank, to be given back exactly once; as a context manager it is given back whatever happens.

    Leaving the block without having said how the request ended counts as ``client_gone`` if the task was cancelled, as
    ``error`` otherwise.

    Attributes
    ----------
    request_id : str
    key : int
        What the router knows it by.
    instance, rank : int
        Position of the instance when it was chosen, and the rank inside it.
    reason : str
        Who chose and on what.
    target : object
        What the driver was given for that instance; it stays the same when the list of instances changes.
    ended : str or None
        How it ended: ``finished``, or the reason of its abort.
    on_abort : callable, optional
        Called with the reason when the router takes the lease away: the request is to be stopped.
    token : str
        What an outside holder proves itself by; empty: it has none.
    """

    __slots__ = (
        "_driver",
        "ended",
        "instance",
        "key",
        "on_abort",
        "rank",
        "reason",
        "request_id",
        "target",
        "token",
    )

    def __init__(self, driver: Driver, dispatch: Dispatch, target: Any) -> None:
        self._driver = driver
        self.request_id, self.key = dispatch.request_id, dispatch.lease
        self.instance, self.rank, self.reason = dispatch.instance, dispatch.rank, dispatch.reason
        self.target = target
        self.ended: str | None = None
        self.on_abort: Callable[[str], None] | None = None
        self.token = ""

    def first_token(self) -> None:
        """The answer has begun."""
        if self.ended is None:
            driver = self._driver
            driver.act(driver.router.first_token(driver.now_s(), self.key))

    def tokens(self, n: int) -> None:
        """So many tokens more."""
        if self.ended is None:
            driver = self._driver
            actions = driver.router.tokens(driver.now_s(), self.key, n)
            if actions:
                driver.act(actions)

    def usage(self, prompt_tokens: int | None = None, output_tokens: int | None = None) -> None:
        """The engine says the exact lengths."""
        if self.ended is None:
            driver = self._driver
            driver.act(
                driver.router.usage(
                    driver.now_s(), self.key, prompt_tokens=prompt_tokens, output_tokens=output_tokens
                )
            )

    def finished(self) -> bool:
        """The request has ended by itself; False: the lease had ended before."""
        return self._driver.release(self, "finished")

    def aborted(self, reason: str) -> bool:
        """The request has ended before its end; False: the lease had ended before."""
        return self._driver.release(self, reason)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.ended is None:
            gone = kind is not None and issubclass(kind, asyncio.CancelledError)
            self.aborted("client_gone" if gone else "error")


class Placer(Protocol):
    """Places requests in a driver's stead: with the help of other routers."""

    async def place(self, arrival: Arrival, *, avoid: str | None = None) -> Lease | Reject:
        """As `Driver.place`."""


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
        self._clock, self._gather_s, self._timers = clock, gather_s, timers
        self._now_s = float("-inf")
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, asyncio.Future[Lease | Reject]] = {}
        self._gathered: list[Arrival] = []
        self._flushing: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = float("inf")
        self._rearming = False
        self._closed = False

    def now_s(self) -> float:
        """The router's time: the clock, never back."""
        now_s = self._clock()
        if now_s > self._now_s:
            self._now_s = now_s
        return self._now_s

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
            self._place_elsewhere(arrival, avoid)
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
        self._rearm_soon()
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
        self._rearm_soon()
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
        self._rearm_soon()

    def instance_lost(self, instance: int, reason: str = "lost") -> None:
        """An instance is gone."""
        self.act(self.router.instance_lost(self.now_s(), instance, reason))
        self._rearm_soon()

    def instance_ok(self, instance: int) -> None:
        """It is well again."""
        self.act(self.router.instance_ok(self.now_s(), instance))
        self._rearm_soon()

    def rank_lost(self, instance: int, rank: int, reason: str = "lost") -> None:
        """A rank is gone."""
        self.act(self.router.rank_lost(self.now_s(), instance, rank, reason))
        self._rearm_soon()

    def drain(self, instance: int, rank: int | None = None, *, undo: bool = False) -> None:
        """Send nothing more to an instance or a rank; with ``undo`` send there again."""
        turn = self.router.undrain if undo else self.router.drain
        self.act(turn(self.now_s(), instance, rank))
        self._rearm_soon()

    def set_instances(
        self,
        specs: Sequence[InstanceSpec],
        targets: Sequence[Any] | None = None,
        *,
        warm: Collection[str] = (),
    ) -> None:
        """These are the instances now; those named `warm` are under load already if they are new here."""
        actions = self.router.set_instances(self.now_s(), specs, warm=warm)
        self.targets = list(targets if targets is not None else self._names())
        self.act(actions)
        self._rearm_soon()

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
        self._rearm_soon()

    def tick(self) -> None:
        """Do what is due; the timers call it."""
        self.act(self.router.tick(self.now_s()))
        self._rearm_soon()

    def close(self) -> None:
        """End all timers; who waits for a place is told that the router is going."""
        self._closed = True
        for handle in (self._timer, self._flushing):
            if handle is not None:
                handle.cancel()
        self._timer = self._flushing = None
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
        if self._waiting or self._timer is None:  # what was placed at once makes nothing due before the timer
            self._rearm_soon()

    def _place_elsewhere(self, arrival: Arrival, avoid: str) -> None:
        """Place one request while nothing may be sent to an instance: all of it in one turn of the loop."""
        now_s, router = self.now_s(), self.router
        i = self.index(avoid)
        if i is None:
            self.act(router.arrived(now_s, arrival))
        else:
            view = router.view(now_s)
            own = view.instance == i
            drained = [int(rank) for rank in view.rank[own & view.drained]]
            self.act(router.drain(now_s, i))
            actions = router.arrived(now_s, arrival)
            self.act(actions)
            if not actions:  # it waits, and must not go there when it is undrained
                self.act(router.cancelled(now_s, arrival.request_id))
                retry_s = router.settings.retry_after_min_s
                self._settle(arrival.request_id, Reject(arrival.request_id, 503, "no_other_room", retry_s))
            self.act(router.undrain(now_s, i))
            for rank in drained:
                self.act(router.drain(now_s, i, rank))
        self._rearm_soon()

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
            self._rearm_soon()

    def _names(self) -> list[str]:
        return [spec.name for spec in self.router.instances]

    def _rearm_soon(self) -> None:
        """Look at the timer once in this turn, however much happens in it."""
        if self._timers and not self._rearming and not self._closed:
            self._rearming = True
            self._loop.call_soon(self._rearm)

    def _rearm(self) -> None:
        self._rearming = False
        due_s = self.router.next_wakeup_s()
        if self._closed:
            return
        if self._timer is not None:
            if due_s is not None and self._due_s <= due_s:
                return  # it wakes up before, and looks again
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._due_s = due_s
            self._timer = self._loop.call_later(max(due_s - self.now_s(), SHORTEST_S), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.tick()

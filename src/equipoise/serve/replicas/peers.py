"""`Peer`: one other router, as this one speaks to it.

Questions go at once, those of one turn together; news are gathered, and told until they are heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import aiohttp

from equipoise.serve.replicas.ownership import Timing
from equipoise.serve.replicas.wire import (
    Ask,
    Asks,
    Drain,
    LeasesOf,
    Placed,
    Places,
    Relayed,
    State,
    States,
    StatesTaken,
    Told,
    decode,
    encode,
)

__all__ = ["Peer", "PeerError"]

T = TypeVar("T")
MOST_STATES = 4096
"""Told at once."""
RETRY_S, RETRY_MAX_S = 0.02, 0.5


class Stateful(Protocol):
    """What a peer is told of: as it is when it is told."""

    gid: str

    def state(self) -> State:
        """How far it is."""


class PeerError(Exception):
    """A peer did not answer, or not sensibly."""


class Peer:
    """One other router.

    Parameters
    ----------
    me : tuple of str
        Name and address of this router.
    name, url : str
    session : aiohttp.ClientSession
    timing : Timing
    key : callable
        The pool's secret.
    on_taken : callable
        Told the states and what became of them.
    """

    def __init__(
        self,
        me: tuple[str, str],
        name: str,
        url: str,
        session: aiohttp.ClientSession,
        timing: Timing,
        key: Callable[[], str],
        on_places: Callable[[Peer, Places], None],
        on_taken: Callable[[Peer, list[State], StatesTaken], None],
    ) -> None:
        self.me, self.name, self.url = me, name, url.rstrip("/")
        self.failures, self.calls = 0, 0
        self.suspect_until_s = float("-inf")
        self._session, self._timing, self._key = session, timing, key
        self._on_places, self._on_taken = on_places, on_taken
        self._asks: list[tuple[Ask, asyncio.Future[Placed]]] = []
        self._states: dict[str, Stateful] = {}
        self._under_way: dict[str, Stateful] = {}
        self._placed: dict[str, Placed] = {}
        self._ended: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._teller: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def suspect(self) -> bool:
        """Whether it did not answer just now."""
        return time.monotonic() < self.suspect_until_s

    @property
    def untold(self) -> int:
        """News that it has not confirmed."""
        return len(self._states) + len(self._under_way) + len(self._placed) + len(self._ended)

    async def ask(self, ask: Ask) -> Placed:
        """Have a request placed.

        Raises
        ------
        PeerError
            It does not answer: the request may or may not be in its ledger.
        """
        future: asyncio.Future[Placed] = self._loop.create_future()
        self._asks.append((ask, future))
        if len(self._asks) == 1:
            self._loop.call_soon(self._send_asks)
        return await future

    async def leases_of(self, question: LeasesOf) -> list[State]:
        """Its requests under way on an instance."""
        return await self._call("leases", question, list[State])

    async def drain(self, question: Drain) -> int:
        """Have it drain something; requests that run there, -1: it is not the owner."""
        return await self._call("drain", question, int)

    async def relay(self, question: Relayed) -> int:
        """Pass something on to it; how much of it was known."""
        return await self._call("relay", question, int)

    def tell(self, lease: Stateful, *, urgent: bool = False) -> None:
        """How far a request is, when it is told; at once if it is urgent."""
        self._states[lease.gid] = lease
        if urgent:
            self._urgent.set()
        self._tell_soon()

    def forget(self, gid: str) -> None:
        """Another router is told now."""
        self._states.pop(gid, None)
        self._under_way.pop(gid, None)

    def placed(self, placed: Placed) -> None:
        """A request of its has left the queue."""
        self._placed[placed.gid] = placed
        self._urgent.set()
        self._tell_soon()

    def ended(self, gid: str, reason: str) -> None:
        """A request of its was ended here."""
        self._ended[gid] = reason
        self._urgent.set()
        self._tell_soon()

    def close(self) -> None:
        """Stop telling."""
        for task in self._tasks:
            task.cancel()
        if self._teller is not None:
            self._teller.cancel()
        for _, future in self._asks:
            if not future.done():
                future.set_exception(PeerError("closed"))
        self._asks.clear()

    # -- inside --------------------------------------------------------------------------------------------------

    def _send_asks(self) -> None:
        asks, self._asks = self._asks, []
        if asks:
            task = self._loop.create_task(self._place(asks))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _place(self, asks: list[tuple[Ask, asyncio.Future[Placed]]]) -> None:
        try:
            answer = await self._call("place", Asks(*self.me, [ask for ask, _ in asks]), Places)
            by_gid = {placed.gid: placed for placed in answer.placed}
            self._on_places(self, answer)
            for ask, future in asks:
                if not future.done():
                    placed = by_gid.get(ask.gid)
                    if placed is None:
                        future.set_exception(PeerError("no answer to one of the questions"))
                    else:
                        future.set_result(placed)
        except PeerError as error:
            for _, future in asks:
                if not future.done():
                    future.set_exception(PeerError(str(error)))
        finally:
            for _, future in asks:
                if not future.done():
                    future.set_exception(PeerError("closed"))

    def _tell_soon(self) -> None:
        if self._teller is None or self._teller.done():
            self._teller = self._loop.create_task(self._tell())

    async def _tell(self) -> None:
        wait_s = 0.0
        while self.untold:
            if wait_s:
                await asyncio.sleep(wait_s)
            elif not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), self._timing.flush_s)
            self._urgent.clear()
            try:
                await self._tell_states()
                await self._tell_decisions()
                wait_s = 0.0
            except PeerError:
                wait_s = min(max(2 * wait_s, RETRY_S), RETRY_MAX_S)

    async def _tell_states(self) -> None:
        taken = dict(itertools.islice(self._states.items(), MOST_STATES))
        if not taken:
            return
        for gid in taken:
            del self._states[gid]
        states = [lease.state() for lease in taken.values()]
        self._under_way = taken
        try:
            answer = await self._call("state", States(*self.me, states), StatesTaken)
        except BaseException:
            for gid, lease in self._under_way.items():
                self._states.setdefault(gid, lease)
            raise
        finally:
            self._under_way = {}
        self._on_taken(self, states, answer)

    async def _tell_decisions(self) -> None:
        placed, ended = dict(self._placed), dict(self._ended)
        if not placed and not ended:
            return
        await self._call("told", Told(self.me[0], list(placed.values()), list(ended.items())), bool)
        for gid, one in placed.items():
            if self._placed.get(gid) is one:
                del self._placed[gid]
        for gid in ended:
            self._ended.pop(gid, None)

    async def _call(self, what: str, message: object, kind: type[T]) -> T:
        self.calls += 1
        try:
            async with self._session.post(
                f"{self.url}/internal/{what}",
                data=encode(message),
                headers={"Authorization": f"Bearer {self._key()}", "Content-Type": "application/msgpack"},
                timeout=aiohttp.ClientTimeout(total=self._timing.call_s),
                allow_redirects=False,
            ) as answer:
                body = await answer.read()
                if answer.status != 200:
                    raise PeerError(f"{self.url} answers {answer.status}")
                return decode(body, kind)
        except PeerError:
            self._failed()
            raise
        except Exception as error:
            self._failed()
            raise PeerError(f"{self.url}: {type(error).__name__} {error}") from error

    def _failed(self) -> None:
        self.failures += 1
        self.suspect_until_s = time.monotonic() + self._timing.beat_s

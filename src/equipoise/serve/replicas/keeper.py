"""`Keeper`: the requests of peers in this router's ledger."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from equipoise.router import Arrival, Dispatch, Reject
from equipoise.serve.lease import Lease
from equipoise.serve.replicas.shared import SharedLease
from equipoise.serve.replicas.wire import (
    NOT_OWNER,
    QUEUED,
    Ask,
    Asks,
    Held,
    Placed,
    Places,
    State,
    States,
    StatesTaken,
)

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Keeper"]

ANSWER_S = 0.004
"""A request that is not placed by then waits in the queue: its router is told so, and told again later."""
MOST_ENDED, ENDED_S = 1 << 17, 120.0
"""Names of requests that have ended, kept for late news of them."""


class _Kept:
    """A request of a peer."""

    __slots__ = ("epoch", "lease", "router", "tokens")

    def __init__(self, router: str, lease: SharedLease, epoch: int, tokens: int = 0) -> None:
        self.router, self.lease, self.epoch, self.tokens = router, lease, epoch, tokens


class Keeper:
    """Places for peers, and hears what becomes of their requests.

    Parameters
    ----------
    owners : Owners
    """

    def __init__(self, owners: Owners) -> None:
        self._owners, self._driver = owners, owners.driver
        self.kept: dict[str, _Kept] = {}
        self._placing: dict[str, asyncio.Task[Placed]] = {}
        self._early: dict[str, dict[str, tuple[str, State]]] = {}
        self._ended: OrderedDict[str, float] = OrderedDict()

    # -- questions -----------------------------------------------------------------------------------------------

    async def place(self, asks: Asks) -> Places:
        """Place what a peer asks for, in one round; what does not fit is said to be queued."""
        self._owners.peer(asks.router, asks.url)
        tasks = [self._task(asks.router, ask) for ask in asks.asks]
        open_tasks = [task for task in tasks if not isinstance(task, Placed)]
        if open_tasks:
            await asyncio.wait(open_tasks, timeout=ANSWER_S)
        placed = [
            self._answer(asks.router, ask.gid, task) for ask, task in zip(asks.asks, tasks, strict=True)
        ]
        return Places(placed, self._owners.loads())

    def _task(self, router: str, ask: Ask) -> asyncio.Task[Placed] | Placed:
        kept = self.kept.get(ask.gid)
        if kept is not None:
            return self._placed(ask.gid, kept)
        if ask.gid in self._ended:
            return Placed(ask.gid, 499, reason="cancelled")
        task = self._placing.get(ask.gid)
        if task is None:
            if not self._driver.router.instances:
                return Placed(ask.gid, NOT_OWNER)
            task = self._placing[ask.gid] = asyncio.ensure_future(self._place(router, ask))
        return task

    def _answer(self, router: str, gid: str, task: asyncio.Task[Placed] | Placed) -> Placed:
        if isinstance(task, Placed):
            return task
        if task.done():
            self._placing.pop(gid, None)
            return _result(gid, task)
        task.add_done_callback(lambda done: self._tell(router, gid, done))
        return Placed(gid, QUEUED)

    def _tell(self, router: str, gid: str, task: asyncio.Task[Placed]) -> None:
        self._placing.pop(gid, None)
        peer = self._owners.peer(router)
        if peer is not None:
            peer.placed(_result(gid, task))

    async def _place(self, router: str, ask: Ask) -> Placed:
        driver = self._driver
        await self._owners.awake()
        arrival = Arrival(
            ask.gid,
            ask.context_tokens,
            ask.budget_tokens,
            ask.session,
            ask.request_class,
            ask.body_bytes,
            driver.now_s() - max(ask.waited_s, 0.0),
        )
        found = await driver.place_here(arrival, avoid=ask.avoid)
        if isinstance(found, Reject):
            return Placed(ask.gid, found.status, reason=found.reason, retry_after_s=found.retry_after_s)
        assert isinstance(found, SharedLease)
        own = self._owners.ownership.mine.get(found.name)
        if found.far or own is None or found.ended is not None:  # it changed hands in this very turn
            found.aborted("cancelled")
            return Placed(ask.gid, NOT_OWNER)
        return self._placed(ask.gid, self._keep(router, ask.gid, found, own.epoch))

    def _keep(self, router: str, gid: str, lease: SharedLease, epoch: int, tokens: int = 0) -> _Kept:
        lease.gid = gid
        lease.on_abort = self._owners.aborted_by_owner(router, gid)
        kept = self.kept[gid] = _Kept(router, lease, epoch, tokens)
        return kept

    def _placed(self, gid: str, kept: _Kept) -> Placed:
        lease = kept.lease
        return Placed(gid, 200, lease.name, lease.rank, lease.reason, kept.epoch)

    # -- news ----------------------------------------------------------------------------------------------------

    async def state(self, states: States) -> StatesTaken:
        """How far requests of a peer are."""
        self._owners.peer(states.router, states.url)
        elsewhere: dict[str, Held] = {}
        gone: list[str] = []
        mine = self._owners.ownership.mine
        for one in states.states:
            if one.instance:
                own = mine.get(one.instance)
                if own is None:
                    elsewhere[one.instance] = self._owners.held(one.instance)
                    continue
                if not own.serving:
                    self.early(one.instance, states.router, [one])
                    continue
            if not self._hear(states.router, one):
                gone.append(one.gid)
        return StatesTaken(list(elsewhere.values()), gone)

    def _hear(self, router: str, state: State) -> bool:
        """Whether the request is known still."""
        kept = self.kept.get(state.gid)
        if kept is None:
            if state.gid in self._ended:
                return bool(state.ended)
            if state.ended:
                self._end(state.gid)
                task = self._placing.get(state.gid)
                if task is not None:
                    task.cancel()
                return True
            return self._adopt(router, state)
        lease = kept.lease
        if state.tokens > kept.tokens:
            lease.tokens(state.tokens - kept.tokens)
            kept.tokens = state.tokens
        elif state.begun:
            lease.first_token()
        if state.prompt_tokens > 0:
            lease.usage(state.prompt_tokens)
        if state.ended:
            del self.kept[state.gid]
            self._end(state.gid)
            lease.on_abort = None
            if state.ended == "finished":
                lease.finished()
            else:
                lease.aborted(state.ended)
        return True

    def _adopt(self, router: str, state: State) -> bool:
        i = self._driver.index(state.instance)
        own = self._owners.ownership.mine.get(state.instance)
        if i is None or own is None:
            return False
        dispatch = Dispatch(state.gid, -1, i, state.rank, "adopted")
        lease = SharedLease(self._driver, dispatch, self._driver.targets[i])
        lease.owners, lease.name = self._owners, state.instance
        key = self._driver.adopt(
            lease,
            state.gid,
            state.instance,
            state.rank,
            state.context_tokens,
            state.tokens,
            state.prompt_tokens,
        )
        if key is None:
            return False
        self._keep(router, state.gid, lease, own.epoch, state.tokens)
        self._owners.counts["adopted"] += 1
        return True

    # -- ledgers move --------------------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """An instance is owned; what is heard of it waits until the ledger is rebuilt."""
        self._early[name] = {}

    def early(self, name: str, router: str, states: Iterable[State]) -> None:
        """Heard meanwhile."""
        heard = self._early.get(name)
        if heard is None:
            return
        for state in states:
            before = heard.get(state.gid)
            if before is None or (not before[1].ended and state.tokens >= before[1].tokens) or state.ended:
                heard[state.gid] = (router, state)

    def take_over(self, name: str) -> int:
        """Put it into the ledger; how many requests."""
        heard = self._early.pop(name, {})
        for router, state in heard.values():
            self._hear(router, state)
        return len(heard)

    def forget(self, name: str) -> None:
        """The instance is somebody else's."""
        self._early.pop(name, None)

    def let_go(self, lease: Lease) -> bool:
        """Whether a lease that leaves the ledger was a peer's; it is kept no more then."""
        kept = self.kept.get(lease.gid) if isinstance(lease, SharedLease) else None
        if kept is None or kept.lease is not lease:
            return False
        del self.kept[kept.lease.gid]
        lease.ended = "moved"
        return True

    def ended(self, router: str, gid: str, reason: str) -> None:
        """The router has taken a lease away."""
        if self.kept.pop(gid, None) is not None:
            self._end(gid)
            peer = self._owners.peer(router)
            if peer is not None:
                peer.ended(gid, reason)

    def peer_gone(self, router: str) -> int:
        """A peer is no more, and no more are its requests."""
        gone = [gid for gid, kept in self.kept.items() if kept.router == router]
        for gid in gone:
            kept = self.kept.pop(gid)
            kept.lease.on_abort = None
            kept.lease.aborted(
                "replica_gone"
            )  # not noted as ended: if it was only cut off, it tells of them again
        for gid, task in list(self._placing.items()):
            if gid.startswith(f"{router}:"):
                task.cancel()
        return len(gone)

    def close(self) -> None:
        """Place for nobody."""
        for task in list(self._placing.values()):
            task.cancel()

    def _end(self, gid: str) -> None:
        now_s = time.monotonic()
        self._ended[gid] = now_s
        while len(self._ended) > MOST_ENDED or next(iter(self._ended.values())) < now_s - ENDED_S:
            self._ended.popitem(last=False)


def _result(gid: str, task: asyncio.Task[Placed]) -> Placed:
    if task.cancelled():
        return Placed(gid, 499, reason="cancelled")
    error = task.exception()
    return task.result() if error is None else Placed(gid, 500, reason="internal")

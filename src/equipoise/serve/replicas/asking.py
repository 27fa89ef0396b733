"""`Asking`: a request is placed by the router that owns its instance."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING

from equipoise.router import Arrival, Dispatch, Reject
from equipoise.serve.replicas.peers import Peer, PeerError
from equipoise.serve.replicas.shared import SharedLease
from equipoise.serve.replicas.wire import NOT_OWNER, QUEUED, Ask, Placed, State, Told

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Asking"]

_log = logging.getLogger(__name__)


class Asking:
    """Asks owners, and hears what they say later of what has to wait.

    Parameters
    ----------
    owners : Owners
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._numbers = itertools.count(1)
        self.waits: dict[str, asyncio.Future[Placed]] = {}

    def gid(self) -> str:
        """A name among routers."""
        return f"{self._owners.name}:{next(self._numbers)}"

    async def place(
        self, arrival: Arrival, avoid: str | None, name: str, waited_s: float
    ) -> SharedLease | Reject | None:
        """Ask the owner of an instance; none: it is not the owner, or does not answer."""
        owners = self._owners
        owner = owners.ownership.others.get(name)
        peer = owners.peer(owner.router, owner.url) if owner is not None else None
        if peer is None:
            return None
        owners.counts["asked"] += 1
        owners.choice.sent(name)
        gid = self.gid()
        ask = Ask(
            gid,
            arrival.context_tokens,
            arrival.budget_tokens,
            arrival.session,
            arrival.request_class,
            arrival.body_bytes,
            waited_s,
            avoid,
        )
        future = self.waits[gid] = asyncio.get_running_loop().create_future()
        try:
            placed = await peer.ask(ask)
            if placed.status == QUEUED:
                placed = await self._wait(peer, gid, future)
        except PeerError as error:
            _log.warning("router %s does not place: %s", peer.name, error)
            peer.tell(Withdrawn(gid), urgent=True)
            return None
        except asyncio.CancelledError:
            peer.tell(Withdrawn(gid), urgent=True)
            raise
        finally:
            del self.waits[gid]
        if placed.status == NOT_OWNER:
            return None
        if placed.status != 200:
            return Reject(arrival.request_id, placed.status, placed.reason, placed.retry_after_s)
        if placed.instance not in owners.targets:
            peer.tell(Withdrawn(gid), urgent=True)
            return None
        return self._lease(arrival, placed)

    async def _wait(self, peer: Peer, gid: str, future: asyncio.Future[Placed]) -> Placed:
        """It waits in the owner's queue, as long as there is that owner."""
        owners = self._owners
        until_s = owners.now_s() + owners.driver.router.settings.queue_ttl_s + owners.timing.hold_s
        while True:
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(asyncio.shield(future), owners.timing.beat_s)
            if owners.ownership.up and peer.name not in owners.ownership.members:
                return Placed(gid, NOT_OWNER)
            if owners.now_s() >= until_s:
                raise PeerError("its queue does not move")

    def _lease(self, arrival: Arrival, placed: Placed) -> SharedLease:
        owners = self._owners
        lease = SharedLease(
            owners.driver,
            Dispatch(arrival.request_id, -1, -1, placed.rank, placed.reason),
            owners.targets[placed.instance],
        )
        lease.far, lease.gid, lease.name, lease.owners = True, placed.gid, placed.instance, owners
        lease.context_tokens = arrival.context_tokens
        owners.counts["placed_far"] += 1
        owners.far.add(lease)
        own = owners.ownership.mine.get(lease.name)
        if own is not None:
            if own.serving:
                owners.far.bring_home(lease)
        elif owners.ownership.highest.get(lease.name, 0) > placed.epoch:
            owners.far.changed(lease)  # it has changed hands meanwhile
        return lease

    async def told(self, told: Told) -> bool:
        """An owner has placed what waited there, or ended what ran."""
        owners = self._owners
        for placed in told.placed:
            future = self.waits.get(placed.gid)
            if future is not None and not future.done():
                future.set_result(placed)
            elif future is None and placed.status == 200:
                peer = owners.peer(told.router)
                if peer is not None and owners.far.get(placed.instance, placed.gid) is None:
                    peer.tell(Withdrawn(placed.gid), urgent=True)  # who asked has left
        for gid, reason in told.ended:
            owners.far.ended(gid, reason)
        return True


class Withdrawn:
    """A request that is wanted no more, wherever it is in its owner's hands."""

    __slots__ = ("gid",)

    def __init__(self, gid: str) -> None:
        self.gid = gid

    def state(self) -> State:
        """It has ended."""
        return State(self.gid, "", -1, 0, ended="cancelled")

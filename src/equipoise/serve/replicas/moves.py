"""`Moves`: what is done with ledgers when instances change hands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from equipoise.serve.replicas.peers import Peer, PeerError
from equipoise.serve.replicas.shared import SharedLease
from equipoise.serve.replicas.wire import NOT_OWNER, LeasesOf, States

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Moves"]

_log = logging.getLogger(__name__)
KEPT_TIMES = 64


class Moves:
    """Hears of changes in ownership.

    Parameters
    ----------
    owners : Owners

    Attributes
    ----------
    rebuild_s : list of float
        How long the last rebuilds took.
    rebuild_sum_s : float
        All of them together.
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self.rebuild_s: list[float] = []
        self.rebuild_sum_s = 0.0

    def gained(self, name: str, epoch: int) -> None:
        """An instance is this router's, once its ledger is there."""
        self._owners.counts["gained"] += 1
        self._owners.keeper.begin(name)
        self._owners.spawn(self._rebuild(name, epoch))

    def lost(self, name: str, epoch: int) -> None:
        """Somebody else's now: requests whose bytes are here are told to them, those of peers are forgotten."""
        owners = self._owners
        owners.counts["lost"] += 1
        owners.keeper.forget(name)
        driver = owners.driver
        rows = [row for row in driver.router.snapshot() if row["instance"] == name]
        owners.sync()
        for row in rows:
            key = int(row["lease"])
            lease = driver.leases.pop(key, None)
            driver.act(driver.router.aborted(driver.now_s(), key, "moved"))
            if not isinstance(lease, SharedLease) or lease.ended is not None:
                continue
            if owners.keeper.let_go(lease):
                continue
            lease.far, lease.name = True, name
            lease.gid = lease.gid or owners.asking.gid()
            lease.context_tokens, lease.count = int(row["context_tokens"]), int(row["output_tokens"])
            owners.far.add(lease)
            owners.counts["handed_over"] += 1
        if not driver.router.instances:
            driver.turn_away(NOT_OWNER, "not_owner")
        self.moved(name)

    def moved(self, name: str) -> None:
        """An instance of others has another owner."""
        self._owners.choice.forget(name)
        self._owners.far.moved(name)

    async def _rebuild(self, name: str, epoch: int) -> None:
        """Ask all who live for their requests on an instance, then place on it."""
        owners, timing = self._owners, self._owners.timing
        began_s = owners.now_s()
        asked: set[str] = set()
        mine = owners.ownership.mine
        former = [
            owners.spawn(self._ask_former(peer, name, epoch))
            for router, peer in list(owners.peers.items())
            if router not in owners.ownership.members
        ]
        if former:
            await asyncio.wait(former, timeout=timing.rebuild_s / 4)
        while True:
            await self._ask(name, epoch, asked)
            if name not in mine or mine[name].epoch != epoch:
                return
            left = owners.ownership.members.keys() - asked - {owners.name}
            if not left or owners.now_s() - began_s >= timing.rebuild_s:
                break
            await asyncio.sleep(timing.beat_s / 4)
        if left:
            _log.warning("%d routers did not say what they have on %s", len(left), name)
        mine[name].serving = True  # no turn of the loop from here to the end
        owners.sync()
        for lease in owners.far.on(name):
            owners.far.bring_home(lease)
        found = owners.keeper.take_over(name)
        owners.drains.apply(name)
        owners.on_owned(name)
        owners.driver.offer()
        owners.counts["rebuilt"] += 1
        took_s = owners.now_s() - began_s
        self.rebuild_s = [*self.rebuild_s[1 - KEPT_TIMES :], took_s]
        self.rebuild_sum_s += took_s
        _log.info("instance %s: %d requests of peers taken over in %.3f s", name, found, took_s)

    async def _ask(self, name: str, epoch: int, asked: set[str]) -> None:
        """One round of questions to those who have not answered yet."""
        owners = self._owners
        left = owners.ownership.members.keys() - asked - {owners.name}
        peers = [peer for router in left if (peer := owners.peer(router)) is not None]
        answers = await asyncio.gather(
            *(peer.leases_of(LeasesOf(owners.name, peer.name, name, epoch)) for peer in peers),
            return_exceptions=True,
        )
        for peer, answer in zip(peers, answers, strict=True):
            if isinstance(answer, list):
                asked.add(peer.name)
                owners.keeper.early(name, peer.name, answer)
            elif not isinstance(answer, PeerError):
                raise answer

    async def _ask_former(self, peer: Peer, name: str, epoch: int) -> None:
        """A router that the store does not see any more may be cut off from the store alone, and go on placing."""
        owners = self._owners
        with contextlib.suppress(PeerError):
            states = await peer.leases_of(LeasesOf(owners.name, peer.name, name, epoch))
            await owners.keeper.state(States(peer.name, peer.url, states))

    async def end_gone(self, peer: Peer) -> None:
        """A router has been silent for long: if it does not answer either, its requests are no more."""
        owners = self._owners
        try:
            await peer.leases_of(LeasesOf(owners.name, peer.name, "", 0))
        except PeerError as error:
            owners.counts["replicas_gone"] += 1
            found = owners.keeper.peer_gone(peer.name)
            _log.warning("router %s is gone with %d requests: %s", peer.name, found, error)
            if owners.peers.get(peer.name) is peer:
                del owners.peers[peer.name]
            peer.close()
        else:
            owners.ownership.left_s[peer.name] = owners.now_s()

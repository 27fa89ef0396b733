"""`Far`: requests whose bytes pass here and whose ledger is another router's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.serve.replicas.server import WrongRouterError
from equipoise.serve.replicas.shared import SharedLease
from equipoise.serve.replicas.wire import LeasesOf, State, StatesTaken

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Far"]


class Far:
    """The leases, by instance and by name.

    Parameters
    ----------
    owners : Owners
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._of: dict[str, dict[str, SharedLease]] = {}
        self._unheard: set[SharedLease] = set()

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, lease: SharedLease) -> None:
        """One more."""
        self._of.setdefault(lease.name, {})[lease.gid] = lease

    def on(self, name: str) -> list[SharedLease]:
        """Those on an instance."""
        return list(self._of.get(name, {}).values())

    def get(self, name: str, gid: str) -> SharedLease | None:
        """One of them."""
        return self._of.get(name, {}).get(gid)

    def drop(self, lease: SharedLease) -> None:
        """Its owner knows that it has ended, or there is none."""
        leases = self._of.get(lease.name)
        if leases is not None:
            leases.pop(lease.gid, None)
            if not leases:
                del self._of[lease.name]
        self._unheard.discard(lease)

    def changed(self, lease: SharedLease) -> None:
        """Something has happened to one."""
        owners = self._owners
        owner = owners.ownership.others.get(lease.name)
        peer = owners.peer(owner.router, owner.url) if owner is not None else None
        if peer is not None:
            peer.tell(lease, urgent=lease.ended is not None)
        elif lease.name not in owners.specs and lease.ended is not None:
            self.drop(lease)  # the instance is no more: nobody keeps a ledger of it

    def moved(self, name: str) -> None:
        """An instance has another owner, who is told of all requests there."""
        for lease in self.on(name):
            self._owners.forget(lease.gid)
            self.changed(lease)

    def bring_home(self, lease: SharedLease) -> None:
        """A request comes into the own ledger."""
        owners = self._owners
        self.drop(lease)
        owners.forget(lease.gid)
        if lease.ended is not None:
            return
        key = owners.driver.adopt(
            lease, lease.gid, lease.name, lease.rank, lease.context_tokens, lease.count, lease.prompt
        )
        if key is None:
            lease.taken("instance_changed")
            return
        lease.far = False
        owners.counts["brought_home"] += 1

    # -- what owners say -----------------------------------------------------------------------------------------

    def ended(self, gid: str, reason: str) -> None:
        """An owner has ended one."""
        for leases in self._of.values():
            lease = leases.get(gid)
            if lease is not None:
                lease.taken(reason)
                self.drop(lease)
                return

    async def leases_of(self, question: LeasesOf) -> list[State]:
        """A new owner asks what is under way on its instance."""
        owners = self._owners
        if question.to != owners.name:
            raise WrongRouterError(question.to)
        owners.ownership.heard(question.instance, question.router, question.epoch)
        return [lease.state() for lease in self.on(question.instance) if lease.ended is None]

    def taken(self, states: list[State], taken: StatesTaken) -> None:
        """A peer has heard what was told."""
        elsewhere = {held.instance: held for held in taken.elsewhere}
        gone = set(taken.gone)
        for state in states:
            lease = self.get(state.instance, state.gid)
            if lease is None:
                continue
            if state.instance in elsewhere:
                self._unheard.add(lease)
            elif state.gid in gone:
                lease.taken("expired")
                self.drop(lease)
            elif state.ended:
                self.drop(lease)
        for held in elsewhere.values():
            if held.router:
                self._owners.ownership.heard(held.instance, held.router, held.epoch)

    def tell_again(self) -> None:
        """Those that nobody wanted to hear of are told to whoever is the owner now."""
        unheard, self._unheard = self._unheard, set()
        for lease in unheard:
            self.changed(lease)

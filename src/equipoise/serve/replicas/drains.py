"""`Drains`: ranks that an operator has drained, at whichever router; they stay drained when their instance moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise.serve.replicas.peers import PeerError
from equipoise.serve.replicas.wire import Drain

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Drains"]


class Drains:
    """What is drained, by instance: an owner's word, or what it last said of what it owned.

    Parameters
    ----------
    owners : Owners
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._of: dict[str, set[int]] = {}

    def of(self, name: str) -> list[int]:
        """Ranks of an instance."""
        return sorted(self._of.get(name, ()))

    def learn(self) -> None:
        """Note what the owners of other instances say."""
        owners = self._owners
        for name, owner in owners.ownership.others.items():
            if owner.value and name in owners.specs:
                self._note(name, set(owners.choice.load(name).drained))

    def apply(self, name: str) -> None:
        """An instance has come into the own router."""
        owners = self._owners
        i = owners.driver.index(name)
        if i is not None:
            for rank in self.of(name):
                owners.driver.drain(i, rank)

    async def turn(self, name: str, rank: int | None, undo: bool) -> int | None:
        """Drain, or undo that, where the instance is owned; requests that run there, none: nobody answers."""
        owners = self._owners
        if owners.driver.index(name) is not None:
            return self._turn(name, rank, undo)
        owner = owners.ownership.others.get(name)
        peer = owners.peer(owner.router, owner.url) if owner is not None else None
        if peer is None:
            return None
        try:
            running = await peer.drain(Drain(peer.name, name, rank, undo))
        except PeerError:
            return None
        return running if running >= 0 else None

    async def asked(self, question: Drain) -> int:
        """A peer was told to drain something here; -1: it is not here."""
        owners = self._owners
        if question.to != owners.name or owners.driver.index(question.instance) is None:
            return -1
        width = owners.specs[question.instance].width
        if question.rank is not None and not 0 <= question.rank < width:
            return -1
        return self._turn(question.instance, question.rank, question.undo)

    def _turn(self, name: str, rank: int | None, undo: bool) -> int:
        owners = self._owners
        driver, i = owners.driver, owners.driver.index(name)
        assert i is not None
        ranks = set(range(owners.specs[name].width)) if rank is None else {rank}
        before = self._of.get(name, set())
        self._note(name, before - ranks if undo else before | ranks)
        driver.drain(i, rank, undo=undo)
        owners.beats.soon()
        view = driver.router.view()
        here = view.instance == i
        if rank is not None:
            here &= view.rank == rank
        return int(view.batch[here].sum())

    def _note(self, name: str, ranks: set[int]) -> None:
        if ranks:
            self._of[name] = ranks
        else:
            self._of.pop(name, None)

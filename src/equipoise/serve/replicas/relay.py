"""`Relay`: what a client of the decision API says of a lease that another router gave it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from equipoise.serve.replicas.peers import PeerError
from equipoise.serve.replicas.wire import Relayed

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Relay"]

PAUSE_S = 0.1


class Relay:
    """Passes it on, and takes what others pass on.

    Parameters
    ----------
    owners : Owners

    Attributes
    ----------
    take : callable
        Given what is said (``release``, ``report``, ``ranks``) and the JSON of it; how much of it was known.
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self.take: Callable[[str, bytes], int] = lambda what, body: 0

    def owner(self, instance: str) -> str:
        """Name of the router that owns an instance; empty: nobody is known."""
        return self._owners.held(instance).router

    def width(self, instance: str) -> int:
        """Its ranks."""
        return self._owners.specs[instance].width

    async def send(self, router: str, what: str, body: bytes, *, again: bool) -> int:
        """Pass it on to a router; how much of it was known there: nothing, if it is no more.

        Parameters
        ----------
        router : str
        what : str
        body : bytes
        again : bool
            Whether it may be said twice: it is until `Timing.hold_s` is over.

        Raises
        ------
        PeerError
            The router does not answer.
        """
        owners = self._owners
        end_s = owners.now_s() + owners.timing.hold_s
        owners.counts["relayed"] += 1
        while True:
            peer = owners.peer(router) if router != owners.name else None
            if peer is None:
                return 0
            try:
                return await peer.relay(Relayed(router, what, body))
            except PeerError:
                if owners.ownership.up and router not in owners.ownership.members:
                    return 0
                if not again or owners.now_s() >= end_s:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def asked(self, question: Relayed) -> int:
        """A peer passes something on."""
        return self.take(question.what, question.body) if question.to == self._owners.name else 0

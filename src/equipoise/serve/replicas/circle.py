"""`Circle`: the other routers this one speaks to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp

from equipoise.serve.replicas.peers import Peer
from equipoise.serve.replicas.wire import Places

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Circle"]


class Circle:
    """Peers by name.

    Parameters
    ----------
    owners : Owners
    """

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self.of: dict[str, Peer] = {}
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Calls can be made from now on."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )

    @property
    def untold(self) -> int:
        """News that those who answer have not confirmed."""
        return sum(peer.untold for peer in self.of.values() if not peer.suspect)

    def peer(self, router: str, url: str = "") -> Peer | None:
        """One of them; none if its address is not known."""
        owners = self._owners
        url = url or owners.ownership.members.get(router, "")
        peer = self.of.get(router)
        if peer is not None and (not url or peer.url == url.rstrip("/")):
            return peer
        if not url or self._session is None:
            return None
        if peer is not None:
            peer.close()
        peer = self.of[router] = Peer(
            (owners.name, owners.ownership.url),
            router,
            url,
            self._session,
            owners.timing,
            lambda: owners.beats.secret,
            self._places,
            lambda peer, states, taken: owners.far.taken(states, taken),
        )
        return peer

    def forget(self, gid: str) -> None:
        """Nobody is to be told of a request any more."""
        for peer in self.of.values():
            peer.forget(gid)

    async def close(self) -> None:
        """Call nobody."""
        for peer in self.of.values():
            peer.close()
        if self._session is not None:
            await self._session.close()

    def _places(self, peer: Peer, places: Places) -> None:
        self._owners.choice.heard(places.loads, self._owners.now_s())

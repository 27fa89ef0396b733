"""`Beats`: what a router says to the store again and again, and what it may do before it has said it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from equipoise.serve.replicas.store import Beat, Store, StoreError
from equipoise.serve.replicas.wire import encode

if TYPE_CHECKING:
    from equipoise.serve.replicas.owners import Owners

__all__ = ["Beats"]

_log = logging.getLogger(__name__)


class Beats:
    """The beat of one router.

    Parameters
    ----------
    owners : Owners
    store : Store
    secret : str
        What routers show each other; empty: the store keeps one, or this router's if it has none.
    """

    def __init__(self, owners: Owners, store: Store, secret: str) -> None:
        self._owners, self._store = owners, store
        self._configured, self.secret = bool(secret), secret or secrets.token_urlsafe(24)
        self._let_in = self._configured
        self._beaten = asyncio.Event()
        self.closed = False

    def key(self) -> str:
        """What a peer has to show; empty: nobody is let in yet."""
        return self.secret if self._let_in else ""

    def soon(self) -> None:
        """Have what has changed published at once."""
        self._owners.spawn(self.once())

    async def run(self) -> None:
        """Until `closed`."""
        owners = self._owners
        while not self.closed:  # client libraries have been seen to swallow a cancellation
            began_s = owners.now_s()
            try:
                await self.once()
            except Exception:  # a bug of ours must not end the leases
                _log.exception("a beat failed")
            await asyncio.sleep(max(owners.timing.beat_s - (owners.now_s() - began_s), 0.0))

    async def once(self) -> None:
        """Say what is wanted and hear what is."""
        owners, ownership = self._owners, self._owners.ownership
        values = {name: encode(load) for name, load in owners.loads().items()}
        sent_s = owners.now_s()
        beat = ownership.beat(sent_s, self.secret, values)
        try:
            seen = await self._store.beat(beat)
        except StoreError as error:
            ownership.failed(error, sent_s, owners.now_s())
        else:
            if not self._configured:
                self.secret, self._let_in = seen.secret, True
            ownership.seen(beat, seen, sent_s, owners.now_s())
        self._beaten.set()
        owners.beaten(sent_s)

    async def last(self) -> None:
        """Say that this router is gone."""
        owners = self._owners
        owners.ownership.leaving = True
        beat = owners.ownership.beat(owners.now_s(), self.secret, {})
        gone = Beat(beat.router, "", beat.ttl_s, beat.grace_s, beat.secret, beat.wishes)
        with contextlib.suppress(StoreError):
            await self._store.beat(gone)

    async def awake(self) -> None:
        """Go on at once; after a pause of this process only when the store has said what became of its leases.

        A store that does not answer is no pause: its owners go on.
        """
        owners = self._owners
        if not owners.ownership.asleep(owners.now_s()):
            return
        owners.counts["woken"] += 1
        end_s = owners.now_s() + owners.timing.hold_s
        while owners.ownership.asleep(owners.now_s()) and owners.now_s() < end_s:
            self._beaten.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._beaten.wait(), owners.timing.beat_s)

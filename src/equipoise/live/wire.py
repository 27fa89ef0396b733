"""A client of HTTP/1.1 that stamps every piece of an answer the moment the event loop hands it over.

The streams of a barrier all bring a token at the same moment. A client that wakes a task for each of them stamps the
last one when all others have been served; this one reads the clock first and does the work afterwards. It speaks only
what a load generator needs: one request at a time on a connection, no redirects, no compression, no proxies.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import cast
from urllib.parse import urlsplit

from equipoise.engines.tls_words import tls_words
from equipoise.live.answer_reader import AnswerReader, Sink
from equipoise.live.tls import tls_context

__all__ = ["Connection", "Connections"]

KEEP_ALIVE_S = 3.0
"""An idle connection is used again for so long; servers close theirs after 5 s, and a request must not meet that."""


class Connection(asyncio.Protocol):
    """One connection, and the answer that is read on it."""

    def __init__(self, home: Connections, key: tuple[str, int, bool]) -> None:
        self._home, self._key = home, key
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None
        self.idle_since_s = 0.0

    def ask(self, request: bytes, sink: Sink) -> float:
        """Send a request; the time it was handed to the system."""
        assert self._transport is not None
        self._reader = AnswerReader(sink)
        at_s = time.monotonic()
        self._transport.write(request)
        return at_s

    @property
    def usable(self) -> bool:
        """Whether it may be used again."""
        return self._transport is not None and not self._transport.is_closing()

    def drop(self) -> None:
        """Close it at once: the engine sees that nobody listens."""
        self._reader = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        at_s = time.monotonic()
        reader = self._reader
        if reader is None:  # nobody asked
            self.drop()
            return
        reader.feed(data, at_s)
        if reader.done:
            self._reader = None
            if reader.reusable and self.usable:
                self._home.give_back(self, self._key)
            elif self._transport is not None:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        reader, self._reader, self._transport = self._reader, None, None
        if reader is not None:
            reader.closed(time.monotonic())
        self._home.forget(self, self._key)


class Connections:
    """Connections by address; those that are idle are used again.

    Parameters
    ----------
    tls : ssl.SSLContext, optional
        For ``https`` addresses; by default one that believes whom the system believes.
    connect_s : float
        How long connecting may take.
    """

    def __init__(self, tls: ssl.SSLContext | None = None, connect_s: float = 10.0) -> None:
        self._connect_s = connect_s
        self._idle: dict[tuple[str, int, bool], list[Connection]] = {}
        self._tls = tls

    async def take(self, url: str) -> Connection:
        """A connection to an address; raises `OSError` where there is none to be had in time."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        key = (parts.hostname or "", parts.port or (443 if tls else 80), tls)
        idle = self._idle.get(key, [])
        while idle:
            found = idle.pop()
            if found.usable and time.monotonic() - found.idle_since_s < KEEP_ALIVE_S:
                return found
            found.drop()
        if tls and self._tls is None:
            self._tls = tls_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, made = await loop.create_connection(
                    lambda: Connection(self, key), key[0], key[1], ssl=self._tls if tls else None
                )
        except TimeoutError as error:
            raise OSError(f"no connection within {self._connect_s:g} s") from error
        except ssl.SSLError as error:
            raise OSError(tls_words(error)) from error
        return made

    def give_back(self, connection: Connection, key: tuple[str, int, bool]) -> None:
        """Its answer is read."""
        connection.idle_since_s = time.monotonic()
        self._idle.setdefault(key, []).append(connection)

    def forget(self, connection: Connection, key: tuple[str, int, bool]) -> None:
        """It has ended."""
        idle = self._idle.get(key)
        if idle and connection in idle:
            idle.remove(connection)

    def close(self) -> None:
        """Close those that are idle."""
        for idle in self._idle.values():
            for connection in list(idle):
                connection.drop()
        self._idle.clear()

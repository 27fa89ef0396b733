"""A client of HTTP/1.1 that stamps every piece of an answer the moment the event loop hands it over.

The streams of a barrier all bring a token at the same moment. A client that wakes a task for each of them stamps the
last one when all others have been served; this one reads the clock first and does the work afterwards. It speaks only
what a load generator needs: one request at a time on a connection, no redirects, no compression, no proxies.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import Protocol, cast
from urllib.parse import urlsplit

__all__ = ["AnswerReader", "Connection", "Connections", "Sink"]

KEEP_ALIVE_S = 3.0
"""An idle connection is used again for so long; servers close theirs after 5 s, and a request must not meet that."""
MAX_HEAD_BYTES = 64 << 10
MAX_LINE_BYTES = 4096
HEX = frozenset(b"0123456789abcdefABCDEF")


class Sink(Protocol):
    """Who takes an answer."""

    def head(self, status: int) -> None:
        """The headers are in."""

    def piece(self, data: bytes, at_s: float) -> None:
        """Bytes of the body, and when they came."""

    def over(self, how: str, at_s: float) -> None:
        """Nothing more comes: ``complete``, ``reset`` or ``unreadable``; called once."""


class AnswerReader:
    """Reads one answer, however its bytes are cut; sans I/O.

    Parameters
    ----------
    sink : Sink

    Attributes
    ----------
    done : bool
        Whether the sink has been told that it is over.
    begun : bool
        Whether a byte has come.
    reusable : bool
        Once done: whether the connection may carry another request.
    """

    __slots__ = ("_close", "_held", "_left", "_sink", "_state", "begun", "done", "reusable")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = b""
        self._state: Callable[[bytes, float], int] = self._head
        self._left = 0
        self._close = False
        self.done = self.begun = self.reusable = False

    def feed(self, data: bytes, at_s: float) -> None:
        """Take the next bytes."""
        self.begun = True
        if self._held:
            data = self._held + data
            self._held = b""
        at = 0
        while at < len(data) and not self.done:
            rest = data[at:] if at else data
            used = self._state(rest, at_s)
            if used == 0:
                self._held = rest
                return
            at += used
        if at < len(data):  # more than one answer to one request
            self.reusable = False

    def closed(self, at_s: float) -> None:
        """The connection has ended."""
        if self.done:
            return
        whole = self._state == self._until_closed
        self._end("complete" if whole else "reset", at_s)
        self.reusable = False

    # Each takes from the beginning of what there is and says how much it used; 0: it needs more.

    def _head(self, data: bytes, at_s: float) -> int:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
                return self._broken(data, at_s)
            return 0
        lines = data[:end].split(b"\r\n")
        first = lines[0].split(b" ", 2)
        if (
            len(first) < 2
            or not first[0].startswith(b"HTTP/1.")
            or len(first[1]) != 3
            or not first[1].isdigit()
        ):
            return self._broken(data, at_s)
        status = int(first[1])
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon:
                return self._broken(data, at_s)
            headers[name.strip().lower()] = value.strip().lower()
        if 100 <= status < 200:
            return end + 4
        self._close = headers.get(b"connection") == b"close" or first[0] == b"HTTP/1.0"
        self._sink.head(status)
        length = headers.get(b"content-length", b"")
        if headers.get(b"transfer-encoding", b"").endswith(b"chunked"):
            self._state = self._chunk
        elif status in (204, 304):
            self._end("complete", at_s)
        elif length:
            if not length.isdigit() or len(length) > 15:
                return self._broken(data, at_s)
            self._left = int(length)
            self._state = self._body
            if self._left == 0:
                self._end("complete", at_s)
        else:
            self._state = self._until_closed
        return end + 4

    def _body(self, data: bytes, at_s: float) -> int:
        piece = data[: self._left]
        self._left -= len(piece)
        self._sink.piece(piece, at_s)
        if self._left == 0:
            self._end("complete", at_s)
        return len(piece)

    def _until_closed(self, data: bytes, at_s: float) -> int:
        self._sink.piece(data, at_s)
        return len(data)

    def _chunk(self, data: bytes, at_s: float) -> int:
        """A whole chunk at once if it is there; its beginning is handed on if it is a long one."""
        end = data.find(b"\r\n", 0, MAX_LINE_BYTES)
        if end < 0:
            return self._broken(data, at_s) if len(data) >= MAX_LINE_BYTES or data[0] not in HEX else 0
        line = data[:end].partition(b";")[0].strip()
        if not 0 < len(line) < 16 or not HEX.issuperset(line):
            return self._broken(data, at_s)
        size = int(line, 16)
        begin = end + 2
        if size == 0:
            self._state = self._trailer
            return begin
        if len(data) >= begin + size + 2:
            if data[begin + size : begin + size + 2] != b"\r\n":
                return self._broken(data, at_s)
            self._sink.piece(data[begin : begin + size], at_s)
            return begin + size + 2
        self._left = size
        self._state = self._in_chunk
        return begin

    def _in_chunk(self, data: bytes, at_s: float) -> int:
        if self._left > 0:
            piece = data[: self._left]
            self._left -= len(piece)
            self._sink.piece(piece, at_s)
            return len(piece)
        if len(data) < 2:
            return 0
        if data[:2] != b"\r\n":
            return self._broken(data, at_s)
        self._state = self._chunk
        return 2

    def _trailer(self, data: bytes, at_s: float) -> int:
        end = data.find(b"\r\n")
        if end < 0:
            return self._broken(data, at_s) if len(data) > MAX_LINE_BYTES else 0
        if end == 0:
            self._end("complete", at_s)
        return end + 2

    def _broken(self, data: bytes, at_s: float) -> int:
        self._close = True
        self._end("unreadable", at_s)
        return len(data)

    def _end(self, how: str, at_s: float) -> None:
        if not self.done:
            self.done = True
            self.reusable = how == "complete" and not self._close
            self._sink.over(how, at_s)


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
    connect_s : float
        How long connecting may take.
    """

    def __init__(self, connect_s: float = 10.0) -> None:
        self._connect_s = connect_s
        self._idle: dict[tuple[str, int, bool], list[Connection]] = {}
        self._tls: ssl.SSLContext | None = None

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
            self._tls = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, made = await loop.create_connection(
                    lambda: Connection(self, key), key[0], key[1], ssl=self._tls if tls else None
                )
        except TimeoutError as error:
            raise OSError(f"no connection within {self._connect_s:g} s") from error
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

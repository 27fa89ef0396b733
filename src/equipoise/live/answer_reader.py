"""One answer of HTTP/1.1, read as its bytes come; sans I/O.

It reads what a load generator needs: chunks, lengths, or until the connection ends; no compression, no upgrades.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["AnswerReader", "Sink"]

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

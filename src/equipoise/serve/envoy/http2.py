"""As much HTTP/2 as a gRPC peer needs that streams messages to us: frames, windows, no headers read.

A general gRPC server costs half a millisecond of Python a request, in threads and completion queues; this one handles
what has come in one call a read. It decodes no header block: what a stream is about shows in its first message. The
peer is Envoy, on loopback or a socket file; whatever it sends, the worst is that its connection ends.

RFC 9113 (frames, windows), RFC 7541 (the two header blocks sent), the gRPC protocol over HTTP/2 (five bytes before each
message).
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

__all__ = ["Call", "Connection", "Handler"]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM, ACK, END_HEADERS, PADDED = 0x1, 0x1, 0x4, 0x8
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, REFUSED_STREAM, CANCEL = 1, 3, 7, 8

MOST_MESSAGE_BYTES = 64 << 20
FRAME_BYTES = 1 << 20
"""Largest frame we take; the peer takes 16 KiB unless it says otherwise."""
STREAM_WINDOW = 1 << 24
CONNECTION_WINDOW = (1 << 31) - 1
MOST_STREAMS = 100_000
MOST_UNSENT_BYTES = 1 << 28
"""A peer that opens no window is not waited for beyond this."""


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return b"%b%c%c%b%b" % (len(payload).to_bytes(3), kind, flags, stream.to_bytes(4), payload)


HELLO = _frame(
    SETTINGS,
    0,
    0,
    struct.pack(
        ">HIHIHIHI", 1, 0, 3, MOST_STREAMS, 4, STREAM_WINDOW, 5, FRAME_BYTES
    ),  # header table, streams at once, window of a stream, frame
) + _frame(WINDOW_UPDATE, 0, 0, (CONNECTION_WINDOW - 65_535).to_bytes(4))
RESPONSE_BLOCK = b"\x88\x0f\x10\x10application/grpc"
"""``:status: 200`` and ``content-type``, both by their number in the static table."""
TRAILER_BLOCK = b"\x00\x0bgrpc-status\x010"


class Handler(Protocol):
    """What a call is answered by."""

    def message(self, data: bytes) -> None:
        """A message has come whole."""
        ...

    def closed(self) -> None:
        """The peer has ended or dropped the call, or is gone; once."""
        ...


class Call:
    """A stream of messages in both directions."""

    __slots__ = ("_begun", "_connection", "_parts", "_size", "_unsent", "consumed", "handler", "id", "window")

    def __init__(self, connection: Connection, number: int, window: int) -> None:
        self._connection, self.id, self.window = connection, number, window
        self._parts: list[bytes] = []
        self._size = 0
        self._begun = False
        self._unsent: deque[bytes] = deque()
        self.consumed = 0
        self.handler: Handler | None = None

    @property
    def open(self) -> bool:
        """Whether it can still be answered."""
        return self.id in self._connection.calls

    def send(self, message: bytes) -> None:
        """Answer with a message; nothing happens if the call is over."""
        if not self.open:
            return
        connection = self._connection
        size = len(message) + 5
        plain = b"\0%b%b" % (len(message).to_bytes(4), message)
        head = b"" if self._begun else _frame(HEADERS, END_HEADERS, self.id, RESPONSE_BLOCK)
        self._begun = True
        if not self._unsent and size <= min(self.window, connection.window, connection.frame_bytes):
            self.window -= size
            connection.window -= size
            connection.write(head + _frame(DATA, 0, self.id, plain))
            return
        if head:
            connection.write(head)
        self._unsent.append(plain)
        connection.unsent_bytes += size
        if connection.unsent_bytes > MOST_UNSENT_BYTES:
            connection.fail(FLOW_CONTROL_ERROR)
            return
        self.flush()

    def flush(self) -> None:
        """Send what the windows allow."""
        connection = self._connection
        while self._unsent:
            first = self._unsent[0]
            size = min(len(first), self.window, connection.window, connection.frame_bytes)
            if size <= 0:
                connection.blocked.add(self)
                return
            self.window -= size
            connection.window -= size
            connection.unsent_bytes -= size
            connection.write(_frame(DATA, 0, self.id, first[:size]))
            if size == len(first):
                self._unsent.popleft()
            else:
                self._unsent[0] = first[size:]
        connection.blocked.discard(self)

    def end(self) -> None:
        """End the call with status 0, from our side."""
        if self.open:
            head = b"" if self._begun else _frame(HEADERS, END_HEADERS, self.id, RESPONSE_BLOCK)
            self._connection.write(head + _frame(HEADERS, END_HEADERS | END_STREAM, self.id, TRAILER_BLOCK))
            self.drop()

    def reset(self, code: int = CANCEL) -> None:
        """End it at once."""
        if self.open:
            self._connection.write(_frame(RST_STREAM, 0, self.id, code.to_bytes(4)))
            self.drop()

    def drop(self) -> None:
        """Forget it, and tell its handler."""
        connection = self._connection
        if connection.calls.pop(self.id, None) is None:
            return
        connection.blocked.discard(self)
        connection.unsent_bytes -= sum(map(len, self._unsent))
        self._unsent.clear()
        self._parts.clear()
        if self.handler is not None:
            self.handler.closed()

    def take(self, data: bytes) -> None:
        """Bytes of messages; each one that is whole is handed on."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            first = self._parts[0]
            if len(first) >= 5 and self._size < 5 + int.from_bytes(first[1:5]):
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, end = 0, len(data)
        handler = self.handler
        while end - at >= 5:
            size = int.from_bytes(data[at + 1 : at + 5])
            if data[at] or size > MOST_MESSAGE_BYTES:  # compressed, which nobody agreed to, or too long
                self.reset()
                return
            if end - at < 5 + size:
                break
            at += 5 + size
            if handler is not None:
                handler.message(data[at - size : at])
                if not self.open:
                    return
        if at < end:
            self._parts.append(data[at:] if at else data)
            self._size = end - at


class Connection(asyncio.Protocol):
    """One peer.

    Parameters
    ----------
    accept : callable
        Makes the handler of a new call.
    on_lost : callable, optional
        Told when the connection is gone.
    """

    def __init__(
        self, accept: Callable[[Call], Handler], on_lost: Callable[[Connection], None] | None = None
    ) -> None:
        self.calls: dict[int, Call] = {}
        self.blocked: set[Call] = set()
        self.window, self.frame_bytes = 65_535, 16_384
        self.unsent_bytes = 0
        self._accept, self._on_lost = accept, on_lost
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._greeted = False
        self._last = 0
        self._continues = False
        self._call_window = 65_535
        self._consumed = 0
        self._out: list[bytes] = []
        self._reading = False
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say what we take."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(HELLO)

    def connection_lost(self, error: Exception | None) -> None:
        """All its calls are over."""
        self._transport = None
        for call in list(self.calls.values()):
            call.drop()
        if self._on_lost is not None:
            self._on_lost(self)

    def write(self, data: bytes) -> None:
        """Send, together with what else this turn of the loop has to send."""
        if not self._out and not self._reading:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport is not None:
            self._transport.write(b"".join(out))

    def fail(self, code: int = PROTOCOL_ERROR) -> None:
        """The peer breaks the protocol: say so and hang up."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.write(_frame(GOAWAY, 0, 0, self._last.to_bytes(4) + code.to_bytes(4)))
            transport.close()

    def close(self) -> None:
        """Hang up."""
        self.fail(0)

    def data_received(self, data: bytes) -> None:
        """Take what has come, frame by frame."""
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        if not self._greeted:
            if data[:24] != PREFACE[:end]:
                self.fail()
                return
            if end < 24:
                self._rest = data
                return
            self._greeted, at = True, 24
        self._reading = True
        try:
            while end - at >= 9:
                size = int.from_bytes(data[at : at + 3])
                stop = at + 9 + size
                if size > FRAME_BYTES:
                    self.fail()
                if stop > end or self._transport is None:
                    break
                stream = int.from_bytes(data[at + 5 : at + 9]) & 0x7FFFFFFF
                self._take(data[at + 3], data[at + 4], stream, data[at + 9 : stop])
                at = stop
        finally:
            self._reading = False
        self._rest = data[at:]
        self._flush()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._continues != (kind == CONTINUATION):
            self.fail()
        elif kind == DATA:
            self._data(flags, stream, payload)
        elif kind in (HEADERS, CONTINUATION):
            self._continues = not flags & END_HEADERS
            if kind == HEADERS:
                self._headers(flags, stream)
        elif kind == WINDOW_UPDATE and len(payload) == 4:
            self._wider(stream, int.from_bytes(payload) & 0x7FFFFFFF)
        elif kind == RST_STREAM:
            call = self.calls.get(stream)
            if call is not None:
                call.drop()
        elif kind == SETTINGS:
            if not flags & ACK:
                self._settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self.write(_frame(PING, ACK, 0, payload[:8].ljust(8, b"\0")))
        elif kind == PUSH_PROMISE:
            self.fail()
        # PRIORITY, GOAWAY and kinds to come say nothing we act on

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        self._consumed += len(payload)
        if self._consumed >= STREAM_WINDOW:
            self.write(_frame(WINDOW_UPDATE, 0, 0, self._consumed.to_bytes(4)))
            self._consumed = 0
        call = self.calls.get(stream)
        if call is None:
            if stream > self._last or not stream:
                self.fail()
            return  # it was over before its bytes came
        call.consumed += len(payload)
        if call.consumed >= STREAM_WINDOW // 4 and not flags & END_STREAM:
            self.write(_frame(WINDOW_UPDATE, 0, stream, call.consumed.to_bytes(4)))
            call.consumed = 0
        if flags & PADDED:
            if not payload or payload[0] >= len(payload):
                self.fail()
                return
            payload = payload[1 : len(payload) - payload[0]]
        if payload:
            call.take(payload)
        if flags & END_STREAM:
            call.end()

    def _headers(self, flags: int, stream: int) -> None:
        call = self.calls.get(stream)
        if call is not None:  # the peer's trailers
            call.end()
        elif stream <= self._last:
            return  # of a call that is over
        elif not stream & 1:
            self.fail()
        else:
            self._last = stream
            call = Call(self, stream, self._call_window)
            self.calls[stream] = call
            if len(self.calls) > MOST_STREAMS:
                call.reset(REFUSED_STREAM)
                return
            call.handler = self._accept(call)
            if flags & END_STREAM:
                call.end()

    def _wider(self, stream: int, by: int) -> None:
        if stream:
            call = self.calls.get(stream)
            if call is not None:
                call.window += by
                call.flush()
            return
        self.window += by
        if self.window > CONNECTION_WINDOW:
            self.fail(FLOW_CONTROL_ERROR)
            return
        for call in list(self.blocked):
            call.flush()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload) - 5, 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == 4 and value <= CONNECTION_WINDOW:
                change, self._call_window = value - self._call_window, value
                for call in list(self.calls.values()):
                    call.window += change
                    call.flush()
            elif name == 5 and 16_384 <= value < 1 << 24:
                self.frame_bytes = min(value, FRAME_BYTES)
        self.write(_frame(SETTINGS, ACK, 0))

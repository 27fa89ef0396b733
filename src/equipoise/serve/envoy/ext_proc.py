"""`PickerServer`: Envoy's external processor and its access log on one gRPC address.

The lease of a request ends when its stream does, and nowhere else: the end of the stream is the one event that Envoy
promises for requests that finish, that a client leaves, that an engine drops. It is so with a buffered request body and
response trailers asked for (`equipoise.serve.envoy.config` writes that); with other modes Envoy closes it early.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from pathlib import Path

from equipoise.errors import InputError
from equipoise.serve.envoy import access_log, messages
from equipoise.serve.envoy.held import Held, Refusal
from equipoise.serve.envoy.http2 import Call, Connection, Handler
from equipoise.serve.envoy.options import socket_of
from equipoise.serve.envoy.picker import Picker

__all__ = ["PickerServer"]

_log = logging.getLogger(__name__)

BACKLOG = 1024
KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2))
"""An Envoy whose machine is gone is noticed within half a minute: its requests hold no leases."""


class PickerServer:
    """Serves a picker.

    Parameters
    ----------
    picker : Picker
    address : str
        ``HOST:PORT`` (port 0: any free one) or ``unix:PATH``.
    sign_of_life_s : float
        How often open streams are told to the router as alive; well below ``Settings.lease_ttl_s``.

    Raises
    ------
    InputError
        The address cannot be used.
    """

    def __init__(
        self, picker: Picker, address: str = "127.0.0.1:9100", *, sign_of_life_s: float = 60.0
    ) -> None:
        self.picker, self.address = picker, address
        self._socket = socket_of(address, "--picker", port_0=True)
        picker.encode_with(messages.sent_on)
        self._sign_of_life_s = sign_of_life_s
        self._life: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()

    async def start(self) -> None:
        """Listen; `address` then has the real port. A second picker on the address is refused, not given a share."""
        loop, path = asyncio.get_running_loop(), self._socket.path
        try:
            if path:
                self._server = await loop.create_unix_server(self._accept, path, backlog=BACKLOG)
            else:
                host, port = self._socket.host, self._socket.port
                self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            raise InputError(
                f"cannot listen on {self.address} ({error.strerror or error})".lower(),
                where="--picker",
                fix="is another picker running there? choose another address",
            ) from error
        if not path:
            port = self._server.sockets[0].getsockname()[1]
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        self._life = asyncio.create_task(self._signs())

    async def close(self) -> None:
        """Hang up; what Envoy carries it carries to its end."""
        if self._life is not None:
            self._life.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        self.picker.close()
        if self._socket.path:
            Path(self._socket.path).unlink(missing_ok=True)

    async def __aenter__(self) -> PickerServer:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def _accept(self) -> Connection:
        connection = _Peer(lambda call: _Unknown(self.picker, call), self._connections.discard)
        self._connections.add(connection)
        return connection

    async def _signs(self) -> None:
        while True:
            await asyncio.sleep(self._sign_of_life_s)
            with contextlib.suppress(Exception):
                self.picker.sign_of_life()


class _Peer(Connection):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in KEEPALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        super().connection_made(transport)


class _Unknown:
    """A call whose first message has not come: it shows which service is meant."""

    __slots__ = ("_call", "_picker")

    def __init__(self, picker: Picker, call: Call) -> None:
        self._picker, self._call = picker, call

    def message(self, data: bytes) -> None:
        # Field 1 of a log message is who sends it, and of a processing message nothing.
        handler: Handler = (_Log if data[:1] == b"\x0a" else _Request)(self._picker, self._call)
        self._call.handler = handler
        handler.message(data)

    def closed(self) -> None:
        pass


class _Log:
    """One Envoy's access log."""

    __slots__ = ("_call", "_picker")

    def __init__(self, picker: Picker, call: Call) -> None:
        self._picker, self._call = picker, call
        picker.logging += 1

    def message(self, data: bytes) -> None:
        try:
            access_log.take(self._picker, data)
        except messages.DecodeError:
            self._picker.counts["odd_message"] += 1
            self._call.reset()

    def closed(self) -> None:
        self._picker.logging -= 1


class _Request:
    """One request of a client."""

    __slots__ = ("_call", "_held", "_picker", "_placing")

    def __init__(self, picker: Picker, call: Call) -> None:
        self._picker, self._call = picker, call
        self._held: Held | None = None
        self._placing: asyncio.Task[None] | None = None

    def message(self, data: bytes) -> None:
        picker, call, held = self._picker, self._call, self._held
        try:
            message = messages.read(data)
        except messages.DecodeError:
            picker.counts["odd_message"] += 1
            call.reset()
            return
        kind = message.WhichOneof("request")
        if kind == "request_headers" and held is None:
            headers = message.request_headers
            begun = picker.begin(messages.header_map(headers), bodyless=headers.end_of_stream)
            if isinstance(begun, Refusal):
                call.send(messages.immediate(begun))
                call.end()
            else:
                self._held = begun
                call.send(messages.HEADERS_OK)
        elif kind == "request_body" and held is not None and self._placing is None:
            self._placing = asyncio.ensure_future(self._place(held, message.request_body.body))
        elif kind == "response_headers":
            if held is not None:
                _answered(picker, held, messages.header_map(message.response_headers))
            call.send(messages.RESPONSE_OK)
        elif kind == "response_trailers":
            call.send(messages.TRAILERS_OK)
        else:  # Envoy is set up in another way than our configuration does it: it goes without us
            picker.counts["odd_message"] += 1
            call.reset()

    async def _place(self, held: Held, body: bytes) -> None:
        call = self._call
        try:
            placed = await self._picker.place(held, body)
        except Exception:  # a bug of ours: Envoy finds no endpoint and says 503
            _log.exception("a request could not be placed")
            call.reset()
            return
        if isinstance(placed, Refusal):
            call.send(messages.immediate(placed))
            call.end()
            return
        way = placed.way
        assert way is not None
        if placed.body is None:
            call.send(way.encoded)
        else:
            call.send(messages.sent_on(way.headers, placed.body))
            placed.body = None

    def closed(self) -> None:
        if self._placing is not None:
            self._placing.cancel()
        held, self._held = self._held, None
        if held is not None:
            self._picker.gone(held)


def _answered(picker: Picker, held: Held, headers: dict[str, str]) -> None:
    status = headers.get(":status", "")
    picker.answered(held, int(status) if status.isdigit() else 0, "x-envoy-upstream-service-time" in headers)

"""The HTTP edge: aiohttp's parser and connections, with limits of our own and answers that repeat nothing they got.

What cannot be framed without doubt is refused with 400 and the connection closed: both a length and an encoding, two
lengths, two hosts, an unknown transfer encoding. aiohttp's parser refuses most of it; what it would let pass is checked
here. Requests are told apart by their raw path only, whatever the Host says.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from equipoise.serve.answers import refusal
from equipoise.serve.quiet import QuietLog

__all__ = ["Edge", "Handler", "Limits", "Routes"]

_log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]
Routes = Mapping[str, Mapping[str, Handler]]
"""Path to method to handler: what is not in it is not served."""

METHODS = ("GET", "POST")
HOST = re.compile(r"[A-Za-z0-9._~%:\[\]-]{1,255}\Z")
ONCE = {
    name: 1 << k
    for k, name in enumerate(
        (
            b"host",
            b"content-length",
            b"transfer-encoding",
            b"upgrade",
            b"authorization",
            b"content-type",
            b"expect",
        )
    )
}
"""Headers of which a second one has no meaning, so that whoever sends it hopes that two servers read it differently."""
HOST_BIT, LENGTH, CODING, UPGRADE = (1 << k for k in range(4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may make us hold.

    Parameters
    ----------
    header_bytes : int
        Of one request, all headers and the first line together: more is answered with 431.
    headers : int
        How many.
    body_bytes : int
        Of one request: more is answered with 413.
    bodies_bytes : int
        Of all requests whose bodies are held: more is answered with 429.
    connections : int
        More are closed at once, with 503.
    idle_s : float
        How long a connection may stand idle or take to send its headers.
    """

    header_bytes: int = 16 << 10
    headers: int = 100
    body_bytes: int = 32 << 20
    bodies_bytes: int = 1 << 30
    connections: int = 16_384
    idle_s: float = 75.0


_BITS: dict[bytes, int] = {}
MOST_NAMES = 4096


def _bit(name: bytes) -> int:
    """Its place among `ONCE`, 0: it may be there several times."""
    bit = ONCE.get(name.lower(), 0)
    if len(_BITS) < MOST_NAMES:
        _BITS[name] = bit
    return bit


class Edge(web.Server):
    """Answers the connections of one port.

    Parameters
    ----------
    routes : mapping of str to mapping of str to handler
        Path to method to handler.
    limits : Limits
    on_refused : callable, optional
        Told the reason of every refusal made here.
    """

    def __init__(
        self, routes: Routes, limits: Limits, on_refused: Callable[[str], None] | None = None
    ) -> None:
        super().__init__(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            logger=_log,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
            max_headers=limits.headers,
            keepalive_timeout=limits.idle_s,
            lingering_time=1.0,
            auto_decompress=False,
        )
        self.routes, self.limits = routes, limits
        self.quiet = QuietLog(_log)
        self.water: tuple[int, int] | None = None
        self.on_refused = on_refused or (lambda reason: None)

    def __call__(self) -> RequestHandler:
        """A protocol for one more connection."""
        return _Connection(self, loop=self._loop, **self._kwargs)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        problem = self._problem(request)
        if problem is not None:
            status, reason, words = problem
            self.on_refused(reason)
            return refusal(status, reason, words, close=True)
        if request.method not in METHODS:
            self.on_refused("method")
            return refusal(405, "method", "this method is not served", close=True)
        methods = self.routes.get(path)
        if methods is None:
            self.on_refused("no_route")
            return refusal(404, "no_route", "this path is not served")
        handler = methods.get(request.method)
        if handler is None:
            self.on_refused("method")
            answer = refusal(405, "method", "this path takes other methods", close=True)
            answer.headers["Allow"] = ", ".join(sorted(methods))
            return answer
        return await handler(request, path)

    def _problem(self, request: web.BaseRequest) -> tuple[int, str, str] | None:
        size, seen, bits = len(request.raw_path) + 20, 0, _BITS
        for name, value in request.raw_headers:
            size += len(name) + len(value) + 4
            once = bits.get(name)
            if once is None:
                once = _bit(name)
            if once:
                if seen & once:
                    return 400, "framing", "a header stands there twice that may be there once"
                seen |= once
        if size > self.limits.header_bytes:
            return 431, "headers", f"headers are limited to {self.limits.header_bytes} bytes"
        if seen & CODING:
            if seen & LENGTH:
                return 400, "framing", "there are both Content-Length and Transfer-Encoding"
            coding = request.headers["Transfer-Encoding"]
            if coding.strip().lower() != "chunked" or request.version < (1, 1):
                return 400, "framing", "the only Transfer-Encoding is chunked, in HTTP/1.1"
        if not seen & HOST_BIT:
            if request.version >= (1, 1):
                return 400, "framing", "there is no Host"
        elif not HOST.match(request.headers["Host"]):
            return 400, "framing", "the Host is none"
        if seen & UPGRADE:
            return 400, "upgrade", "no other protocol is spoken here"
        return None


class _Connection(RequestHandler):
    """One connection: refuses to be one too many, and answers parse errors without repeating what was sent."""

    __slots__ = ("_counted",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        edge = self._manager
        assert isinstance(edge, Edge)
        if len(edge._connections) >= edge.limits.connections:
            edge.on_refused("connections")
            edge.quiet("connections", f"more than {edge.limits.connections} connections: refused")
            transport.write(  # type: ignore[attr-defined]
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
                b"x-equipoise-reason: connections\r\nConnection: close\r\n\r\n"
            )
            self._manager = None
            transport.close()
            return
        if edge.water is not None:
            high, low = edge.water
            transport.set_write_buffer_limits(high=high, low=low)  # type: ignore[attr-defined]
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._manager is not None:
            super().data_received(data)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        edge = self._manager
        if isinstance(exc, ConnectionError) and (self.transport is None or self.transport.is_closing()):
            raise ConnectionError("the client has left")  # while it was written to
        if status >= 500:
            _log.error("a handler failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; no second one can follow")
        if status >= 500:
            answer = refusal(500, "internal", "the router failed; its log says how", close=True)
        elif isinstance(exc, LineTooLong) or "many headers" in str(exc).lower():
            answer = refusal(431, "headers", "headers are too large", close=True)
        else:
            answer = refusal(400, "framing", "this is no HTTP/1.1 request", close=True)
        if isinstance(edge, Edge):
            edge.on_refused(answer.headers["x-equipoise-reason"])
            if status < 500:
                edge.quiet("framing", f"refused a request that cannot be parsed ({type(exc).__name__})")
        return answer

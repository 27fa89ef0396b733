"""`InternalServer`: what peers ask of a router, on an address of its own, for those who know the pool's secret."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from equipoise.serve.replicas.wire import Asks, Drain, LeasesOf, Relayed, States, Told, decode, encode

__all__ = ["InternalServer", "WrongRouterError"]

BODY_LIMIT = 16 << 20
KINDS: dict[str, Any] = {"place": Asks, "state": States, "told": Told, "leases": LeasesOf}
KINDS |= {"drain": Drain, "relay": Relayed}


class WrongRouterError(Exception):
    """Another router was meant."""


class InternalServer:
    """Serves ``POST /internal/{place,state,told,leases,drain,relay}``.

    Parameters
    ----------
    answers : mapping of str to callable
        Who answers what.
    key : callable
        The pool's secret; empty: none yet, so that nobody is let in.
    """

    def __init__(
        self, answers: dict[str, Callable[[Any], Awaitable[object]]], key: Callable[[], str]
    ) -> None:
        self._answers, self._key = answers, key
        self._runner: web.AppRunner | None = None
        self.port = 0
        self.refused = 0

    async def start(self, where: tuple[str, int] | socket.socket) -> None:
        """Serve at an address, or on a socket that listens."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_post("/internal/{what}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=75.0, shutdown_timeout=0.2)
        await self._runner.setup()
        if isinstance(where, socket.socket):
            await web.SockSite(self._runner, where).start()
        else:
            await web.TCPSite(self._runner, *where).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Serve no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        key = self._key()
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not key or not hmac.compare_digest(given, f"Bearer {key}".encode()):
            self.refused += 1
            return web.Response(status=401)
        what = request.match_info["what"]
        if what not in KINDS:
            return web.Response(status=404)
        try:
            message = decode(await request.read(), KINDS[what])
        except msgspec.MsgspecError:
            self.refused += 1
            return web.Response(status=400)
        try:
            answer = await self._answers[what](message)
        except WrongRouterError:
            return web.Response(status=409)
        return web.Response(body=encode(answer), content_type="application/msgpack")

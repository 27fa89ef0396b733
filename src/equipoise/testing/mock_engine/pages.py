"""`Pages`: what a mock engine tells beside its answers, in the shape of its kind, and how it is told to fail."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from equipoise.errors import InputError
from equipoise.testing.mock_engine.core import LockStep
from equipoise.testing.mock_engine.serving import SETTING, Serving
from equipoise.testing.mock_engine.shapes import Dynamo, Setting, Sglang, Vllm

try:
    from aiohttp import web
except ImportError as missing:
    raise ImportError("the mock engine needs aiohttp: pip install 'equipoise[serve]'") from missing

__all__ = ["Pages"]


class Pages(Serving):
    """The upper layer of `MockEngine`.

    Parameters
    ----------
    kind : str
    core : LockStep
    shape : Shape
    setting : Setting
    host : str
    **options
        Of `Serving`.
    """

    def __init__(
        self, kind: str, core: LockStep, shape: Vllm | Sglang, setting: Setting, host: str, **options: Any
    ) -> None:
        super().__init__(kind, core, shape, **options)
        self._setting, self._host = setting, host
        self._runners: list[web.AppRunner] = []

    async def _page(self, make: Callable[[], str]) -> web.Response:
        slow = self.faults.active("slow_metrics")
        if slow is not None:
            await asyncio.sleep(slow.seconds)
        down = self.faults.active("metrics_down")
        if down is not None:
            return web.Response(status=down.status)
        if not self.core.busy:
            self._publish()  # idle engines publish all the time
        if self.faults.active("bad_metrics") is not None:
            return web.Response(text='vllm:num_requests_running{engine="x"} many\n{"loads":')
        return web.Response(text=make())

    async def _metrics(self, request: web.Request) -> web.Response:
        setting: Setting = request.app[SETTING]
        if isinstance(self._shape, Dynamo):
            frontend = self._shape
            return await self._page(lambda: frontend.frontend(self._picture, self.core, setting))
        return await self._page(lambda: self._shape.metrics(self._picture, self.core, setting))

    async def _system_metrics(self, request: web.Request) -> web.Response:
        return await self._page(lambda: self._shape.metrics(self._picture, self.core, self._setting))

    async def _loads(self, request: web.Request) -> web.Response:
        shape = self._shape
        assert isinstance(shape, Sglang)
        return await self._page(
            lambda: json.dumps(shape.loads(self._picture, self.core, request.app[SETTING]))
        )

    async def _server_info(self, request: web.Request) -> web.Response:
        setting: Setting = request.app[SETTING]
        ranks = 1 if setting.rank_of_port >= 0 else setting.ranks
        return web.json_response({"dp_size": ranks, "enable_dp_attention": True, "model_path": setting.model})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._setting.model, "object": "model"}]})

    async def _health(self, request: web.Request) -> web.Response:
        if self._stalled():
            return web.Response(status=503)
        if isinstance(self._shape, Dynamo):
            return web.json_response(self._shape.health(self._setting))
        return web.Response()

    # Control

    async def _fault(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            try:
                self.faults.add_from(json.loads(await request.read()))
            except (InputError, ValueError) as error:
                return web.json_response({"error": str(error)}, status=400)
            self._break_lost()
        elif request.method == "DELETE":
            self.clear_faults(request.query.get("kind"))
        return web.json_response(self.faults.listed())

    async def _seen(self, request: web.Request) -> web.Response:
        return web.json_response({**self.seen(), "headers": list(self.headers_seen)[-50:]})

    def _app(self, setting: Setting) -> web.Application:
        app = web.Application(client_max_size=256 << 20)
        app[SETTING] = setting
        routes: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/health": self._health,
            "/seen": self._seen,
        }
        if self.kind == "sglang":
            routes |= {"/v1/loads": self._loads, "/server_info": self._server_info}
        for path, handler in routes.items():
            app.router.add_get(path, handler)
        for path in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(path, self._generate)
        if self.kind == "sglang":
            app.router.add_post("/generate", self._generate)
        app.router.add_route("*", "/fault", self._fault)
        return app

    async def _listen(self, app: web.Application, port: int) -> str:
        # A client that goes away cancels its request, and that aborts the job: engines do so too.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, self._host, port, backlog=8192)
        await site.start()
        server = site._server
        sockets: tuple[socket.socket, ...] = getattr(server, "sockets", ())
        return f"http://{self._host}:{sockets[0].getsockname()[1]}"

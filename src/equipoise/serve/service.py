"""`Service`: all parts put together, started in order, drained and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections.abc import Mapping
from typing import IO, Any

import aiohttp

from equipoise import cost as costs
from equipoise.engines import Client
from equipoise.engines.facts import GENERATING
from equipoise.policies import parse
from equipoise.router import DecisionLog
from equipoise.serve.admin import Admin, guarded
from equipoise.serve.browser import own_pages_only
from equipoise.serve.config import ServeConfig
from equipoise.serve.decide import DecideApi
from equipoise.serve.driver import Driver
from equipoise.serve.edge import Edge, Routes
from equipoise.serve.lengths import Lengths
from equipoise.serve.making import make_router, open_log, warm
from equipoise.serve.metrics import Metrics
from equipoise.serve.page import PAGE, Feed, Site
from equipoise.serve.proxy import Proxy
from equipoise.serve.public import Public
from equipoise.serve.replicas.join import internal_socket, join, pool_rows, said
from equipoise.serve.replicas.owners import Owners
from equipoise.serve.shadows import shadow_list
from equipoise.serve.sockets import BACKLOG, listen
from equipoise.serve.tally import Tally
from equipoise.serve.tokenizer import read_tokenizer
from equipoise.serve.watch import Watch
from equipoise.serve.workers import Workers

__all__ = ["Service"]

_log = logging.getLogger(__name__)

KEEP_ALIVE_S = 3.0
"""Towards engines: uvicorn closes idle connections after 5 s, and a request that meets the closing is lost."""


class Service:
    """A router with its servers, on the running loop.

    Parameters
    ----------
    config : ServeConfig
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.policy = parse(config.policy)
        shadow_list(config.shadows, "shadows")
        self.cost = costs.load(config.cost)
        self.tokenizer = read_tokenizer(config.tokenizer) if config.tokenizer is not None else None
        self.tally, self.lengths = Tally(), Lengths(self.tokenizer)
        self._log_file: IO[bytes] | None = None
        self.owners: Owners | None = None
        """The other routers before the pool; none: there is this one."""
        self._servers: list[asyncio.Server] = []
        self._edges: list[Edge] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.workers = Workers(config, lambda: self.driver.now_s(), self._changed)
        self.port = self.admin_port = 0

    @property
    def under_way(self) -> int:
        """Requests that a drain waits for."""
        return len(self.proxy.exchanges.under_way)

    def also(self) -> list[str]:
        """What else is to be said at the start."""
        return [said(self.owners, self.config.replicas)] if self.owners is not None else []

    async def start(self) -> None:
        """Bind, begin to look at the engines, and serve.

        Raises
        ------
        InputError
            A port cannot be used, or the workers make no instances.
        """
        config = self.config
        sockets = [listen(config.host, config.port, "port")]
        try:
            sockets.append(listen(config.admin_host, config.admin_port, "admin-port"))
            if config.replicas.on:
                sockets.append(internal_socket(config.replicas))
            await self._begin(sockets)
        except BaseException:
            for sock in sockets:
                sock.close()
            await self.close()
            raise

    async def _begin(self, sockets: list[socket.socket]) -> None:
        config = self.config
        await asyncio.to_thread(warm, config, self.policy, self.cost)
        sink = None
        if config.decision_log is not None:
            self._log_file = open_log(config.decision_log)
            sink = DecisionLog(self._log_file)
        self.workers.join()
        # With others before the pool it begins with nothing, and is given what it owns.
        sized = [] if config.replicas.on else self.workers.sized
        loop = asyncio.get_running_loop()
        router = make_router(
            config, self.policy, self.cost, [t.spec() for t in sized], time.monotonic(), sink
        )
        self.driver = Driver(router, sized, gather_s=config.gather_ms / 1000.0)
        self.driver.on_round = self.tally.round
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
            max_line_size=64 << 10,
            max_field_size=64 << 10,
        )
        self.polls = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)
        self.watch = Watch(
            self.driver,
            self.polls,
            self._client(config.forwarding.worker_key),
            config.polling,
            self.tally,
            clients={name: self._client(key) for name, key in config.forwarding.worker_keys.items()},
            on_sized=lambda target: self._sync(),
        )
        if config.replicas.on:
            self.owners = join(self.driver, config.replicas, sockets.pop())
            self.owners.on_owned = self.watch.renew
        self._make_handlers(loop)
        for edge, sock in zip(self._edges, sockets, strict=True):
            self._servers.append(await loop.create_server(edge, sock=sock, backlog=BACKLOG))
        self.port, self.admin_port = (sock.getsockname()[1] for sock in sockets)
        if self.owners is not None:
            await self.owners.start()
            self._sync()
        self.watch.set_targets(self.workers.targets.values())
        self._tasks.extend(self.workers.sources())

    def _make_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        config = self.config
        self.proxy = Proxy(
            self.driver,
            self.session,
            config.forwarding,
            config.timeouts,
            self.tally,
            self.lengths,
            body_limit=config.limits.body_bytes,
            bodies_limit=config.limits.bodies_bytes,
        )
        self.decide = DecideApi(self.driver, self.tally, self.lengths)
        info = {"policy": self.policy.label, "cost": config.cost, "engine": config.engine}
        self.public = Public(self.driver, self.session, config.forwarding, info, self.watch.problem)
        self.metrics = Metrics(self.driver, self.tally)
        admin = Admin(self.driver, self.public, self.metrics, self.reload)
        if self.owners is not None:
            self.decide.share(self.owners.relay, self.owners.name)
            self.public.others = functools.partial(pool_rows, self.owners, self.watch.problem)
            admin.drain_elsewhere = self.owners.drains.turn
        main = Edge(guarded(self._routes(), config.api_key, OPEN), config.limits, self.tally.refused.add)
        main.water = (config.high_water_bytes, config.low_water_bytes)
        side = Edge(self._admin_routes(admin, info), config.limits, self.tally.refused.add)
        self._edges = [main, side]

    def _admin_routes(self, admin: Admin, info: dict[str, Any]) -> Routes:
        token = self.config.admin_token
        feed = Feed(self.driver, self.tally, self.public, info, lambda: self.workers.targets.values())
        self.site = Site(feed)
        routes = guarded({**admin.routes(), **self.site.routes()}, token, OPEN | {PAGE})
        names = frozenset({self.config.admin_host.lower()}) if token is None else None
        return own_pages_only(routes, OPEN | {PAGE, "/metrics"}, names)

    def _routes(self) -> Routes:
        public, decide = self.public, self.decide
        routes: dict[str, Mapping[str, Any]] = {path: {"POST": self.proxy.generate} for path in GENERATING}
        routes |= {
            "/health": {"GET": public.health},
            "/readiness": {"GET": public.health},
            "/liveness": {"GET": public.live},
            "/v1/models": {"GET": public.models},
            "/server_info": {"GET": public.server_info},
            "/v1/loads": {"GET": public.loads},
            "/workers": {"GET": public.workers},
        }
        if self.config.decide:
            routes |= {
                "/v1/decide": {"POST": decide.decide},
                "/v1/release": {"POST": decide.release},
                "/v1/report": {"POST": decide.report},
            }
        return routes

    def _client(self, key: str | None) -> Client:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else None
        return Client(self.polls, timeout_s=self.config.polling.timeout_s, headers=headers)

    def _sync(self) -> None:
        """Tell the router which instances there are."""
        sized = self.workers.sized
        pool = self.owners if self.owners is not None else self.driver
        pool.set_instances([t.spec() for t in sized], sized)

    def _changed(self) -> None:
        """The list of workers is another one."""
        self.watch.set_targets(self.workers.targets.values())
        self._sync()

    async def reload(self) -> dict[str, Any]:
        """Ask every source of workers anew; what changed and what is wrong."""
        return await self.workers.reload()

    # -- the end -------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Not ready any more, no new requests; wait for those under way, then stop the rest."""
        self.public.draining = self.proxy.draining = self.decide.draining = True
        await self.leave()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.config.drain_s
        while self.proxy.exchanges.under_way and loop.time() < end_s:
            await asyncio.sleep(0.02)
        left = len(self.proxy.exchanges.under_way)
        if left:
            _log.warning("%d requests are stopped: they took too long to end", left)
        await self.stop_streams()

    async def leave(self) -> None:
        """The other routers place on its instances from now on, if there are any."""
        if self.owners is not None:
            await self.owners.leave()

    async def stop_streams(self) -> None:
        """Stop what is under way, each with an error event, and wait for it a moment."""
        self.public.draining = self.proxy.draining = self.decide.draining = True
        self.proxy.exchanges.stop_all("shutdown")
        for _ in range(250):
            if not self.proxy.exchanges.under_way:
                return
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End everything; what is still under way is cut off."""
        for task in self._tasks:
            task.cancel()
        for server in self._servers:
            server.close()
        if hasattr(self, "watch"):
            await self.watch.close()
        for edge in self._edges:
            edge.pre_shutdown()
            await edge.shutdown(0.1)
        if hasattr(self, "proxy"):
            self.proxy.exchanges.close()
        if self.owners is not None:
            await self.owners.close()
        if hasattr(self, "driver"):
            self.driver.close()
        for name in ("session", "polls"):
            if hasattr(self, name):
                await getattr(self, name).close()
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

    async def __aenter__(self) -> Service:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


OPEN = frozenset({"/health", "/liveness", "/readiness"})
"""Paths that need no key: what probes ask."""

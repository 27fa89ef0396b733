"""`Service`: all parts put together, started in order, drained and ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import aiohttp

from equipoise import cost as costs
from equipoise.cost.step_cost import StepCost
from equipoise.engines import Client, DnsName, WatchedFile, WorkerSpec
from equipoise.engines.discovery import Change
from equipoise.engines.facts import GENERATING
from equipoise.engines.watchers import Watcher
from equipoise.errors import InputError
from equipoise.policies import Policy, parse
from equipoise.router import Arrival, DecisionLog, InstanceSpec, Router
from equipoise.serve.admin import Admin, guarded
from equipoise.serve.config import ServeConfig
from equipoise.serve.decide import DecideApi
from equipoise.serve.driver import Driver
from equipoise.serve.edge import Edge, Routes
from equipoise.serve.lengths import Lengths
from equipoise.serve.metrics import Metrics
from equipoise.serve.proxy import Proxy
from equipoise.serve.public import Public
from equipoise.serve.tally import Tally
from equipoise.serve.targets import Target, targets_of
from equipoise.serve.watch import Watch

__all__ = ["Service", "host_port", "listen", "make_router"]

_log = logging.getLogger(__name__)

KEEP_ALIVE_S = 3.0
"""Towards engines: uvicorn closes idle connections after 5 s, and a request that meets the closing is lost."""
BACKLOG = 4096


def make_router(
    config: ServeConfig,
    policy: Policy,
    cost: StepCost,
    specs: list[InstanceSpec],
    now_s: float,
    sink: Any = None,
) -> Router:
    """The router of a configuration."""
    return Router(
        specs,
        policy,
        cost,
        config.router,
        now_s,
        config.seed,
        sink=sink,
        shadows=[parse(text) for text in config.shadows],
    )


def warm(config: ServeConfig, policy: Policy, cost: StepCost) -> None:
    """Compile or load what decides, on a router of its own, so that the first request does not wait for it."""
    router = make_router(config, policy, cost, [InstanceSpec("warm", 2)], 0.0)
    for action in router.arrived(0.0, Arrival("warm", 1)):
        lease = getattr(action, "lease", None)
        if lease is not None:
            router.tokens(0.0, lease, 1)
            router.finished(0.0, lease)
    router.tick(0.0)


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening socket.

    Raises
    ------
    InputError
        The port is taken, may not be used, or the host is not one of this machine's.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"{host!r} is no address of this machine", where=f"--{option}", fix=str(error)
        ) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise InputError(
            f"port {port} on {host} cannot be used ({(error.strerror or str(error)).lower()})",
            where=f"--{option}",
            fix="something else listens there, or it takes rights: name another, or 0 for any free one",
        ) from error
    return sock


class Service:
    """A router with its servers, on the running loop.

    Parameters
    ----------
    config : ServeConfig
    """

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.policy = parse(config.policy)
        self.cost = costs.load(config.cost)
        self.tally, self.lengths = Tally(), Lengths()
        self._log_file: IO[bytes] | None = None
        self._servers: list[asyncio.Server] = []
        self._edges: list[Edge] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._sources: dict[str, Watcher] = {}
        self._listed: dict[str, tuple[WorkerSpec, ...]] = {"": config.workers}
        self._targets: dict[str, Target] = {}
        self._signs: dict[str, tuple[object, ...]] = {}
        self.port = self.admin_port = 0

    @property
    def under_way(self) -> int:
        """Requests that a drain waits for."""
        return len(self.proxy.exchanges.under_way)

    def also(self) -> list[str]:
        """What else is to be said at the start."""
        return []

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
            self._log_file = _open(config.decision_log)
            sink = DecisionLog(self._log_file)
        self._make_targets()
        sized = [t for t in self._targets.values() if t.sized]
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
        self._make_handlers(loop)
        for edge, sock in zip(self._edges, sockets, strict=True):
            self._servers.append(await loop.create_server(edge, sock=sock, backlog=BACKLOG))
        self.port, self.admin_port = (sock.getsockname()[1] for sock in sockets)
        self.watch.set_targets(self._targets.values())
        if config.workers_file is not None:
            self._sources[config.workers_file] = WatchedFile(config.workers_file)
        if config.workers_dns is not None:
            host, port = host_port(config.workers_dns)
            self._sources[config.workers_dns] = DnsName(host, port, missing_for_s=10 * config.discovery_s)
        for name, source in self._sources.items():
            self._tasks.append(asyncio.create_task(self._discover(name, source), name=f"discover {name}"))

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
        main = Edge(guarded(self._routes(), config.api_key, OPEN), config.limits, self.tally.refused.add)
        main.water = (config.high_water_bytes, config.low_water_bytes)
        side = Edge(guarded(admin.routes(), config.admin_token, OPEN), config.limits, self.tally.refused.add)
        self._edges = [main, side]

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

    # -- workers -------------------------------------------------------------------------------------------------

    def _client(self, key: str | None) -> Client:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else None
        return Client(self.polls, timeout_s=self.config.polling.timeout_s, headers=headers)

    def _make_targets(self) -> bool:
        """Join what is listed into targets; those that were there stay the same objects. Whether anything changed."""
        config = self.config
        listed = [worker for workers in self._listed.values() for worker in workers]
        made = targets_of(
            listed,
            config.engine,
            config.dp_size,
            kv_capacity_tokens=config.kv_capacity_tokens,
            max_batch=config.max_batch,
            header_overrides=config.sglang_header_overrides,
        )
        signs = {t.name: _sign(t) for t in made}
        before = self._signs
        if signs == before:
            return False
        self._targets = {
            t.name: self._targets[t.name] if before.get(t.name) == signs[t.name] else t for t in made
        }
        self._signs = signs
        return True

    def _sync(self) -> None:
        """Tell the router which instances there are."""
        sized = [t for t in self._targets.values() if t.sized]
        self.driver.set_instances([t.spec() for t in sized], sized)

    async def _discover(self, name: str, source: Watcher) -> None:
        told = ""
        while True:
            change = await source.poll(self.driver.now_s())
            if change.problem and change.problem != told:
                _log.warning("%s: %s", name, change.problem)
            told = change.problem
            if change:
                self._found(name, source, change)
            await asyncio.sleep(self.config.discovery_s)

    def _found(self, name: str, source: Watcher, change: Change) -> str:
        """A source lists other workers; what is wrong with them, if they cannot be used."""
        before = self._listed.get(name, ())
        self._listed[name] = source.members.workers
        try:
            if self._make_targets():
                self.watch.set_targets(self._targets.values())
                self._sync()
        except InputError as error:
            self._listed[name] = before
            _log.error("%s: %s; the last list stands", name, error)
            return str(error)
        _log.info("%s: %d workers, %d new", name, len(source.members.workers), len(change.added))
        return ""

    async def reload(self) -> dict[str, Any]:
        """Ask every source anew; what changed and what is wrong."""
        changed, problems = 0, []
        for name, source in self._sources.items():
            change = await source.poll(self.driver.now_s())
            problem = change.problem
            if change:
                changed += len(change.added) + len(change.removed)
                problem = self._found(name, source, change) or problem
            if problem:
                problems.append(f"{name}: {problem}")
        return {"changed": changed, "problems": problems, "workers": len(self._targets)}

    # -- the end -------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Not ready any more, no new requests; wait for those under way, then stop the rest."""
        self.public.draining = self.proxy.draining = self.decide.draining = True
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self.config.drain_s
        while self.proxy.exchanges.under_way and loop.time() < end_s:
            await asyncio.sleep(0.02)
        left = len(self.proxy.exchanges.under_way)
        if left:
            _log.warning("%d requests are stopped: they took too long to end", left)
        await self.stop_streams()

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


def _sign(target: Target) -> tuple[object, ...]:
    """What makes a target another one when the list changes."""
    return tuple(
        (
            *(n.engine.urls, n.engine.kind, n.engine.first_rank, n.engine.worker_id, n.engine.metrics_urls),
            n.sized and n.engine.ranks,
        )
        for n in target.nodes
    )


def host_port(text: str) -> tuple[str, int | None]:
    """``HOST:PORT``, or an SRV name without a port."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, None
    if not port.isdigit() or not 0 < int(port) < 65_536 or not host:
        raise InputError(f"{text!r} is no HOST:PORT", where="--workers-dns", fix="such as decode.svc:8000")
    return host, int(port)


def _open(path: str) -> IO[bytes]:
    try:
        return Path(path).open("ab", buffering=1 << 16)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror})", where="--decision-log", fix="name another file"
        ) from error

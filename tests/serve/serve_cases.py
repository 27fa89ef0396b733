"""A service before mock engines on one loop, and what must be true when a test is over."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from equipoise.engines import WorkerSpec
from equipoise.serve.config import ServeConfig
from equipoise.serve.config_file import read_config
from equipoise.serve.service import Service
from equipoise.testing.mock_engine import MockEngine

PATIENCE_S = 90.0
QUICK = {
    "port": 0,
    "admin_port": 0,
    "polling.period_s": 0.05,
    "polling.health_period_s": 0.05,
    "polling.quiet_s": 0.2,
    "router.slow_start_s": 0.0,
    "drain_s": 5.0,
}


def on_a_loop(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run an async test on a loop of its own, for no longer than it may take."""

    @functools.wraps(test)
    def wrapped(*given: Any, **named: Any) -> Any:
        return asyncio.run(asyncio.wait_for(test(*given, **named), PATIENCE_S))

    return wrapped


@dataclass
class Stage:
    """What a test plays with."""

    service: Service
    engines: list[MockEngine]
    client: aiohttp.ClientSession
    url: str
    admin: str
    told: list[str] = field(default_factory=list)

    @property
    def engine(self) -> MockEngine:
        return self.engines[0]

    def post(self, path: str = "/v1/completions", headers: dict[str, str] | None = None, **body: Any) -> Any:
        """A request; to be used with ``async with``."""
        return self.client.post(self.url + path, json=asked(**body), headers=headers)

    async def until(self, true: Callable[[], Any], what: str = "") -> None:
        """Wait for something to become true."""
        for _ in range(int(PATIENCE_S * 50)):
            if true():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never true: {what or true}")

    def view(self) -> Any:
        return self.service.driver.router.view(self.service.driver.now_s())

    async def nothing_is_left(self) -> None:
        """No lease, no request, no byte is held by anybody."""
        driver, proxy, tally = self.service.driver, self.service.proxy, self.service.tally
        await self.until(lambda: not driver.leases and not proxy.exchanges.under_way, "leases are ended")
        view = self.view()
        assert view.leases == view.queued_requests == driver.waiting == 0
        assert view.own_batch.sum() == view.own_context_tokens.sum() == 0
        assert view.counts["stale_keys"] == 0
        assert driver.router.integrity().sound
        assert tally.streams == tally.body_bytes == 0
        for engine in self.engines:
            await self.until(
                lambda engine=engine: not engine.core.busy or engine._stalled(), "the engine is idle"
            )


def asked(**body: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hello there", "max_tokens": 5, "ignore_eos": True} | body


def config_for(
    engines: list[MockEngine], workers: tuple[WorkerSpec, ...] = (), **options: Any
) -> ServeConfig:
    made = workers or tuple(
        WorkerSpec(e.url, engine=e.kind, instance=f"i{k}", metrics_url=e.system_url)
        for k, e in enumerate(engines)
    )
    given = {key.replace("__", "."): value for key, value in options.items()}
    return read_config(None, QUICK | {"workers": made} | given)


@contextlib.asynccontextmanager
async def stage(
    *engines: MockEngine, workers: tuple[WorkerSpec, ...] = (), ready: bool = True, **options: Any
) -> AsyncIterator[Stage]:
    """Mock engines, a service before them, and a client; at the end nothing may be left."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        if callable(workers):
            workers = workers()
        service = await stack.enter_async_context(Service(config_for(list(engines), workers, **options)))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        made = Stage(
            service,
            list(engines),
            client,
            f"http://127.0.0.1:{service.port}",
            f"http://127.0.0.1:{service.admin_port}",
        )
        if ready:
            await made.until(
                lambda: made.view().rung == "fresh" and len(made.view().instance_names) > 0,
                "engines are read",
            )
        yield made
        await made.nothing_is_left()


def mock(kind: str = "vllm", **options: Any) -> MockEngine:
    return MockEngine(kind, **({"ranks": 4, "speed_up": float("inf")} | options))

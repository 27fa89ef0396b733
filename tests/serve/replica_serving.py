"""Several services before the same mock engines on one loop, with a real Redis."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from replica_cases import until
from serve_cases import asked, config_for

from equipoise.serve.service import Service
from equipoise.testing.mock_engine import MockEngine

QUICK = {
    "replicas__ttl_s": 0.9,
    "replicas__rebuild_s": 0.5,
    "replicas__hold_s": 8.0,
    "replicas__call_s": 1.0,
    "replicas__gone_s": 1.8,
}


@dataclass
class Group:
    """What a test plays with."""

    services: list[Service]
    engines: list[MockEngine]
    client: aiohttp.ClientSession

    def url(self, k: int, path: str = "/v1/completions") -> str:
        return f"http://127.0.0.1:{self.services[k].port}{path}"

    def admin(self, k: int, path: str) -> str:
        return f"http://127.0.0.1:{self.services[k].admin_port}{path}"

    async def post(self, url: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.client.post(url, json=body) as answer:
            return answer.status, await answer.json()

    async def get(self, url: str) -> tuple[int, Any]:
        async with self.client.get(url) as answer:
            return answer.status, await answer.json()

    async def complete(self, k: int, **body: Any) -> int:
        async with self.client.post(self.url(k), json=asked(**body)) as answer:
            await answer.read()
            return answer.status

    def serving(self, k: int) -> set[str]:
        mine = self.services[k].owners.ownership.mine
        return {name for name, own in mine.items() if own.serving}

    def owner_of(self, name: str) -> int:
        return next(k for k in range(len(self.services)) if name in self.serving(k))

    def leases(self) -> int:
        """In all ledgers."""
        return sum(s.driver.router.view().leases for s in self.services)

    def settled(self) -> bool:
        count, all_names = len(self.services), {t for s in self.services for t in s.workers.targets}
        owned = [self.serving(k) for k in range(count)]
        return (
            set.union(*owned) == all_names
            and sum(map(len, owned)) == len(all_names)
            and max(map(len, owned)) - min(map(len, owned)) <= 1
            and all(
                len(s.owners.ownership.others) + len(o) == len(all_names)
                for s, o in zip(self.services, owned, strict=True)
            )
        )

    async def nothing_is_left(self) -> None:
        await until(lambda: self.leases() == 0, what="leases are ended")
        for service in self.services:
            owners = service.owners
            await until(lambda o=owners: not len(o.far) and not o.keeper.kept and not o.asking.waits)
            assert not service.driver.waiting
            assert not service.driver.leases
            assert service.driver.router.integrity().sound
        for engine in self.engines:
            await until(lambda e=engine: not e.core.busy, what="the engine is idle")


@contextlib.asynccontextmanager
async def group(
    url: str, engines: list[MockEngine], count: int = 2, make: Any = Service, **options: Any
) -> AsyncIterator[Group]:
    """Engines, services that share them, and a client; at the end nothing may be left."""
    async with contextlib.AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        given = QUICK | {"replicas__redis": url} | options
        services = [await stack.enter_async_context(make(config_for(engines, **given))) for _ in range(count)]
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        made = Group(services, engines, client)
        await until(made.settled, what="settled")
        yield made
        await made.nothing_is_left()

"""`equipoise serve` as processes that share engines: started, stopped, killed, and asked what they hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

COMMAND = [sys.executable, "-c", "import sys; from equipoise.cli.app import main; sys.exit(main())", "serve"]
OWNERSHIP = re.compile(r'^equipoise_ownership_(\w+)(?:\{\w+="(\w+)"\})? (\S+)$', re.MULTILINE)


class Router:
    """One process."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = [*COMMAND, *arguments, "--port", "0", "--admin-port", "0"]
        self.said = ""
        self.url = self.admin = self.name = self.picker = ""
        self.alive = True

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.arguments, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, env=os.environ
        )
        self._reading = asyncio.ensure_future(self._read())
        for name, words in (
            ("url", r"serving on (\S+?)[ ,\n]"),
            ("admin", r"metrics on (\S+)"),
            ("name", r"router (\w+) of"),
        ):
            while not (found := re.search(words, self.said)):
                if self.process.returncode is not None:
                    raise RuntimeError(self.said)
                await asyncio.sleep(0.02)
            setattr(self, name, found[1].rstrip(","))
        found = re.search(r"Envoy asks on (\S+?),", self.said)
        self.picker = found[1] if found else ""

    async def _read(self) -> None:
        while line := await self.process.stderr.readline():
            self.said += line.decode()

    def signal(self, number: int) -> None:
        self.alive = number not in (signal.SIGKILL, signal.SIGSTOP)
        self.process.send_signal(number)

    async def stop(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
        await self.process.wait()
        await self._reading


class Routers:
    """Several, and a client."""

    def __init__(self, routers: list[Router], client: aiohttp.ClientSession) -> None:
        self.all, self.client = routers, client

    @property
    def alive(self) -> list[Router]:
        return [one for one in self.all if one.alive]

    async def ownership(self, one: Router) -> dict[str, float]:
        async with self.client.get(one.admin + "/metrics") as answer:
            rows = OWNERSHIP.findall(await answer.text())
        return {f"{name}.{label}" if label else name: float(value) for name, label, value in rows}

    async def owns(self, one: Router) -> set[str]:
        """Instances that it places on."""
        async with self.client.get(one.url + "/workers") as answer:
            rows = (await answer.json())["workers"]
        return {row["name"] for row in rows if row["owner"] == one.name and row["state"] != "without_owner"}

    async def owned(self, instances: int) -> bool:
        """Whether the living place on every instance."""
        rows = await asyncio.gather(*(self.ownership(one) for one in self.alive))
        return sum(row["instances.self"] for row in rows) == instances

    async def settled(self, instances: int) -> bool:
        """Whether every instance has one owner among the living, evenly, and all know it."""
        rows = await asyncio.gather(*(self.ownership(one) for one in self.alive))
        owned = [row["instances.self"] for row in rows]
        return (
            sum(owned) == instances
            and max(owned) - min(owned) <= 1
            and all(
                row["instances.nobody"] == 0
                and row["rebuilding"] == 0
                and row["instances.self"] + row["instances.other"] == instances
                for row in rows
            )
        )

    async def ledger(self, one: Router) -> list[dict[str, Any]]:
        """What is in the ledger of one of them."""
        async with self.client.get(one.admin + "/leases?n=10000") as answer:
            found: list[dict[str, Any]] = (await answer.json())["leases"]
        return found

    async def leases(self) -> list[dict[str, Any]]:
        """What is in the ledgers of the living."""
        return [row for one in self.alive for row in await self.ledger(one)]

    async def until(self, true: Any, seconds: float = 60.0, what: str = "") -> float:
        """Wait for an awaitable condition; how long it took."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not await true():
            if loop.time() - began > seconds:
                said = "\n".join(one.said[-2000:] for one in self.all)
                raise AssertionError(f"did not come true: {what or true}\n{said}")
            await asyncio.sleep(0.05)
        return loop.time() - began


@contextlib.asynccontextmanager
async def routers(
    count: int, arguments: Sequence[str], instances: int, own: Sequence[Sequence[str]] = ()
) -> AsyncIterator[Routers]:
    """So many, settled; `own` are the arguments of each alone."""
    made = [Router([*arguments, *(own[k] if own else ())]) for k in range(count)]
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as client:
        try:
            await asyncio.gather(*(one.start() for one in made))
            group = Routers(made, client)
            await group.until(lambda: group.settled(instances), what="settled")
            yield group
        finally:
            await asyncio.gather(*(one.stop() for one in made), return_exceptions=True)

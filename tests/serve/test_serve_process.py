"""The command as a process: what it says, signals, a router that is killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys

import aiohttp
import pytest
from serve_cases import asked, mock, on_a_loop

pytestmark = pytest.mark.proof

COMMAND = [sys.executable, "-c", "import sys; from equipoise.cli.app import main; sys.exit(main())", "serve"]


class Process:
    """`equipoise serve`, and what it has said so far."""

    def __init__(self, engine, *options: str) -> None:
        self.options = ["--worker-urls", engine.url, "--prometheus-port", "0", *options]
        self.said = ""
        self.port = 0

    async def __aenter__(self) -> Process:
        self.process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *self.options,
            stderr=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ,
        )
        self.reading = asyncio.ensure_future(self.read())
        while not (found := re.search(r"serving on http://127.0.0.1:(\d+)", self.said)):
            assert self.process.returncode is None, self.said
            await asyncio.sleep(0.05)
        self.port = int(found[1])
        return self

    async def read(self) -> None:
        while line := await self.process.stderr.readline():
            self.said += line.decode()

    async def __aexit__(self, *error: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.reading
        await self.process.stdout.read()

    def url(self, path: str = "/v1/completions") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def ready(self, client: aiohttp.ClientSession) -> None:
        while True:
            async with client.get(self.url("/health")) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.05)


@on_a_loop
async def test_it_says_little_and_drains_on_sigterm():
    async with (
        mock(ranks=2, speed_up=5.0) as engine,
        Process(engine, "--port", "0") as router,
        aiohttp.ClientSession() as client,
    ):
        await router.ready(client)
        assert 3 <= len([line for line in router.said.splitlines() if " INFO " not in line]) <= 10
        async with client.post(router.url(), json=asked(stream=True, max_tokens=150)) as answer:
            await answer.content.readany()
            router.process.send_signal(signal.SIGTERM)
            while "draining" not in router.said:
                await asyncio.sleep(0.02)
            async with client.get(router.url("/health")) as health:
                assert health.status == 503
            assert (await answer.read()).endswith(b"data: [DONE]\n\n")
        assert await router.process.wait() == 0
        await router.reading
        assert router.said.rstrip().endswith("ended")
        assert "Traceback" not in router.said


@on_a_loop
async def test_a_second_sigterm_means_now():
    async with (
        mock(ranks=2, speed_up=1.0) as engine,
        Process(engine, "--port", "0", "--drain-secs", "3600") as router,
        aiohttp.ClientSession() as client,
    ):
        await router.ready(client)
        async with client.post(router.url(), json=asked(stream=True, max_tokens=500_000)) as answer:
            await answer.content.readany()
            router.process.send_signal(signal.SIGTERM)
            while "draining" not in router.said:
                await asyncio.sleep(0.02)
            router.process.send_signal(signal.SIGTERM)
            assert b'"code":"shutdown"' in await answer.read()
        assert await router.process.wait() == 0
        while engine.core.busy:
            await asyncio.sleep(0.02)


@on_a_loop
async def test_a_router_that_is_killed_and_started_again():
    async with mock(ranks=2, speed_up=5.0) as engine, aiohttp.ClientSession() as client:
        async with Process(engine, "--port", "0") as router:
            await router.ready(client)
            async with client.post(router.url(), json=asked(stream=True, max_tokens=500_000)) as answer:
                await answer.content.readany()
                router.process.kill()
                with contextlib.suppress(aiohttp.ClientError):
                    await answer.read()
            port = router.port
        while engine.core.busy:  # the engine sees its connection closed
            await asyncio.sleep(0.02)
        async with Process(engine, "--port", str(port)) as again:
            await again.ready(client)
            async with client.post(again.url(), json=asked()) as answer:
                assert answer.status == 200
                await answer.read()
            async with client.get(again.url("/v1/loads")) as loads:
                assert [load["num_own_reqs"] for load in (await loads.json())["loads"]] == [0, 0]


@on_a_loop
async def test_check():
    async with mock(ranks=2) as engine:
        for ranks, code, words in (
            ("auto", 0, "vllm, 2 ranks, 1,048,576 KV tokens each"),
            ("4", 1, "it has 2 ranks"),
        ):
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                *("--check", "--worker-urls", engine.url, "--dp-size", ranks),
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await process.communicate()
            assert process.returncode == code, said
            assert words in said.decode()

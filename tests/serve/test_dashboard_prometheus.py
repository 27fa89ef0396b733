"""The dashboard's queries, asked of a real Prometheus that scrapes a real router."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket

import aiohttp
import pytest
from serve_cases import mock, on_a_loop, stage

from equipoise.serve.panels import ROWS

pytestmark = pytest.mark.proof

QUIET = ("Turned away", "Failed and stopped", "Timers and second tries", "Looks at engines that failed")
"""Panels of what goes wrong: nothing does here."""
CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: equipoise
    static_configs: [{{targets: ["{target}"]}}]
"""


def prometheus() -> str:
    found = os.environ.get("EQUIPOISE_PROMETHEUS") or shutil.which("prometheus")
    if not found:
        pytest.skip("no Prometheus: apt-get install prometheus, or name one in EQUIPOISE_PROMETHEUS")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def scraping(program, target, folder):
    """A Prometheus; yields where it answers."""
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(target=target))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def asked(client, url, query):
    with contextlib.suppress(aiohttp.ClientConnectionError):
        async with client.get(url + "/api/v1/query", params={"query": query}) as answer:
            return await answer.json()
    return {"status": "not yet", "data": {"result": []}}


@on_a_loop
async def test_every_panel_has_data(tmp_path):
    program = prometheus()
    async with (
        stage(mock(ranks=2), mock(ranks=2), shadows=("least_tokens",)) as s,
        scraping(program, s.admin.removeprefix("http://"), tmp_path) as url,
    ):

        async def traffic():
            while True:
                async with s.post(prompt=[1] * 50, max_tokens=20, stream=True) as answer:
                    await answer.read()
                await asyncio.sleep(0.02)

        going = asyncio.ensure_future(traffic())
        try:
            samples = "min(count_over_time(equipoise_tokens_total[1m]))"
            while True:  # three scrapes, for rates
                found = (await asked(s.client, url, samples))["data"]["result"]
                if found and float(found[0]["value"][1]) >= 3:
                    break
                await asyncio.sleep(0.2)
            empty = []
            for row in ROWS.values():
                for panel in row:
                    for query, _ in panel.queries:
                        plain = query.replace("$__rate_interval", "1m").replace("$worker", ".*")
                        found = await asked(s.client, url, plain)
                        assert found["status"] == "success", (plain, found)
                        if not found["data"]["result"] and panel.title not in QUIET:
                            empty.append(plain)
            assert empty == []
            found = await asked(
                s.client, url, "sum(equipoise_step_price) / sum(equipoise_step_price_even) - 1"
            )
            assert float(found["data"]["result"][0]["value"][1]) >= -1e-9
        finally:
            going.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await going

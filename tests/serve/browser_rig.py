"""A real Chromium, driven by its own protocol: no package, no driver, only the browser."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
PATIENCE_S = 60.0


def chromium() -> str:
    """Where it is; without one the test is skipped."""
    found = os.environ.get("EQUIPOISE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("no Chromium: apt-get install chromium, or name one in EQUIPOISE_CHROMIUM")
    return found


class Tab:
    """One page, and what it has complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._sent = socket, 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self.asked: list[str] = []
        """Addresses the page has asked for."""
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            found = message.json()
            if "id" in found:
                self._answers.pop(found["id"]).set_result(found)
                continue
            method, given = found.get("method"), found.get("params", {})
            if method == "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
                self.complaints.append(given["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                self.asked.append(given["request"]["url"])

    async def call(self, method: str, **given: Any) -> Any:
        self._sent += 1
        self._answers[self._sent] = future = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._sent, "method": method, "params": given})
        found = await asyncio.wait_for(future, PATIENCE_S)
        assert "error" not in found, (method, found)
        return found["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression, or of a promise."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true."""
        for _ in range(int(PATIENCE_S * 20)):
            value = await self.run(f"(() => {{ try {{ return {script} }} catch {{ return null }} }})()")
            if value:  # while it loads there is nothing yet
                return value
            await asyncio.sleep(0.05)
        raise AssertionError(
            f"never true: {script}; the page says {await self.run('document.body.innerText')}"
        )

    async def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Be so wide, and light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = "dark" if dark else "light"
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def picture(self, name: str) -> None:
        """Keep a picture where EQUIPOISE_SCREENSHOTS says, for people to look at."""
        folder = os.environ.get("EQUIPOISE_SCREENSHOTS")
        if not folder:
            return
        size = await self.run("[innerWidth, Math.min(4000, document.documentElement.scrollHeight)]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        Path(folder, f"{name}.png").write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """A browser: call it with an address for a tab that shows it."""
    program = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            program, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        told = Path(folder, "DevToolsActivePort")
        try:
            for _ in range(int(PATIENCE_S * 20)):
                if told.exists() and "\n" in told.read_text():
                    break
                assert process.returncode is None, "the browser ended at once"
                await asyncio.sleep(0.05)
            port = told.read_text().split()[0]
            async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:

                async def tab(url: str, width: int = 1280, *, dark: bool = False) -> Tab:
                    async with session.put(f"http://127.0.0.1:{port}/json/new?about:blank") as answer:
                        address = (await answer.json(content_type=None))["webSocketDebuggerUrl"]
                    socket = await stack.enter_async_context(
                        session.ws_connect(address, max_msg_size=1 << 28)
                    )
                    made = Tab(socket)
                    for room in ("Runtime", "Log", "Page", "Network"):
                        await made.call(f"{room}.enable")
                    await made.look(width, dark=dark)
                    await made.call("Page.navigate", url=url)
                    return made

                yield tab
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

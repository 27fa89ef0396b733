"""Dynamo's mocker and frontend as processes, from the environment that scripts/install-dynamo-mocker makes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")

VARIABLE = "EQUIPOISE_DYNAMO_VENV"


LOOPBACK = ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST", "DYN_TCP_RESPONSE_STREAM_HOST")


def environment() -> Path:
    """The virtual environment; without one the test is skipped, with a word on how to get it."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(
            f"needs Dynamo: scripts/install-dynamo-mocker FOLDER (40 s, 700 MB), then {VARIABLE}=FOLDER"
        )
    python = Path(folder).resolve() / "bin" / "python"
    if not python.exists() or not (python.parent.parent / "words").is_dir():
        pytest.fail(f"{VARIABLE}={folder} is no environment made by scripts/install-dynamo-mocker")
    return python.parent.parent


def free_port() -> int:
    """Below 32,768: Dynamo reads DYN_SYSTEM_PORT as a 16-bit signed number."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


def environ(folder: Path) -> dict[str, str]:
    """Everything on loopback, found through files in the folder."""
    loopback = dict.fromkeys(LOOPBACK, "127.0.0.1")
    return {
        **{k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        **loopback,
        "HF_HUB_OFFLINE": "1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_LOG": "warn",
    }


def start(folder: Path, name: str, module: str, *options: str, **more: str) -> subprocess.Popen[bytes]:
    """A module of Dynamo's as a process; what it says goes to ``folder/name.log``."""
    arguments = [str(environment() / "bin" / "python"), "-m", module, *options]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            arguments, env={**environ(folder), **more}, stdout=log, stderr=log, cwd=folder
        )


def start_frontend(folder: Path, port: int, mode: str) -> subprocess.Popen[bytes]:
    """A frontend before the folder's mocker, with a router of Dynamo's."""
    options = ["--http-host", "127.0.0.1", "--http-port", str(port), "--router-mode", mode]
    return start(folder, f"frontend-{mode}", "dynamo.frontend", *options, "--kv-cache-block-size", "64")


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End them, the slow ones by force."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@asynccontextmanager
async def dynamo(folder: Path, ranks: int, session: Any, *options: str) -> AsyncIterator[tuple[str, str]]:
    """Frontend and system addresses; both processes end with the context."""
    http, system = free_port(), free_port()
    mocker = ["--model-path", str(environment() / "words"), "--model-name", "tiny", "--block-size", "64"]
    mocker += [
        "--data-parallel-size",
        str(ranks),
        "--num-gpu-blocks-override",
        "16384",
        "--max-num-seqs",
        "64",
    ]
    (folder / "kv").mkdir()
    processes = []
    try:
        processes.append(
            start(folder, "mocker", "dynamo.mocker", *mocker, *options, DYN_SYSTEM_PORT=str(system))
        )
        processes.append(start_frontend(folder, http, "kv"))
        await ready(f"http://127.0.0.1:{http}", session, processes, folder)
        yield f"http://127.0.0.1:{http}", f"http://127.0.0.1:{system}"
    finally:
        stop(processes)


async def ready(url: str, session: Any, processes: list[Any], folder: Path) -> None:
    """Wait until the model is served; a process that ended is an error with its log."""
    for _ in range(600):
        for process in processes:
            if process.poll() is not None:
                logs = "\n".join(p.read_text(errors="replace")[-2000:] for p in folder.glob("*.log"))
                pytest.fail(f"Dynamo ended with {process.returncode}:\n{logs}")
        try:
            async with session.get(url + "/v1/models") as response:
                if response.status == 200 and (await response.json())["data"]:
                    return
        except (OSError, aiohttp.ClientError):
            pass
        await asyncio.sleep(0.1)
    pytest.fail("Dynamo did not come up within 60 s")


def cost_table(folder: Path) -> Path:
    """Step time = 10 ms + 0.02 ms a request + 0.1 us a token."""
    path = folder / "cost.npz"
    write_table(path, 10.0, 0.02, 1e-4)
    return path


def write_table(
    path: Path,
    base_ms: float,
    request_ms: float,
    token_ms: float,
    prefill_ms: tuple[float, float] = (1.0, 2.0),
) -> None:
    """What a step costs, as the mocker takes it: by resident tokens and mean length, on a grid fine enough to read."""
    code = f"""
import numpy as np, sys
kv = np.concatenate([[0], np.geomspace(50, 2e6, 500)]); ctx = np.geomspace(1, 2e4, 800)
itl = {base_ms} + {request_ms} * kv[:, None] / ctx[None, :] + {token_ms} * kv[:, None]
np.savez(sys.argv[1], prefill_isl=np.array([1.0, 1e5]), prefill_ttft_ms=np.array({list(prefill_ms)}),
         decode_active_kv_tokens=kv, decode_context_length=ctx, decode_itl=itl)
"""
    subprocess.run([str(environment() / "bin" / "python"), "-c", code, str(path)], check=True)


def write_cost(path: Path, base_ms: float, request_ms: float, token_ms: float) -> None:
    """The same as a cost file: what the policies decide by."""
    path.write_text(
        f"""schema = "equipoise.step-cost/1"
name = "known"
unit = "us"
barrier = "step"
source = "the table the mocker was given"
constant = {1000 * base_ms}
[[terms]]
name = "decode"
per_request = {1000 * request_ms}
per_100k_context = {1e8 * token_ms}
""",
        "utf-8",
    )

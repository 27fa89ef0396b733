"""Without the extra `serve`, all but the client and the mock engine's server work, and those say what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT = "import sys; sys.modules.update(aiohttp=None, uvloop=None, prometheus_client=None, aiodns=None)\n"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)


def test_the_rest_needs_none_of_them() -> None:
    done = run(
        "import equipoise.engines as e, equipoise.testing.mock_engine as m\n"
        "[getattr(e, n) for n in e.__all__ if n != 'Client']\n"
        "[getattr(m, n) for n in m.__all__ if n != 'MockEngine']\n"
        "assert e.get('vllm').read({'metrics': b'vllm:num_requests_running 1\\n'}).ranks[0].running == 1\n"
        "import equipoise.testing.engine_contract"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["engines.Client", "testing.mock_engine.MockEngine"])
def test_what_does_says_so(name: str) -> None:
    room, _, attribute = name.rpartition(".")
    done = run(f"from equipoise.{room} import {attribute}")
    assert "pip install 'equipoise[serve]'" in done.stderr


def test_srv_names_say_so() -> None:
    done = run(
        "import asyncio\nfrom equipoise.engines import DnsName\n"
        "print(asyncio.run(DnsName('_http._tcp.example', None).poll(0.0)).problem)"
    )
    assert "pip install aiodns" in done.stdout


def test_the_mock_engines_command() -> None:
    pytest.importorskip("aiohttp", reason="pip install 'equipoise[serve]'")
    command = [sys.executable, "-m", "equipoise.testing.mock_engine"]
    bad = subprocess.run([*command, "--cost", "no-such"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert bad.stderr.startswith("error: ")
    assert "Traceback" not in bad.stderr
    with subprocess.Popen(
        [*command, "--engine", "dynamo", "--ports", "per-rank", "--ranks", "3", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline() for _ in range(4)]
        server.terminate()
        assert server.wait(20) == 0
    assert [line.startswith("http://127.0.0.1:") for line in lines] == [True] * 4
    assert "system port" in lines[3]

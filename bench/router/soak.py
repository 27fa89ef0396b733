"""Ten minutes of churn: does memory grow, is a lease left? ``python bench/router/soak.py [SECONDS]``.

Two mock engines of four ranks; `equipoise serve` before them, in a process of its own; some 60 requests a second, one
half streamed, of 2,000 conversations. Every tenth client leaves in the middle, every fiftieth sends what
cannot be read, and every 40 s one of the engines is killed and started again ten seconds later. Printed are the
router's resident memory minute by minute, the slope of a line through its second half with a 95 % interval (means of
ten seconds, since neighbouring seconds are alike; compile the kernels before, or what the compiler leaves behind hides
any growth), what became of the requests, and what is left in the ledger.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import aiohttp
import numpy as np

RATE, RANKS = 60.0, 4
SESSIONS = 2_000
"""So few that all are known after a minute: the router keeps up to 65,536, some 300 bytes each."""
KILL_EVERY_S, DOWN_S = 40.0, 10.0
PAGE = os.sysconf("SC_PAGE_SIZE")


def engine(port: int = 0) -> tuple[subprocess.Popen[str], str]:
    command = [
        sys.executable,
        "-m",
        "equipoise.testing.mock_engine",
        "--ranks",
        str(RANKS),
        "--port",
        str(port),
    ]
    command += ["--cost", "h200", "--speed-up", "4", "--mean-output-tokens", "80"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 2**20


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def request(http: aiohttp.ClientSession, url: str, dice: random.Random, seen: Counter[str]) -> None:
    """One request, of any kind."""
    tokens, streamed, kind = int(dice.lognormvariate(6, 1.2)) + 1, dice.random() < 0.5, dice.random()
    body = {
        "model": "tiny",
        "prompt": [7] * min(tokens, 8000),
        "max_tokens": dice.randint(1, 200),
        "stream": streamed,
    }
    headers = {"X-Session-ID": f"s{dice.randrange(SESSIONS)}"}
    try:
        if kind < 0.02:
            async with http.post(
                f"{url}/v1/completions", data=b"{" * dice.randint(1, 99), headers=headers
            ) as answer:
                seen[f"unreadable: {answer.status}"] += 1
                return
        async with http.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
            if kind < 0.12:
                await asyncio.wait_for(answer.content.readany(), 0.02 + dice.random() * 0.2)
                seen["left in the middle"] += 1
                return
            await answer.read()
            seen[f"status {answer.status}"] += 1
    except TimeoutError:
        seen["left before the first byte"] += 1
    except aiohttp.ClientError as error:
        seen[f"cut: {type(error).__name__}"] += 1


async def churn(engines: list[tuple[subprocess.Popen[str], str]], ends_s: float) -> int:
    """Kill one, start it again where it was; how often."""
    kills = 0
    while time.monotonic() + KILL_EVERY_S + DOWN_S < ends_s:
        await asyncio.sleep(KILL_EVERY_S - DOWN_S)
        k = kills % len(engines)
        process, url = engines[k]
        process.kill()
        process.wait()
        await asyncio.sleep(DOWN_S)
        engines[k] = await asyncio.to_thread(engine, int(url.rsplit(":", 1)[1]))
        kills += 1
    return kills


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until the router serves: where its kernels are not compiled yet that takes minutes."""
    for _ in range(1200):
        try:
            async with http.get(f"{url}/health") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.5)
    sys.exit("soak: the router does not come up")


def slope(minutes: np.ndarray, mib: np.ndarray) -> tuple[float, float]:
    """MiB an hour of a least-squares line through means of ten seconds, and half its 95 % interval."""
    whole = len(mib) // 10 * 10
    x, y = (a[:whole].reshape(-1, 10).mean(axis=1) for a in (minutes, mib))
    (per_minute, _), covariance = np.polyfit(x, y, 1, cov=True)
    return 60.0 * float(per_minute), 1.96 * 60.0 * float(np.sqrt(covariance[0, 0]))


async def main(seconds: float = 600.0) -> int:
    if seconds < 120:
        return print("soak: at least 120 seconds, or there is no slope to speak of", file=sys.stderr) or 2
    engines = [engine(), engine()]
    urls = [url for _, url in engines]
    command = [sys.executable, "-m", "equipoise", "serve", "--worker-urls", *urls, "--dp-size", str(RANKS)]
    command += ["--engine", "vllm", "--port", "31877", "--prometheus-port", "31878", "--cost", "h200"]
    router = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, admin = "http://127.0.0.1:31877", "http://127.0.0.1:31878"
    dice, seen, rows = random.Random(1), Counter[str](), []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as http:
        try:
            await ready(http, url)
            began_s = time.monotonic()
            ends_s, looked_s = began_s + seconds, 0.0
            churning, under_way = asyncio.create_task(churn(engines, ends_s)), set()
            while (now_s := time.monotonic()) < ends_s:
                task = asyncio.create_task(request(http, url, dice, seen))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                if now_s - looked_s >= 1.0:
                    looked_s = now_s
                    rows.append((now_s - began_s, resident_mib(router.pid), files(router.pid)))
                await asyncio.sleep(dice.expovariate(RATE))
            kills = await churning
            await asyncio.gather(*under_way)
            await asyncio.sleep(3.0)
            async with http.get(f"{admin}/metrics") as answer:
                page = await answer.text()
        finally:
            for process in (router, *(process for process, _ in engines)):
                process.terminate()
                process.wait()
    found = np.array(rows)
    for minute in range(int(seconds // 60)):
        here = found[(found[:, 0] >= 60 * minute) & (found[:, 0] < 60 * minute + 60)]
        print(
            f"minute {minute + 1:2}: {here[:, 1].mean():7.2f} MiB, {int(here[:, 2].max())} open files at most"
        )
    late = found[found[:, 0] > seconds / 2]
    per_hour, half = slope(late[:, 0] / 60, late[:, 1])
    print(f"second half: {per_hour:+.2f} MiB an hour, 95 % +- {half:.2f}")
    print(f"engines killed and started again: {kills}")
    print(f"requests: {sum(seen.values()):,}; " + ", ".join(f"{k} {n:,}" for k, n in seen.most_common()))
    left = {
        line.split()[0]: float(line.split()[1])
        for line in page.splitlines()
        if line.startswith(("equipoise_leases ", "equipoise_queued_requests ", "equipoise_streams "))
    }
    print("left:", left)
    return 0 if not any(left.values()) and len(left) == 3 else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*(float(text) for text in sys.argv[1:2]))))

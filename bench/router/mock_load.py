"""How many streams the mock engine serves at once, and what a counted chunk costs: `python bench/router/mock_load.py`.

Server and client share one process and its machine's cores with whatever else runs there; figures are a floor.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time

import aiohttp

from equipoise.engines import TokenCounter

STREAMS, TOKENS = 2_000, 60


async def one(session: aiohttp.ClientSession, url: str, rank: int) -> int:
    counter = TokenCounter()
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    headers = {"X-data-parallel-rank": str(rank)}
    async with session.post(url + "/v1/completions", json=body, headers=headers) as response:
        response.raise_for_status()
        async for chunk in response.content.iter_any():
            counter.feed(chunk)
    return counter.tokens


async def run(url: str, ranks: int) -> tuple[float, int]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        start = time.perf_counter()
        tokens = await asyncio.gather(*(one(session, url, i % ranks) for i in range(STREAMS)))
        return time.perf_counter() - start, sum(tokens)


def counter_cost() -> float:
    event = (
        b'data: {"id":"chatcmpl-a6e02d7abaa34594ac457c76db250c16","object":"chat.completion.chunk",'
        b'"created":1796014641,"model":"glm-5","choices":[{"index":0,"delta":{"content":" w1414"},'
        b'"logprobs":null,"finish_reason":null}]}\n\n'
    )
    counter, rounds = TokenCounter(), 200_000
    start = time.perf_counter()
    for _ in range(rounds):
        counter.feed(event)
    return (time.perf_counter() - start) / rounds * 1e6


def main() -> None:
    ranks = 64
    command = [sys.executable, "-m", "equipoise.testing.mock_engine", "--ranks", str(ranks), "--port", "0"]
    with subprocess.Popen([*command, "--speed-up", "1000"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            rates = []
            for _ in range(3):
                seconds, tokens = asyncio.run(run(url, ranks))
                assert tokens == STREAMS * TOKENS
                rates.append(tokens / seconds)
            with open(f"/proc/{server.pid}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        finally:
            server.terminate()
    chunks = 3 * STREAMS * TOKENS
    print(f"{STREAMS} streams at once, {TOKENS} tokens each, 64 ranks, three runs: every token arrived")
    print(f"chunks/s: {statistics.median(rates):,.0f} (from {min(rates):,.0f} to {max(rates):,.0f})")
    print(f"server CPU per chunk, requests and start included: {cpu_s / chunks * 1e6:.1f} us")
    costs = [counter_cost() for _ in range(5)]
    print(f"TokenCounter.feed, one chat event: {min(costs):.2f} to {max(costs):.2f} us")


if __name__ == "__main__":
    main()

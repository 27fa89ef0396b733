"""Who places long and short requests best on Dynamo's mocker, four ranks in lock-step whose step cost is known.

    EQUIPOISE_DYNAMO_VENV=FOLDER python bench/router/mocker_itl.py [REPEATS] [SECONDS]

A step takes 10 ms + 0.02 ms a request + 0.1 us a context token of its slowest rank. 32 requests of 8,000 and 96 of 50
tokens come in random order, one every 2 ms, and are answered with 300 tokens each; no two share a prefix. In every
repeat all parties get the same lengths in the same order, in a random order of the parties:

by hand       every rank 8 long and 24 short ones, pinned: perfect balance of tokens
equipoise     `equipoise serve --policy equipoise` before Dynamo's frontend
dynamo kv     Dynamo's own KV router, nothing pinned
round robin   Dynamo's round robin, nothing pinned
in turns      the ranks in turn, pinned
apart         all long ones on rank 0 (first repeat only: what there is to lose)

With SECONDS above 0 they come over that long a time instead of at once. Prints a table for the docs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(
    0, str(Path(__file__).resolve().parents[2] / "tests" / "engines")
)  # the processes of the tests

from dynamo_processes import dynamo, free_port, ready, start_frontend, stop, write_cost, write_table

RANKS, TOKENS, SETTLED = 4, 300, 30
LONG, SHORT = (32, 8000), (96, 50)  # how many, tokens
BASE_MS, REQUEST_MS, TOKEN_MS = 10.0, 0.02, 1e-4
PARTIES = ("by hand", "equipoise", "dynamo kv", "round robin", "in turns", "apart")


class Asked:
    """One request and what came back."""

    def __init__(self, number: int, size: int, rank: int | None) -> None:
        self.number, self.size, self.rank = number, size, rank
        self.sent_s = self.first_s = self.from_s = self.last_s = 0.0
        self.tokens = self.from_token = 0
        self.served: int | None = None

    @property
    def itl_ms(self) -> float:
        """Mean time between its tokens, from about the thirtieth on: what was held up at the start has come by then."""
        return 1e3 * (self.last_s - self.from_s) / (self.tokens - self.from_token)


async def ask(session: aiohttp.ClientSession, url: str, worker: str, one: Asked, salt: int) -> None:
    dice = random.Random(salt * 1000 + one.number)
    body = {
        "model": "tiny", "prompt": [dice.randrange(5, 905) for _ in range(one.size)], "max_tokens": TOKENS,
        "ignore_eos": True, "stream": True, "nvext": {"extra_fields": ["worker_id"]},
    }  # fmt: skip
    pin = (
        {} if one.rank is None else {"x-dynamo-worker-instance-id": worker, "x-dynamo-dp-rank": str(one.rank)}
    )
    async with session.post(url + "/v1/completions", json=body, headers=pin) as response:
        response.raise_for_status()
        async for chunk in response.content.iter_any():
            new = chunk.count(b'"text":"') - chunk.count(b'"text":""')
            if new:
                one.last_s = time.monotonic()
                one.first_s = one.first_s or one.last_s
                one.tokens += new
                if one.tokens >= SETTLED and not one.from_token:
                    one.from_s, one.from_token = one.last_s, one.tokens
            at = chunk.find(b'"decode_dp_rank":')
            if at >= 0 and one.served is None:
                one.served = int(chunk[at + 17 :].split(b",")[0].split(b"}")[0])


async def run(
    party: str, repeat: int, seconds: float, session: aiohttp.ClientSession, urls: dict[str, str], worker: str
) -> tuple[float, float, list[Asked]]:
    """Mean ITL of all requests, ms; when all were done, s."""
    sizes = [LONG[1]] * LONG[0] + [SHORT[1]] * SHORT[0]
    random.Random(repeat).shuffle(sizes)
    seen: Counter[int] = Counter()
    made = []
    for number, size in enumerate(sizes):
        by_hand = {
            "by hand": seen[size] % RANKS,
            "in turns": number % RANKS,
            "apart": 0 if size == LONG[1] else number % 3 + 1,
        }
        seen[size] += 1
        made.append(Asked(number, size, by_hand.get(party)))
    gap_s = seconds / len(sizes) if seconds else 0.002
    salt = 100 * repeat + PARTIES.index(party)
    tasks = []
    began_s = time.monotonic()
    for number, one in enumerate(made):
        await asyncio.sleep(max(began_s + number * gap_s - time.monotonic(), 0.0))
        tasks.append(asyncio.create_task(ask(session, urls.get(party, urls["dynamo kv"]), worker, one, salt)))
    await asyncio.gather(*tasks)
    took_s = time.monotonic() - began_s
    wrong = [one for one in made if one.tokens != TOKENS]
    if wrong:
        raise SystemExit(f"{party}: {len(wrong)} answers were not {TOKENS} tokens long ({wrong[0].tokens})")
    return statistics.fmean(one.itl_ms for one in made), took_s, made


async def measure(folder: Path, repeats: int, seconds: float) -> dict[str, list[tuple[float, float, str]]]:
    table, cost, workers = folder / "cost.npz", folder / "known.toml", folder / "workers"
    write_table(table, BASE_MS, REQUEST_MS, TOKEN_MS)
    write_cost(cost, BASE_MS, REQUEST_MS, TOKEN_MS)
    found: dict[str, list[tuple[float, float, str]]] = {party: [] for party in PARTIES}
    extra: list[Any] = []
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
        dynamo(folder, RANKS, session, "--planner-profile-data", str(table)) as (kv, system),
    ):
        try:
            turns, ours = free_port(), free_port()
            extra.append(start_frontend(folder, turns, "round-robin"))
            await ready(f"http://127.0.0.1:{turns}", session, extra, folder)
            async with session.get(kv + "/health") as response:
                places = (await response.json())["instances"]
            (worker,) = {str(p["instance_id"]) for p in places if p["endpoint"] == "generate"}
            for _ in range(2):  # gauges appear with the first request
                await ask(session, kv, worker, Asked(0, 5, 0), 10**6)
            workers.write_text(f"{kv} engine=dynamo ranks={RANKS} metrics_url={system}\n")
            with (folder / "serve.log").open("wb") as log:
                command = [
                    sys.executable, "-m", "equipoise", "serve", "--workers-file", str(workers), "--policy", "equipoise",
                    "--cost", str(cost), "--port", str(ours), "--prometheus-port", "0",
                ]  # fmt: skip
                extra.append(subprocess.Popen(command, stdout=log, stderr=log))
            await ready(f"http://127.0.0.1:{ours}", session, extra, folder)
            await asyncio.sleep(2.0)
            urls = {
                "equipoise": f"http://127.0.0.1:{ours}",
                "dynamo kv": kv,
                "round robin": f"http://127.0.0.1:{turns}",
            }
            for repeat in range(repeats):
                order = [party for party in PARTIES if party != "apart" or repeat == 0]
                random.Random(repeat).shuffle(order)
                for party in order:
                    every, took_s, made = await run(party, repeat, seconds, session, urls, worker)
                    longs = Counter(one.served for one in made if one.size == LONG[1])
                    shorts = Counter(one.served for one in made if one.size == SHORT[1])
                    where = " ".join(f"{longs[r]}+{shorts[r]}" for r in range(RANKS))
                    found[party].append((every, took_s, where))
                    print(
                        f"{repeat + 1}/{repeats} {party}: {every:.2f} ms, all done in {took_s:.2f} s, {where}",
                        file=sys.stderr,
                    )
        finally:
            stop(extra)
    return found


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), repeats, seconds))
    hand = [every for every, _, _ in found["by hand"]]
    print(f"{date.today()}, {repeats} repeats, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(
        "| who places | mean ITL, ms | beside by hand, same repeat | long + short on each rank, first repeat |"
    )
    print("| --- | ---: | ---: | --- |")
    for party, rows in found.items():
        values = [every for every, _, _ in rows]
        done = [took_s for _, took_s, _ in rows]
        beside = [a / b for a, b in zip(values, hand, strict=False)]
        print(
            f"| {party} | {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) | "
            f"x {statistics.median(beside):.3f} ({min(beside):.3f} to {max(beside):.3f}) | "
            f"{statistics.median(done):.2f} | {rows[0][2]} |"
        )
    print(json.dumps({party: [row[:2] for row in rows] for party, rows in found.items()}), file=sys.stderr)


if __name__ == "__main__":
    main()

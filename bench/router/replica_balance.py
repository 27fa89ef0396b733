"""What it costs in balance that routers share a pool: one, two and four `equipoise serve` before the same engines.

The routers are processes with a real Redis. The engines are mock ones of 64 ranks in lock-step; their pages of metrics
are read by every router all the while, as in service. Requests land on a router by chance and are placed through the
decision API; each step of the engines is told to the router that gave the lease, so that the clock is that of the
engines and not of this machine. The price of every step, of what the ranks ran, is held against perfect balance.

    python bench/router/replica_balance.py [--seeds 3] [--requests 4000] [--instances 3] [--policies equipoise ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "serve"))
from replica_cases import RedisServer
from replica_processes import Router, Routers, routers

from equipoise import cost
from equipoise.testing.mock_engine import MockEngine
from equipoise.testing.mock_engine.core import Job

RANKS = 64
PER_RANK = 8
PRICE = cost.load("h200").in_us()
BATCH = 1024
"""Most requests in one question."""


def requests(count: int, seed: int) -> list[tuple[int, int]]:
    """Prompt and output lengths, long tails in both."""
    rng = random.Random(seed)
    return [
        (min(int(rng.lognormvariate(9.0, 1.1)) + 1, 120_000), min(int(rng.lognormvariate(4.0, 0.7)) + 2, 400))
        for _ in range(count)
    ]


class Play:
    """One trace before one group of routers."""

    def __init__(self, group: Routers, engines: list[MockEngine], seed: int) -> None:
        self.group, self.rng = group, random.Random(seed)
        self.engines = {engine.url: engine for engine in engines}
        self.live: list[tuple[Router, str, Job]] = []
        self.paid_us = self.ideal_us = self.pool_us = 0.0
        self.steps = 0

    async def ask(self, router: Router, path: str, body: Any) -> Any:
        async with self.group.client.post(f"{router.url}/v1/{path}", json=body) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            return found

    async def place_singly(self, work: list[tuple[int, int]]) -> None:
        """Requests come in one after another, each at some router."""
        for prompt, output in work:
            router = self.rng.choice(self.group.all)
            self.enter(router, prompt, output, await self.ask(router, "decide", {"context_tokens": prompt}))

    def enter(self, router: Router, prompt: int, output: int, chosen: dict[str, Any]) -> None:
        """A request is where it was decided to be."""
        assert chosen.get("lease"), chosen
        job = Job(chosen["rank"], prompt, output)
        self.engines[chosen["instance"]].core.submit(job)
        self.live.append((router, chosen["lease"], job))

    async def place(self, work: list[tuple[int, int]]) -> None:
        """Requests come in all at once, each at some router."""
        at: dict[Router, list[tuple[int, int]]] = {one: [] for one in self.group.all}
        for one in work:
            at[self.rng.choice(self.group.all)].append(one)

        async def there(router: Router, mine: list[tuple[int, int]]) -> None:
            for k in range(0, len(mine), BATCH):
                part = mine[k : k + BATCH]
                asks = [{"context_tokens": prompt} for prompt, _ in part]
                found = await self.ask(router, "decide", {"requests": asks})
                for (prompt, output), chosen in zip(part, found["decisions"], strict=True):
                    self.enter(router, prompt, output, chosen)

        await asyncio.gather(*(there(router, mine) for router, mine in at.items() if mine))

    def step(self) -> None:
        """One step of every engine."""
        batch_sum, held_sum = [], []
        for engine in self.engines.values():
            core = engine.core
            paid_s = core.begin()
            self.paid_us += paid_s * 1e6
            self.ideal_us += float(PRICE.ideal(core.batch, core.held_tokens))
            batch_sum += core.batch
            held_sum += core.held_tokens.tolist()
            engine._end_step()
        self.steps += 1
        self.pool_us += len(self.engines) * float(PRICE.ideal(batch_sum, held_sum))

    async def tell(self) -> None:
        """What became of the requests in this step."""
        still: list[tuple[Router, str, Job]] = []
        tokens: dict[Router, list[Any]] = {}
        ended: dict[Router, list[Any]] = {}
        for one in self.live:
            router, lease, job = one
            if job.finished_s >= 0:
                row = {"lease": lease, "prompt_tokens": job.prompt_tokens, "output_tokens": job.made}
                ended.setdefault(router, []).append(row)
            else:
                tokens.setdefault(router, []).append({"lease": lease, "tokens": 1})
                still.append(one)
        self.live = still
        await asyncio.gather(*(self.ask(r, "report", {"leases": rows}) for r, rows in tokens.items()))
        await asyncio.gather(*(self.ask(r, "release", {"leases": rows}) for r, rows in ended.items()))
        if len(self.group.all) > 1:
            # A real step takes 15 ms and more; news between routers take 5 where the machine is not this busy.
            await self.group.until(self.told)

    async def told(self) -> bool:
        for one in self.group.all:
            async with self.group.client.get(one.url + "/server_info") as answer:
                if (await answer.json())["untold"]:
                    return False
        return True

    async def run(self, work: list[tuple[int, int]], together: bool) -> None:
        """The trace until its last request has come: then the pool empties, and the tail is nobody's choice."""
        full = PER_RANK * RANKS * len(self.engines)
        left = list(reversed(work))
        while left:
            entering = [left.pop() for _ in range(min(full - len(self.live), len(left)))]
            # The pool is filled at once; what follows comes as it comes.
            await (self.place if together or not self.steps else self.place_singly)(entering)
            self.step()
            await self.tell()

    @property
    def excess(self) -> tuple[float, float]:
        """Over perfect balance inside each instance, and over that of the whole pool, in percent."""
        return 100.0 * (self.paid_us / self.ideal_us - 1.0), 100.0 * (self.paid_us / self.pool_us - 1.0)


async def measure(url: str, count: int, policy: str, given: argparse.Namespace) -> list[tuple[float, float]]:
    """Every seed before one group of routers, which begins anew for each."""
    found = []
    for seed in range(given.seeds):
        engines = [MockEngine("vllm", ranks=RANKS, cost="h200", manual=True) for _ in range(given.instances)]
        for engine in engines:
            await engine.start()
        urls = [engine.url for engine in engines]
        shared = ["--replicas-redis", url, "--replicas-pool", f"{policy}-{count}-{seed}"]
        arguments = ["--worker-urls", *urls, "--policy", policy, "--dp-size", str(RANKS), *shared]
        try:
            async with routers(count, [*arguments, "--log-level", "warning"], len(engines)) as group:
                play = Play(group, engines, seed)
                await play.run(requests(given.requests, seed), given.together)
                found.append(play.excess)
        finally:
            for engine in engines:
                await engine.stop()
    return found


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--policies", nargs="+", default=["equipoise", "least_tokens"])
    parser.add_argument("--together", action="store_true", help="all requests of a step come at once")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            print(
                f"{given.instances} instances of {RANKS} ranks, {PER_RANK} requests a rank, {given.seeds} seeds"
            )
            print(
                "excess in %: inside instances, over the whole pool spread evenly; the first count is the yardstick"
            )
            for policy in given.policies:
                alone: list[tuple[float, float]] = []
                for count in given.counts:
                    began_s = time.monotonic()
                    found = await measure(server.url, count, policy, given)
                    alone = alone or found
                    gaps = [[a[k] - b[k] for a, b in zip(found, alone, strict=True)] for k in (0, 1)]
                    row = {
                        "policy": policy,
                        "routers": count,
                        "inside": round(statistics.mean(one[0] for one in found), 3),
                        "pool": round(statistics.mean(one[1] for one in found), 3),
                        "inside_seeds": [round(one[0], 3) for one in found],
                        "inside_gaps": [round(gap, 3) for gap in gaps[0]],
                        "pool_gaps": [round(gap, 3) for gap in gaps[1]],
                        "wall_s": round(time.monotonic() - began_s),
                    }
                    print(json.dumps(row) if given.json else _line(row), flush=True)
        finally:
            server.stop()


def _line(row: dict[str, Any]) -> str:
    inside, pool = (max(row[f"{name}_gaps"], key=abs) for name in ("inside", "pool"))
    return (
        f"{row['policy']:14} {row['routers']} routers  inside {row['inside']:6.3f} (largest gap {inside:+.3f})"
        f"   pool {row['pool']:6.3f} (largest gap {pool:+.3f})   {row['wall_s']} s"
    )


if __name__ == "__main__":
    asyncio.run(main())

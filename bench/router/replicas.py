"""Several routers before one pool: what it costs in balance, and what a killed owner costs.

Two parts. *Balance*: an instance of 64 ranks in lock-step on a simulated clock, requests landing on one, two or four
routers (one loop, real HTTP between them, a real Redis); the excess over perfect balance is taken from what the ranks
ran. *Kill*: routers as processes under load, the owner killed with SIGKILL; leases of the survivors are counted one by
one in the new owner's ledger.

    python bench/router/replicas.py [--requests 1500] [--seeds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "serve"))
from replica_cases import QUICK, RedisServer, node, settled, until

from equipoise import cost
from equipoise.router import Arrival
from equipoise.serve.lease import Lease

RANKS = 64
PER_RANK = 12
PATIENT = replace(QUICK, ttl_s=6.0, rebuild_s=2.0, call_s=10.0, gone_s=60.0)


def requests(count: int, seed: int) -> list[tuple[int, int]]:
    """Prompt and output lengths, long tails in both."""
    rng = random.Random(seed)
    return [
        (min(int(rng.lognormvariate(9.0, 1.1)) + 1, 120_000), min(int(rng.lognormvariate(4.0, 0.7)) + 2, 400))
        for _ in range(count)
    ]


async def balance(url: str, count: int, work: list[tuple[int, int]], policy: str, seed: int) -> float:
    """Excess of the steps' price over that of perfect balance, in percent, by what the ranks ran."""
    price = cost.load("h200")
    options = {
        "instances": 1,
        "ranks": RANKS,
        "policy": policy,
        "timing": PATIENT,
        "price": price,
        "capacity": None,
    }
    nodes = [await node(url, **options) for _ in range(count)]
    rng = random.Random(seed)
    try:
        await until(lambda: settled(nodes, 1), 60)
        left, running, paid, ideal = list(reversed(work)), [], 0.0, 0.0
        while left or running:
            room = min(PER_RANK * RANKS - len(running), len(left))
            entering = [left.pop() for _ in range(room)]
            leases = await asyncio.gather(
                *(
                    nodes[rng.randrange(count)].driver.place(Arrival(f"{len(left) + k}", prompt))
                    for k, (prompt, _) in enumerate(entering)
                )
            )
            for lease, (prompt, output) in zip(leases, entering, strict=True):
                assert isinstance(lease, Lease), lease
                running.append([lease, prompt, output])
            batch, context = [0] * RANKS, [0] * RANKS
            for lease, prompt, _ in running:
                batch[lease.rank] += 1
                context[lease.rank] += prompt
            if left:  # the pool is full: the tail is nobody's choice
                paid += float(price.cost(batch, context))
                ideal += float(price.ideal(batch, context))
            still = []
            for one in running:
                one[1] += 1
                one[2] -= 1
                one[0].tokens(1)
                if one[2] > 0:
                    still.append(one)
                else:
                    one[0].finished()
            running = still
            # a step takes 15 ms and more where it is real: news between routers take 5
            await until(lambda: not any(p.untold for n in nodes for p in n.owners.peers.values()), 60)
        return 100.0 * (paid / ideal - 1.0)
    finally:
        for one in nodes:
            await one.owners.close()
            one.driver.close()


async def worker(url: str, instances: int) -> None:
    """A router as a process: runs requests for ever, prints what it has and knows."""
    one = await node(url, instances=instances, ranks=8)
    rng, serial = random.Random(os.getpid()), 0
    live: list[Lease] = []
    calm = False
    refused = 0

    async def stdin() -> None:
        nonlocal calm
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, sys.stdin.readline)
        calm = True

    task = asyncio.ensure_future(stdin())
    while True:
        if not calm and len(live) < 200:
            serial += 1
            found = await one.driver.place(Arrival(f"{os.getpid()}.{serial}", rng.randrange(1, 4000)))
            if isinstance(found, Lease):
                live.append(found)
            else:
                refused += 1
        elif not calm:
            live.pop(rng.randrange(len(live))).finished()
        for lease in rng.sample(live, min(len(live), 10)):
            if not calm:
                lease.tokens(1)
        live = [lease for lease in live if lease.ended is None]
        kept = one.owners.keeper.kept
        print(
            json.dumps(
                {
                    "name": one.owners.name,
                    "serving": sorted(one.serving),
                    "live": len(live),
                    "here": sum(not lease.far for lease in live),
                    "leases": one.router.view().leases,
                    "kept": [f"{kept[gid].router}" for gid in kept],
                    "sound": one.router.integrity().sound,
                    "untold": sum(p.untold for p in one.owners.peers.values()),
                    "rebuild_s": one.owners.moves.rebuild_s,
                    "refused": refused,
                    "serial": serial,
                    "at": time.monotonic(),
                }
            ),
            flush=True,
        )
        await asyncio.sleep(0.1 if calm else 0.002)
    await task


class Process:
    """A worker."""

    def __init__(self, url: str, instances: int) -> None:
        command = [sys.executable, __file__, "--worker", url, "--instances", str(instances)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.last: dict = {}

    def read(self) -> dict:
        """Its next words."""
        assert self.process.stdout is not None
        self.last = json.loads(self.process.stdout.readline())
        return self.last


def kill(url: str, count: int, instances: int) -> str:
    """Kill an owner under load; check every lease."""
    import threading

    group = [Process(url, instances) for _ in range(count)]
    stop = False

    def follow(one: Process) -> None:
        while not stop:
            try:
                one.read()
            except ValueError:
                return

    threads = [threading.Thread(target=follow, args=(one,), daemon=True) for one in group]
    for thread in threads:
        thread.start()

    def wait(condition, seconds=90.0):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise SystemExit(f"did not come true; last words: {[one.last for one in group]}")
            time.sleep(0.005)

    try:
        wait(
            lambda: (
                all(one.last.get("live", 0) > 100 for one in group)
                and sum(len(one.last["serving"]) for one in group) == instances
            )
        )
        victim = max(group, key=lambda one: len(one.last["serving"]))
        rest = [one for one in group if one is not victim]
        owned = len(victim.last["serving"])
        began = time.monotonic()
        os.kill(victim.process.pid, signal.SIGKILL)
        wait(lambda: sum(len(one.last["serving"]) for one in rest) == instances)
        took = time.monotonic() - began
        before = [one.last["serial"] for one in rest]
        wait(lambda: all(one.last["serial"] > n + 50 for one, n in zip(rest, before, strict=True)))
        for one in rest:
            assert one.process.stdin is not None
            one.process.stdin.write(b"\n")
            one.process.stdin.flush()
        names = [one.last["name"] for one in rest]
        wait(lambda: all(not set(one.last["kept"]) - set(names) for one in rest))  # the dead one's have gone
        time.sleep(1.0)
        live = sum(one.last["live"] for one in rest)
        held = sum(one.last["leases"] for one in rest)
        far = sum(one.last["live"] - one.last["here"] for one in rest)
        kept = sum(len(one.last["kept"]) for one in rest)
        sound = all(one.last["sound"] for one in rest)
        refused = sum(one.last["refused"] for one in rest)
        verdict = "none lost, none doubled" if live == held and far == kept and sound else "WRONG"
        return (
            f"{count} routers, the owner of {owned} of {instances} instances killed: all owned and rebuilt after "
            f"{took:.2f} s; {live} requests live, {held} in ledgers, {far} told to other owners, {kept} kept: "
            f"{verdict}; {refused} refused"
        )
    finally:
        stop = True
        for one in group:
            one.process.kill()
            one.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=["balance", "kill"])
    parser.add_argument("--worker")
    parser.add_argument("--instances", type=int, default=4)
    given = parser.parse_args()
    if given.worker:
        asyncio.run(worker(given.worker, given.instances))
        return
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        server.start()
        try:
            if given.only != "kill":
                print(f"excess over perfect balance, %, one instance of {RANKS} ranks, {given.seeds} seeds")
                for policy in ("equipoise", "least_tokens"):
                    alone: list[float] = []
                    for count in (1, 2, 4):
                        found = [
                            asyncio.run(balance(server.url, count, requests(given.requests, s), policy, s))
                            for s in range(given.seeds)
                        ]
                        alone = alone or found
                        gap = max(abs(a - b) for a, b in zip(found, alone, strict=True))
                        print(
                            f"{policy:14} {count} routers  {statistics.mean(found):6.3f}"
                            f"   largest difference to one router {gap:.3f}",
                            flush=True,
                        )
            if given.only != "balance":
                for count in (2, 4):
                    print(kill(server.url, count, given.instances), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()

"""Several routers before one pool: what a killed owner costs.

Routers as processes under load, the owner killed with SIGKILL; leases of the survivors are counted one by one in the
new owner's ledger. What several routers cost in balance: `bench/router/replica_balance.py`.

    python bench/router/replicas.py [--instances 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "serve"))
from replica_cases import RedisServer, node

from equipoise.router import Arrival
from equipoise.serve.lease import Lease


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
            for count in (2, 4):
                print(kill(server.url, count, given.instances), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()

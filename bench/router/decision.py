"""Time of one decision of the router, in process, the Python call included: ``python bench/router/decision.py``.

For each policy and pool: the pool is filled to about 24 requests a rank, then requests arrive one by one (or sixteen at
one boundary), each answered by one that ends, so that the load stays. Timed is ``arrived`` (``arrived_many``) alone.
Garbage is collected between runs, not in them. Prints a row each, and with ``--json`` one JSON line; the best of twelve
runs. On a machine that does other things too the clock has long tails: what the thread spent on a processor stands
beside it (the two readings themselves are in it, half a microsecond).
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import time

import numpy as np

from equipoise.cost import load
from equipoise.router import Arrival, InstanceSpec, Router, Settings

BARS_US = {64: 20.0, 6_400: 500.0}
FILL, RUNS = 24, 12


def measure(
    router: Router, waiting: int, decisions: int, now: float, live: list[int], seen: int
) -> np.ndarray:
    """Microseconds of each decision."""
    random = np.random.default_rng(seen)
    took = np.empty((2, decisions))
    for k in range(decisions):
        now += 1e-4
        sizes = random.lognormal(9.0, 1.0, waiting).astype(int) + 1
        arrivals = [Arrival(f"{waiting}/{seen + k}/{j}", int(size)) for j, size in enumerate(sizes)]
        on_cpu = time.thread_time_ns()
        began = time.perf_counter_ns()
        if waiting == 1:
            actions = router.arrived(now, arrivals[0])
        else:
            actions = router.arrived_many(now, arrivals)
        took[:, k] = time.perf_counter_ns() - began, time.thread_time_ns() - on_cpu
        for action in actions:
            j = int(random.integers(len(live)))
            router.tokens(now, live[j], 100)
            router.finished(now, live[j])
            live[j] = action.lease
    return took / 1e3


def main() -> None:
    rows = []
    print("policy      ranks  waiting   p50 us   p99 us   p50 cpu  p99 cpu   bar us")
    for policy in ("dualpath", "equipoise"):
        for ranks in (64, 1_024, 6_400):
            specs = [InstanceSpec(f"i{i}", 64, 2_000_000) for i in range(ranks // 64)]
            router = Router(specs, policy, load("v2"), Settings(reports="none"))
            random = np.random.default_rng(1)
            live: list[int] = []
            for first in range(0, FILL * ranks, ranks):
                sizes = random.lognormal(9.0, 1.0, ranks).astype(int) + 1
                actions = router.arrived_many(
                    first * 1e-6, [Arrival(f"fill {first + j}", int(s)) for j, s in enumerate(sizes)]
                )
                live += [action.lease for action in actions]
            for waiting in (1, 16):
                count = 1_000 if ranks < 6_400 else 400
                best = None
                for run in range(RUNS):
                    gc.collect()
                    gc.disable()
                    took = measure(router, waiting, count, 10.0 + run, live, 1_000_000 * (run + 1) + waiting)
                    gc.enable()
                    found = [float(q) for times in took for q in np.percentile(times, [50, 99])]
                    best = found if best is None else [min(pair) for pair in zip(best, found, strict=True)]
                bar = BARS_US.get(ranks) if waiting == 1 else None
                names = ("p50_us", "p99_us", "p50_cpu_us", "p99_cpu_us")
                row = {"policy": policy, "ranks": ranks, "waiting": waiting}
                rows.append(row | dict(zip(names, best, strict=True)))
                limit = f"{bar:8.0f}" if bar else "       -"
                shown = " ".join(f"{value:8.1f}" for value in best)
                print(f"{policy:10s} {ranks:6d} {waiting:8d} {shown} {limit}", flush=True)
    if "--json" in sys.argv[1:]:
        print(json.dumps(rows))


if __name__ == "__main__":
    logging.disable()
    main()

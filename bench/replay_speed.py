"""Requests a second of the replay kernel on one core: ``python bench/replay_speed.py POLICY INSTANCES REQUESTS RUNS``.

Prints one JSON line: the rates of the runs after one warm-up run, steps a run, and the peak memory of the process.
"""

from __future__ import annotations

import json
import resource
import sys

from equipoise.cost import load
from equipoise.replay import Pool, replay
from workloads import agentic_sized


def main(policy: str, instances: str, requests: str, runs: str) -> None:
    trace = agentic_sized(int(requests))
    pool = Pool(instances=int(instances), ranks=64)
    rates = []
    steps = 0
    for run in range(int(runs) + 1):
        result = replay(trace, pool, policy, load("v2"), drain=False)
        if run:
            rates.append(len(trace) / result.wall_s)
            steps = result.steps
        del result
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"rates": rates, "steps": steps, "peak_mib": peak_kib / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One hour of agentic-coding on 200P100D: ``python bench/fleet_scale.py [SECONDS [POLICY [GROUP_POLICY]]]``.

100 decode instances of 64 ranks behind 200 prefill instances, 8,000 requests a second, everything that the bar names
switched on. Prints one JSON line: requests, seconds of replay and of preparing, peak memory, and what the pool did.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from equipoise.cost import load
from equipoise.fleet import Deployment, KvMemory, Prefill, Speculation, StepExtras, Transfer, simulate
from equipoise.replay import Information, Pool
from equipoise.traces import synth

RATE_PER_S = 8_000


def deployment(instances: int = 100, ranks: int = 64, information: Information | None = None) -> Deployment:
    """200P100D, or another number of decode instances with two prefill instances for every 64 ranks."""
    prefill = max(1, round(2 * instances * ranks / 64))
    return Deployment(
        Pool(instances, ranks, kv_capacity_tokens=8_000_000, max_batch=256, groups=instances),
        information=information or Information(),
        prefill=Prefill("pool", instances=prefill, ranks=8, chunk_tokens=16_384, s_per_token=2e-6),
        transfer=Transfer(0.01, 2e-8),
        memory=KvMemory(64, "recompute"),
        step=StepExtras(
            overhead_us=500,
            graph_sizes=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
            ffn_us_per_mean_token=10,
            ffn_us_per_max_token=5,
            comm_us=200,
            comm_us_per_max_token=3,
            ep_skew=1.3,
            ep_skew_sigma=0.1,
            rank_speed_sigma=0.02,
        ),
        speculation=Speculation(3, 0.7),
    )


def main(seconds: float, policy: str, group_policy: str) -> None:
    began = time.perf_counter()
    trace = synth("agentic-coding", requests=int(RATE_PER_S * seconds), seed=1)
    scale = RATE_PER_S / (len(trace) / trace.arrival_s[-1])
    prepared_s = time.perf_counter() - began
    cpu = time.process_time()
    result = simulate(
        trace, deployment(), policy, load("h200"), mode="timed", rate_scale=scale, group_policy=group_policy,
        drain=False, keep_requests=False, engine="kernel",
    )  # fmt: skip
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "requests": len(trace),
                "policy": policy,
                "preparing_s": round(prepared_s, 1),
                "replay_s": round(result.wall_s, 1),
                "cpu_s": round(time.process_time() - cpu, 1),
                "all_s": round(time.perf_counter() - began, 1),
                "requests_per_s": round(len(trace) / result.wall_s),
                "peak_gib": round(peak_kib / 2**20, 2),
                "steps": result.steps,
                "mean_batch": round(result.mean_batch, 1),
                "mean_step_ms": round(result.mean_step_ms, 2),
                "excess": round(result.excess, 4),
                "counts": result.counts,
            }
        )
    )


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0,
        sys.argv[2] if len(sys.argv) > 2 else "dualpath",
        sys.argv[3] if len(sys.argv) > 3 else "least_batch",
    )

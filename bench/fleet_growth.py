"""Cost of a simulated request from 8 to 6,400 ranks: ``python bench/fleet_growth.py PICTURE``.

The same load on every rank; `dualpath` choosing among all ranks at once, or an instance first and then one of its
ranks. Prints one JSON line a size and draws microseconds a request.
"""

from __future__ import annotations

import json
import sys

from equipoise.cost import load
from equipoise.fleet import simulate
from equipoise.replay import Pool
from equipoise.traces import synth

SHAPES = ((1, 8), (1, 16), (1, 32), (1, 64), (4, 64), (16, 64), (50, 64), (100, 64))
RATE_PER_RANK_S = 1.25
"""8,000 requests a second on 6,400 ranks."""


def us_per_request(instances: int, ranks: int, groups: int, requests: int) -> float:
    """Microseconds a request, the better of two runs."""
    trace = synth("agentic-coding", requests=requests, seed=1)
    scale = RATE_PER_RANK_S * instances * ranks / (len(trace) / float(trace.arrival_s[-1]))
    pool = Pool(instances, ranks, groups=groups)
    runs = [
        simulate(
            trace,
            pool,
            "dualpath",
            load("h200"),
            mode="timed",
            rate_scale=scale,
            drain=False,
            keep_requests=False,
            engine="kernel",
        )
        for _ in range(2)
    ]
    return min(1e6 * r.wall_s / len(trace) for r in runs)


def main(picture: str) -> None:
    """Measure and draw."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes, flat, grouped = [], [], []
    for instances, ranks in SHAPES:
        total = instances * ranks
        requests = max(40_000, 60 * total)
        sizes.append(total)
        flat.append(us_per_request(instances, ranks, 1, requests))
        grouped.append(us_per_request(instances, ranks, instances, requests))
        print(
            json.dumps(
                {"ranks": total, "flat_us": round(flat[-1], 2), "instance_first_us": round(grouped[-1], 2)}
            ),
            flush=True,
        )
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.loglog(sizes, flat, "o-", label="choice among all ranks")
    axes.loglog(sizes, grouped, "s-", label="an instance first, then one of its ranks")
    axes.set_xticks(sizes, [f"{s:,}" for s in sizes])
    axes.minorticks_off()
    axes.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    axes.set_xlabel("ranks, 1.25 requests a second each")
    axes.set_ylabel("microseconds a request")
    axes.set_title("Cost of a simulated request by size of the pool")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main(sys.argv[1])

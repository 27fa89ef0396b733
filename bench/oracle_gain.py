"""What someone who knew the future would win beyond `equipoise`: ``python bench/oracle_gain.py [--seeds 3]``.

For the presets of `policy_quality.py`, 32 requests a rank: excess over ideal of round robin, `dualpath` at its best z,
`equipoise` with and without a hold, and the oracle; and the share of what round robin loses to the oracle that each
policy wins. Same workloads and seeds as there.
``--traces claude-code,mooncake`` takes the public traces beside the checkout, ``--pools "DP64 100" --costs v1,h200``
other cells, ``--loads 0.6,0.95`` requests that come by the clock.
"""

from __future__ import annotations

import argparse

import numpy as np

from equipoise.replay import Pool
from equipoise.study.oracle import Budget, oracle
from equipoise.study.share import share
from policy_quality import (
    COSTS,
    PRESETS,
    SHAPES,
    Cell,
    best_dualpath,
    cost_of,
    head,
    requests_of,
    row,
    run,
    timing,
)

POLICIES = ("dualpath", "equipoise", "equipoise,hold_steps=4")


def known(cell: Cell, z: float, seed: int, candidates: int) -> float:
    """Excess of the oracle."""
    ranks, each = SHAPES[cell.shape]
    found = oracle(
        requests_of(cell.trace, ranks * each, seed, cell.load is not None),
        Pool(ranks=ranks),
        cost_of(cell.cost),
        budget=Budget(candidates=candidates),
        policies=[f"dualpath,z={z}"],
        seed=seed,
        **timing(cell, seed),
    )
    return found.result.excess


def compare(cell: Cell, seeds: range, candidates: int) -> None:
    """A row of the table."""
    z, runs = best_dualpath(cell, seeds)
    found = {"dualpath": [r.excess for r in runs]}
    for policy in ("round_robin", *POLICIES[1:]):
        found[policy] = [run(cell, policy, seed).excess for seed in seeds]
    best = [known(cell, z, seed, candidates) for seed in seeds]
    wins = []
    for policy in POLICIES:
        won = share(found["round_robin"], found[policy], best)
        wins.append(f"{100 * won.mean:.1f} ± {100 * (won.high - won.mean):.1f}")
    percent = {name: f"{100 * np.mean(values):.2f}" for name, values in found.items()}
    row(
        cell.shape if cell.load is None else f"{cell.shape}, {cell.load:.0%}",
        cell.trace, cell.cost, percent["round_robin"], percent["dualpath"], f"{z:g}",
        *(percent[policy] for policy in POLICIES[1:]), f"{100 * np.mean(best):.2f}", *wins,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=3_000_000)
    parser.add_argument("--traces", default=",".join(PRESETS))
    parser.add_argument("--pools", default="DP64 32,DP8 32")
    parser.add_argument("--costs", default=",".join(COSTS))
    parser.add_argument("--loads", default="")
    asked = parser.parse_args()
    loads: list[float | None] = [float(text) for text in asked.loads.split(",") if text] or [None]
    names = ("round_robin, %", "dualpath, %", "z", "equipoise, %", "hold 4, %", "oracle, %")
    head("pool", "trace", "cost", *names, "dualpath wins", "equipoise wins", "hold 4 wins")
    for shape in asked.pools.split(","):
        for trace in asked.traces.split(","):
            for cost in asked.costs.split(","):
                for load in loads:
                    compare(Cell(trace, cost, shape, load), range(asked.seeds), asked.candidates)


if __name__ == "__main__":
    main()

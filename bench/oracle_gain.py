"""What someone who knew the future would win beyond `equipoise`: ``python bench/oracle_gain.py [--seeds 3]``.

For the presets of `policy_quality.py`, 32 requests a rank: excess over ideal of round robin, `dualpath` at its best z,
`equipoise` with and without a hold, and the oracle; and the share of what round robin loses to the oracle that each
policy wins. Same workloads and seeds as there.
``--traces claude-code,mooncake`` takes the public traces beside the checkout.
"""

from __future__ import annotations

import argparse

import numpy as np

from equipoise.replay import Pool
from equipoise.study.oracle import Budget, oracle
from equipoise.study.share import share
from policy_quality import COSTS, PRESETS, SHAPES, Cell, best_dualpath, cost_of, head, requests_of, row, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=3_000_000)
    parser.add_argument("--traces", default=",".join(PRESETS))
    parser.add_argument("--pools", default="DP64 32,DP8 32")
    asked = parser.parse_args()
    seeds = range(asked.seeds)
    names = ("round_robin, %", "dualpath, %", "z", "equipoise, %", "hold 4, %", "oracle, %")
    head("pool", "trace", "cost", *names, "dualpath wins", "equipoise wins", "hold 4 wins")
    for shape in asked.pools.split(","):
        ranks, each = SHAPES[shape]
        for trace in asked.traces.split(","):
            for cost in COSTS:
                cell = Cell(trace, cost, shape)
                z, runs = best_dualpath(cell, seeds)
                found = {"dualpath": [r.excess for r in runs]}
                for policy in ("round_robin", "equipoise", "equipoise,hold_steps=4"):
                    found[policy] = [run(cell, policy, seed).excess for seed in seeds]
                best = [
                    oracle(
                        requests_of(trace, ranks * each, seed, False),
                        Pool(ranks=ranks),
                        cost_of(cost),
                        budget=Budget(candidates=asked.candidates),
                        policies=[f"dualpath,z={z}"],
                        seed=seed,
                        concurrency=ranks * each,
                        drain=False,
                    ).result.excess
                    for seed in seeds
                ]
                wins = []
                for policy in ("dualpath", "equipoise", "equipoise,hold_steps=4"):
                    won = share(found["round_robin"], found[policy], best)
                    wins.append(f"{100 * won.mean:.1f} ± {100 * (won.high - won.mean):.1f}")
                percent = {name: f"{100 * np.mean(values):.2f}" for name, values in found.items()}
                row(
                    shape, trace, cost, percent["round_robin"], percent["dualpath"], f"{z:g}",
                    percent["equipoise"], percent["equipoise,hold_steps=4"], f"{100 * np.mean(best):.2f}", *wins,
                )  # fmt: skip


if __name__ == "__main__":
    main()

"""Who decides, and on what: the tables of docs/explain/information.md. ``python scripts/information_study.py FOLDER``.

FOLDER holds the public traces (``claude-code-weka/...csv.gz``, ``mooncake-fast25/...jsonl.gz``); where one is missing,
presets stand in for it, and the table says so. Timed runs under the measured H200 cost; `dualpath` at its best z for
each row. ``--part who|groups|size`` runs one of the three tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from equipoise.cost import load
from equipoise.fleet import Deployment, FleetResult, simulate
from equipoise.replay import Information, Pool
from equipoise.study.statistics import over_seeds
from equipoise.study.verdicts import information_words
from equipoise.study.workloads import load_source, rate_for, workload
from equipoise.traces.trace import Trace

RATIOS = (1.0, 1.02, 1.05, 1.1, 1.3)
POLICIES = ("least_batch", "least_tokens", "power_of_two", "equipoise")
SEEDS = range(3)
EACH = 32
"""Requests a rank, about."""
FILES = {
    "claude-code": ("claude-code-weka/claude_code_sessions.csv.gz", "agentic-coding"),
    "mooncake": ("mooncake-fast25/conversation_trace.jsonl.gz", "mixed-tail"),
}
ARRIVALS = {"smooth": 1.0, "bursty": 3.0}
"""Coefficient of variation of the gaps: a Poisson stream, and bursts (gamma)."""
COST = load("h200")
LATE_S = (0.0, 0.1, 0.5)
ROWS = (
    Information(),
    Information("ledger", period_steps=16, delay_steps=16),
    *(Information("extrapolated", period_steps=1 << 12, delay_s=s) for s in (0.5,)),
    *(Information("acknowledged", period_s=0.1 if s else 0.0, delay_s=s) for s in LATE_S),
    *(Information("erased", period_s=0.1 if s else 0.0, delay_s=s) for s in LATE_S),
    *(Information("ledger", k, 1, 4) for k in (2, 4, 8)),
    Information("acknowledged", 4, 4, 4),
    Information("erased", 4, 16, 16),
)


def requests_of(folder: Path, name: str, cv: float, concurrency: int, seed: int) -> Trace:
    """Requests of a trace, their arrivals drawn anew: a renewal process with gamma gaps, mean 1 s."""
    path, preset = FILES[name]
    spec = str(folder / path) if (folder / path).is_file() else preset
    found = workload(
        spec,
        load_source(spec),
        seed=seed,
        concurrency=concurrency,
        requests=max(12 * concurrency, 6000),
        timed=True,
    )
    rng = np.random.default_rng([seed, round(10 * cv)])
    gaps = rng.gamma(1 / cv**2, cv**2, len(found))
    return found.take(rng.permutation(len(found)), arrival_s=np.cumsum(gaps) - gaps[0])


def ran(
    trace: Trace, pool: Pool, information: Information, policy: str, seed: int, group_policy: str
) -> FleetResult:
    """One run at about `EACH` requests a rank."""
    rate = rate_for(trace, COST, pool, EACH * pool.total_ranks)
    return simulate(
        trace, Deployment(pool, information=information), policy, COST, mode="timed", rate_scale=rate, seed=seed,
        drain=False, group_policy=group_policy,  # type: ignore[arg-type]
    )  # fmt: skip


def row(
    title: str,
    traces: Sequence[Trace],
    pool: Pool,
    information: Information,
    group_policy: str = "least_batch",
) -> None:
    """Print one row: excess of each policy, of dualpath at its best z, and p99 TPOT of the last two."""
    found: dict[str, list[FleetResult]] = {
        p: [ran(t, pool, information, p, seed, group_policy) for seed, t in enumerate(traces)]
        for p in (*POLICIES, *(f"dualpath,z={z}" for z in RATIOS))
    }
    mean = {p: float(np.mean([r.attention_excess for r in runs])) for p, runs in found.items()}
    best = min((p for p in found if p.startswith("dualpath")), key=lambda p: mean[p])
    cells = [title]
    for p in (*POLICIES[:3], best, POLICIES[3]):
        interval = over_seeds([100 * r.attention_excess for r in found[p]])
        cells.append(f"{interval.mean:.1f} ± {(interval.high - interval.low) / 2:.1f}")
    for p in (best, POLICIES[3]):
        tails = [r.tpot_ms.p99 for r in found[p] if r.tpot_ms is not None]
        cells.append(f"{np.mean(tails):.1f}")
    print("| " + " | ".join(cells) + " |", flush=True)


def head(first: str) -> None:
    """The head of a table."""
    names = [*POLICIES[:3], "dualpath", POLICIES[3]]
    columns = [first, *(f"`{n}`, %" for n in names), "p99 TPOT `dualpath`, ms", "p99 TPOT `equipoise`, ms"]
    print("\n| " + " | ".join(columns) + " |\n" + "| --- " * len(columns) + "|", flush=True)


def main() -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path)
    options.add_argument("--part", choices=("who", "owners", "groups", "size"))
    chosen = options.parse_args()
    folder, part = chosen.folder, chosen.part

    def traces(name: str, cv: float, ranks: int) -> list[Trace]:
        return [requests_of(folder, name, cv, EACH * ranks, seed) for seed in SEEDS]

    if part in (None, "who"):
        for name in FILES:
            for arrivals, cv in ARRIVALS.items():
                head(f"{name}, {arrivals}")
                drawn = traces(name, cv, 64)
                for information in ROWS:
                    row(information_words(information), drawn, Pool(ranks=64), information)
    if part in (None, "owners"):
        head("claude-code, smooth, 4 instances of 16 ranks, four replicas")
        drawn = traces("claude-code", 1.0, 64)
        for title, information in (
            ("one router, exact", Information()),
            ("each its own requests, reports 4 steps late", Information("ledger", 4, 1, 4)),
            (
                "one writer an instance, chosen on reports 4 steps late",
                Information("ledger", 4, 1, 4, split="instance"),
            ),
            (
                "one writer an instance, chosen on reports 16 steps late",
                Information("ledger", 4, 16, 16, split="instance"),
            ),
        ):
            row(title, drawn, Pool(4, 16), information)
    if part in (None, "groups"):
        head("claude-code, smooth, 10 instances of 8 ranks, groups")
        drawn = traces("claude-code", 1.0, 80)
        for groups in (1, 2, 5, 10):
            row(str(groups), drawn, Pool(10, 8, groups=groups), Information())
    if part in (None, "size"):
        for title, information in (
            ("exact", Information()),
            ("erased, 8 steps late", Information("erased", 1, 8, 8)),
        ):
            head(f"claude-code, smooth, DP size, {title}")
            for ranks in (8, 16, 64, 256):
                row(str(ranks), traces("claude-code", 1.0, ranks), Pool(ranks=ranks), information)


if __name__ == "__main__":
    main()

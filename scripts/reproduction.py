"""The article's experiments on real traces: ``make acceptance``.

Runs the comparison on the public Claude Code and Mooncake traces beside the checkout and writes its tables between the
markers of docs/explain/reproduction.md. What the tables mean is written there by hand.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.cost import load
from equipoise.policies import parse
from equipoise.replay import Pool
from equipoise.study import ComparePlan, Comparison, Interval, Setting, compare

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explain" / "reproduction.md"
TRACES = {
    "Claude Code": "traces/claude-code-weka/claude_code_sessions.csv.gz",
    "Mooncake conversation": "traces/mooncake-fast25/conversation_trace.jsonl.gz",
}
POOLS = ((8, 256), (64, 2048), (64, 6400))
Z = (0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5)
SIMPLE = ("least_batch", "least_tokens", "length_split", "length_split,swapped=true")
SEEDS = 5


def percent(interval: Interval) -> str:
    return f"{100 * interval.mean:.2f} ± {50 * (interval.high - interval.low):.2f}"


def study(path: Path, ranks: int, concurrency: int) -> Comparison:
    policies = [*SIMPLE, *(f"dualpath,z={z}" for z in Z), *(f"dualpath,z={z},average=current" for z in Z)]
    plan = ComparePlan(
        traces=[str(path)],
        costs=[load("v1"), load("v2")],
        policies=[parse(p) for p in policies],
        pool=Pool(ranks=ranks),
        concurrency=concurrency,
        seeds=SEEDS,
    )
    return compare(plan, jobs=os.cpu_count() or 1)


def policy_table(comparison: Comparison) -> list[str]:
    v1, v2 = comparison.settings()
    lines = [
        "| policy | V1 excess % | V2 excess % | max/mean batch | max/mean tokens |",
        "|---|---|---|---|---|",
    ]
    best = {comparison.best(s).policy.label for s in (v1, v2)}
    for a, b in zip(comparison.of(v1), comparison.of(v2), strict=True):
        label = f"**{a.policy.label}**" if a.policy.label in best else a.policy.label
        lines.append(
            f"| {label} | {percent(a.excess)} | {percent(b.excess)} "
            f"| {a.mean('max_over_mean_batch'):.3f} | {a.mean('max_over_mean_context'):.3f} |"
        )
    return lines


def best_z(comparison: Comparison, setting: Setting, average: str) -> tuple[str, str]:
    """The cheapest z with those not told apart from it, and the z of the best token balance."""
    cells = [c for c in comparison.of(setting) if c.policy.params.get("average") == average]
    best = min(cells, key=lambda c: c.excess.mean)
    tied = [
        c.policy.params["z"] for c in cells if c is best or comparison.difference(c, best).excess.covers_zero
    ]
    even = min(cells, key=lambda c: c.mean("max_over_mean_context"))
    others = ", ".join(f"{z:g}" for z in tied if z != best.policy.params["z"])
    return f"{best.policy.params['z']:g}" + (
        f" (or {others})" if others else ""
    ), f"{even.policy.params['z']:g}"


def z_table(studies: Sequence[tuple[str, int, int, Comparison]]) -> list[str]:
    lines = [
        "| trace | pool | mean read as | cheapest z, V1 | cheapest z, V2 | z of the most even tokens |",
        "|---|---|---|---|---|---|",
    ]
    for name, ranks, concurrency, comparison in studies:
        v1, v2 = comparison.settings()
        for average in ("projected", "current"):
            z1, even = best_z(comparison, v1, average)
            z2, _ = best_z(comparison, v2, average)
            lines.append(f"| {name} | DP{ranks} / {concurrency} | {average} | {z1} | {z2} | {even} |")
    return lines


def group_table(path: Path) -> list[str]:
    plan = ComparePlan(
        traces=[str(path)],
        costs=[load("v1"), load("v2")],
        policies=[
            parse("dualpath,z=1.2"),
            parse("dualpath,z=1.05"),
            parse("least_batch"),
            parse("least_tokens"),
        ],
        pool=Pool(instances=10, ranks=64),
        groups=(1, 2, 4, 10),
        group_policies=("least_batch", "least_tokens"),
        seeds=3,
        baseline="dualpath,z=1.2",
    )
    comparison = compare(plan, jobs=os.cpu_count() or 1)
    labels = [p.label for p in plan.policies]
    lines = [
        "| cost | groups | group chosen by | " + " | ".join(f"{label} %" for label in labels) + " |",
        "|---|---|---|" + "---|" * len(labels),
    ]
    for setting in comparison.settings():
        groups = setting.pool.groups
        chosen = setting.group_policy if groups > 1 else "(one group)"
        cells = " | ".join(percent(c.excess) for c in comparison.of(setting))
        lines.append(f"| {setting.cost.name} | {groups} | {chosen} | {cells} |")
    return lines


def main() -> None:
    shared = ROOT.parent / "shared"
    if not shared.is_dir():
        sys.exit(
            "skipped: the public traces are not beside the checkout (../shared); see docs/explain/reproduction.md"
        )
    studies = [
        (name, ranks, concurrency, study(shared / file, ranks, concurrency))
        for name, file in TRACES.items()
        for ranks, concurrency in POOLS
    ]
    parts = [
        f"Measured on {datetime.date.today()} by `make acceptance` ({SEEDS} seeds; ± is half the 95 % interval over "
        "seeds; bold: least excess under V1 or V2).\n",
        "### Cheapest z and most even z\n",
        *z_table(studies),
    ]
    for name, ranks, concurrency, comparison in studies:
        parts += [f"\n### {name}, DP{ranks}, {concurrency} requests\n", *policy_table(comparison)]
    for name, file in TRACES.items():
        parts += [
            f"\n### Groups: {name}, 10 instances x DP64, 20,480 requests, 3 seeds\n",
            *group_table(shared / file),
        ]
    text = PAGE.read_text("utf-8")
    before, rest = text.split("<!-- tables -->", 1)
    after = rest.split("<!-- end of tables -->", 1)[1]
    tables = "\n".join(parts)
    PAGE.write_text(f"{before}<!-- tables -->\n\n{tables}\n\n<!-- end of tables -->{after}", "utf-8")
    print(tables)


if __name__ == "__main__":
    main()

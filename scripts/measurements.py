"""What the documentation measures: one function a table, each a few comparisons on embedded workloads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any

from equipoise import models, study
from equipoise.cost import StepCost, derive, load
from equipoise.policies import parse
from equipoise.replay import Pool, SnapshotPlan
from equipoise.replay.layout import SERIES
from equipoise.study import ComparePlan, Comparison, Interval
from equipoise.study.statistics import block_ratio, over_seeds

Rows = list[list[str]]


def run(policies: Sequence[str], costs: Sequence[StepCost], **options: Any) -> Comparison:
    """A comparison on the embedded workload unless told otherwise."""
    options.setdefault("traces", ["agentic-coding"])
    plan = ComparePlan(costs=list(costs), policies=[parse(text) for text in policies], **options)
    return study.compare(plan)


def percent(value: float, digits: int = 2) -> str:
    """A share as a percentage, without its sign."""
    return f"{100 * value:.{digits}f}"


def between(interval: Interval) -> str:
    """Mean and half width, in percent."""
    return f"{percent(interval.mean)} ± {percent(interval.high - interval.mean)}"


def derived(model: str, kind: Any = "v1") -> StepCost:
    """The cost of a preset, named as the tables name it."""
    return changed(derive(models.load(model), kind), name=f"{model} {kind}")


def article(policies: Sequence[str] = study.ARTICLE_POLICIES) -> Rows:
    """The article's policies on the embedded workload: what `make demo` runs."""
    found = run(policies, [load("v1"), load("v2")])
    v1, v2 = (found.of(s) for s in found.settings())
    return [
        [
            f"`{a.policy.label}`",
            between(a.excess),
            between(b.excess),
            f"{a.mean('max_over_mean_batch'):.3f}",
            f"{a.mean('max_over_mean_context'):.3f}",
        ]
        for a, b in zip(v1, v2, strict=True)
    ]


def readings(values: Sequence[float] = (0.0, 0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5)) -> Rows:
    """Both readings of DualPath over z."""
    names = [f"dualpath,z={z},average={a}" for z in values for a in ("projected", "current")]
    found = run(names, [load("v1"), load("v2")])
    rows = []
    for i, z in enumerate(values):
        cells = [c for s in found.settings() for c in found.of(s)[2 * i : 2 * i + 2]]
        rows.append([f"{z:g}", *(between(c.excess) for c in cells)])
    return rows


MODELS = (
    "deepseek-v4.1-flash",
    "glm-5.3",
    "deepseek-v4-flash",
    "glm-5",
    "deepseek-v3.2",
    "gpt-oss-120b",
    "deepseek-v3",
)
Z_GRID = (0.9, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5)


def by_model(names: Sequence[str] = MODELS, traces: Sequence[str] = ("agentic-coding", "chat-long")) -> Rows:
    """A, B, swapped C and the best of D under V1, model by model."""
    policies = [
        "least_batch",
        "least_tokens",
        "length_split,swapped=true",
        *(f"dualpath,z={z}" for z in Z_GRID),
    ]
    costs = [derived(name) for name in names]
    found = run(policies, costs, traces=list(traces), seeds=3)
    rows = []
    for setting in found.settings():
        a, b, c, *d = found.of(setting)
        best = min(d, key=lambda cell: cell.excess.mean)
        rate = setting.cost.request_in_context_tokens
        rows.append(
            [
                f"`{setting.trace}`",
                f"`{setting.cost.name.removesuffix(' v1')}`",
                f"{rate:,.0f}",
                percent(a.excess.mean),
                percent(b.excess.mean),
                percent(c.excess.mean),
                percent(best.excess.mean),
                f"{best.policy.params['z']:g}",
            ]
        )
    return rows


def dilution(costs: Sequence[str] = ("v1", "v2", "h200")) -> Rows:
    """The same loads under counted and measured prices."""
    found = run(("least_batch", "least_tokens", "dualpath,z=1.05"), [load(c) for c in costs])
    rows = []
    for setting in found.settings():
        a, b, d = found.of(setting)
        fixed = setting.cost.constant / (a.mean("mean_step_ms") * 1000 / setting.cost.us_per_unit)
        rows.append([f"`{setting.cost.name}`", percent(fixed, 0), *(between(c.excess) for c in (a, b, d))])
    return rows


def groups(counts: Sequence[int] = (1, 2, 4, 10)) -> Rows:
    """Ten small instances cut into groups."""
    found = run(
        ["dualpath,z=1.2", "dualpath,z=1.05"],
        [load("v1")],
        pool=Pool(instances=10, ranks=16),
        groups=list(counts),
        group_policies=["least_batch", "least_tokens"],
        seeds=3,
    )
    rows = []
    for setting in found.settings():
        way = f"`{setting.group_policy}`" if setting.pool.groups > 1 else "-"
        rows.append([str(setting.pool.groups), way, *(between(c.excess) for c in found.of(setting))])
    return rows


def scale(ranks: Sequence[int] = (4, 8, 16, 32, 64, 128)) -> Rows:
    """What is lost grows with the number of ranks that wait for each other."""
    rows = []
    for n in ranks:
        found = run(
            ("least_batch", "least_tokens", "dualpath,z=1.05"), [load("v1")], pool=Pool(ranks=n), seeds=3
        )
        (setting,) = found.settings()
        rows.append([str(n), *(between(c.excess) for c in found.of(setting))])
    return rows


def load_levels(per_rank: Sequence[int] = (8, 16, 24, 32)) -> Rows:
    """Timed mode at several loads, with room for 32 requests a rank."""
    rows = []
    for n in per_rank:
        found = run(
            ("least_batch", "dualpath,z=1.05"),
            [load("h200")],
            pool=Pool(ranks=16, max_batch=32),
            mode="timed",
            concurrency=16 * n,
            requests=16 * 32 * 20,
            seeds=3,
        )
        (setting,) = found.settings()
        for cell in found.of(setting):
            tpot, wait = cell.percentiles("tpot_ms"), cell.percentiles("queue_wait_ms")
            assert tpot is not None
            assert wait is not None
            rows.append(
                [
                    str(n),
                    f"`{cell.policy.label}`",
                    f"{cell.mean('mean_batch'):.1f}",
                    percent(cell.excess.mean),
                    f"{tpot['p50']:.2f}",
                    f"{tpot['p99']:.2f}",
                    f"{wait['p50']:.1f}",
                    f"{wait['p99']:.1f}",
                ]
            )
    return rows


def counted(policies: Sequence[str] = ("least_batch", "dualpath,z=1.05")) -> Rows:
    """What warm-up does to the averages, starting in a steady state and starting empty."""
    from equipoise import traces
    from equipoise.replay import replay

    rows = []
    for text in policies:
        for start, steady in (("in a steady state", 2048), ("empty", 0)):
            trace = traces.synth("agentic-coding", requests=20_480, seed=0, steady_state=steady)
            values = []
            for turnovers, drain in ((1.0, False), (0.0, False)):
                result = replay(trace, Pool(), text, load("v1"), warmup_turnovers=turnovers, drain=drain)
                values.append(percent(result.excess))
            result = replay(trace, Pool(), text, load("v1"), warmup_turnovers=0.0, drain=True)
            series = result.series
            values.append(percent(series[:, SERIES.COST].sum() / series[:, SERIES.IDEAL].sum() - 1))
            rows.append([f"`{parse(text).label}`", start, *values])
    return rows


def intervals(text: str = "least_batch", seeds: int = 40) -> Rows:
    """How wide three kinds of interval are, and how often each holds the mean over many seeds."""
    found = run([text], [load("v1")], seeds=seeds)
    (cell,) = found.cells
    mean = over_seeds([r.excess for r in cell.runs]).mean
    naive, block = [], []
    for seed in range(seeds):
        one = run([text], [load("v1")], seeds=1, first_seed=seed).cells[0]
        result = one.runs[0].result
        assert result is not None
        rows = result.counted_series
        steps = _steps_as_samples(rows[:, SERIES.COST], rows[:, SERIES.IDEAL])
        naive.append(steps)
        block.append(block_ratio(rows[:, SERIES.COST], rows[:, SERIES.IDEAL], rows[:, SERIES.STEPS]))
    five = [over_seeds([r.excess for r in cell.runs[k : k + 5]]) for k in range(0, seeds, 5)]
    return [
        ["every step a sample, one run", *_coverage(naive, mean)],
        ["20 blocks of one run", *_coverage(block, mean)],
        ["5 seeds", *_coverage(five, mean)],
    ]


def _steps_as_samples(cost: Any, ideal: Any) -> Interval:
    """What one would get by taking steps as independent: the mistake the page warns of."""
    ratio = float(cost.sum() / ideal.sum())
    residuals = (cost - ratio * ideal) / float(ideal.mean())
    half = 1.96 * float(residuals.std(ddof=1)) / len(cost) ** 0.5
    return Interval(ratio - 1, ratio - 1 - half, ratio - 1 + half, "blocks", half / 1.96, len(cost) - 1)


def _coverage(found: Sequence[Interval], mean: float) -> list[str]:
    width = sum((i.high - i.low) / 2 for i in found) / len(found)
    held = sum(i.low <= mean <= i.high for i in found)
    return [f"± {percent(width)}", f"{held} of {len(found)}"]


def blocking(capacities: Sequence[int] = (8_000_000, 6_000_000, 5_000_000, 4_500_000)) -> Rows:
    """What the capacity filter holds back, with 32 requests a rank of agentic traffic."""
    rows = []
    for tokens in capacities:
        found = run(
            ("least_batch", "least_tokens", "dualpath,z=1.05"),
            [load("v1")],
            pool=Pool(ranks=16, kv_capacity_tokens=tokens),
            seeds=3,
        )
        for cell in found.cells:
            share = cell.mean("blocked_requests") / cell.mean("arrived")
            rows.append(
                [
                    f"{tokens:,}",
                    f"`{cell.policy.label}`",
                    percent(share, 1),
                    f"{cell.mean('mean_batch'):.1f}",
                    percent(cell.excess.mean),
                    f"{sum(r.over_capacity_rank_steps for r in cell.runs):,}",
                ]
            )
    return rows


def correlation(
    policies: Sequence[str] = (
        "least_batch",
        "least_tokens",
        "length_split",
        "length_split,swapped=true",
        "dualpath,z=1.05",
    ),
) -> Rows:
    """Where long contexts sit: correlation of B and C over the ranks of a step."""
    import numpy as np

    found = run(policies, [load("v1")], seeds=1)
    rows = []
    for cell in found.cells:
        first, last = cell.runs[0].counted_range
        shots = study.rerun(
            found.plan, cell, SnapshotPlan(200, first, max(1, (last - first) // 200))
        ).snapshots
        B, C = shots.batch.astype(float), shots.context_tokens.astype(float)
        both = [np.corrcoef(b, c)[0, 1] for b, c in zip(B, C, strict=True) if b.std() and c.std()]
        spread = [f"{float((x.std(axis=1) / x.mean(axis=1)).mean()):.3f}" for x in (B, C)]
        rows.append([f"`{cell.policy.label}`", *spread, f"{float(np.mean(both)):+.2f}" if both else "-"])
    return rows


def screen(found: Comparison, first: int | None = None) -> str:
    """What `equipoise compare` prints on a terminal of 80 columns, or the first so many settings of it."""
    from rich.console import Console

    from equipoise.report.tables import print_tables, setting_table

    console = Console(file=io.StringIO(), width=80, no_color=True)
    if first is None:
        print_tables(found, console)
    else:
        for setting in found.settings()[:first]:
            console.print(study.setting_words(setting))
            console.print(setting_table(found, setting))
            console.print()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "```text\n" + "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n```"


def article_study() -> Comparison:
    """What `make demo` runs."""
    return run(study.ARTICLE_POLICIES, [load("v1"), load("v2")])


def demo() -> str:
    """The first table of `make demo`."""
    return screen(article_study(), first=1)


def two_models() -> str:
    """GLM-5.3 and DeepSeek-V3 on shorter contexts."""
    costs = [load("v1"), load("deepseek-v3:v1")]
    return screen(run(study.ARTICLE_POLICIES, costs, traces=["chat-long"]), first=2)

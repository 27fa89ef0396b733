"""`ceiling`: is balancing worth doing here? What the simple rules, the best policies and the oracle reach, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from equipoise.policies import parse
from equipoise.study.bounds import BASELINE, DEFAULT_BUDGET, Bound, check_plan, share_of, with_oracle
from equipoise.study.compare import Cell, Comparison, Progress, between, compare
from equipoise.study.jobs import Run
from equipoise.study.oracle import Budget
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.runner import Runner
from equipoise.study.share import share
from equipoise.study.statistics import Interval, over_seeds

__all__ = ["POLICIES", "Ceiling", "Row", "ceiling", "ceiling_plan"]

SIMPLE = ("least_batch", "least_tokens")
RATIOS = (1.0, 1.03, 1.05, 1.1, 1.2, 1.3, 1.5)
POLICIES = (
    "random",
    BASELINE,
    *SIMPLE,
    *(f"dualpath,z={z}" for z in RATIOS),
    "equipoise",
    "equipoise,hold_steps=4",
)
"""What is run; of `dualpath` the best z of these is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one way to place requests reached.

    Parameters
    ----------
    label : str
    excess : Interval
        Over ideal.
    tokens_per_s : Interval
    tpot_ms : Interval
        Mean time per output token; in a saturated pool the mean step, which is the same.
    share : Interval
        Of what any router could win.
    """

    label: str
    excess: Interval
    tokens_per_s: Interval
    tpot_ms: Interval
    share: Interval


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling:
    """One setting.

    Parameters
    ----------
    setting : Setting
    rows : sequence of Row
        From no choice to the best known one, then the oracle.
    lost : Interval
        Share of `BASELINE`'s step time that the oracle would save.
    random_lost : float
        The same of ``random``.
    simple : str
        Label of the better of the two simple rules.
    simple_lost, best_lost : Interval
        Share of its step time that the oracle would save, for that rule and for the best policy.
    best : str
    best_over_simple : Interval
        Excess of the simple rule less that of the best policy.
    fixed : float
        Share of an ideal step that is the same whatever the load.
    batch_part, context_part : float
        Excess of the baseline that comes from uneven batches, and from uneven contexts, each roughly and by itself.
    """

    setting: Setting
    rows: tuple[Row, ...]
    lost: Interval
    random_lost: float
    simple: str
    simple_lost: Interval
    best: str
    best_lost: Interval
    best_over_simple: Interval
    fixed: float
    batch_part: float
    context_part: float


def ceiling_plan(plan: ComparePlan) -> ComparePlan:
    """The plan with the policies of a ceiling."""
    check_plan(plan)
    return replace(plan, policies=[parse(text) for text in POLICIES], baseline=BASELINE)


def ceiling(
    plan: ComparePlan,
    budget: Budget = DEFAULT_BUDGET,
    *,
    jobs: int = 2,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> list[Ceiling]:
    """Run the policies of a ceiling and the oracle on every setting of a plan; its own policies are not looked at.

    Parameters
    ----------
    plan : ComparePlan
    budget : Budget
        Of each search.
    jobs : int
    progress : function, optional
        Called with (runs and searches done, in all).
    runner : Runner, optional

    Raises
    ------
    InputError
        What the oracle cannot play back: deployments, sessions.
    """
    whole = ceiling_plan(plan)
    runs = len(whole.settings()) * whole.seeds * len(POLICIES)
    total = runs + len(whole.settings()) * whole.seeds

    def first(done: int, _: int) -> None:
        if progress is not None:
            progress(done, total)

    def second(done: int, _: int) -> None:
        if progress is not None:
            progress(runs + done, total)

    found = compare(whole, jobs=jobs, progress=first, runner=runner)
    found = with_oracle(found, budget, jobs=jobs, progress=second)
    return [_ceiling(found, bound) for bound in found.bounds]


def _ceiling(found: Comparison, bound: Bound) -> Ceiling:
    cells = {c.policy.text: c for c in found.of(bound.setting)}

    def cell(text: str) -> Cell:
        return cells[parse(text).text]

    dual = min((cell(f"dualpath,z={z}") for z in RATIOS), key=lambda c: c.mean("excess"))
    shown = [cell("random"), cell(BASELINE), *map(cell, SIMPLE), dual, *map(cell, POLICIES[-2:])]
    simple = min(map(cell, SIMPLE), key=lambda c: c.mean("excess"))
    best = min((dual, *map(cell, POLICIES[-2:])), key=lambda c: c.mean("excess"))
    oracle = Row(
        "oracle",
        bound.excess,
        over_seeds([r.tokens_per_s for r in bound.runs]),
        over_seeds([_tpot(r) for r in bound.runs]),
        share([r.excess for r in bound.baseline], *(2 * [[r.excess for r in bound.runs]])),
    )
    base = cell(BASELINE)
    fixed, batch, context = _parts(bound.setting, base)
    return Ceiling(
        setting=bound.setting,
        rows=(*(_row(c, bound) for c in shown), oracle),
        lost=_lost(base, bound),
        random_lost=_lost(cell("random"), bound).mean,
        simple=simple.policy.label,
        simple_lost=_lost(simple, bound),
        best=best.policy.label,
        best_lost=_lost(best, bound),
        best_over_simple=between(simple, best),
        fixed=fixed,
        batch_part=batch,
        context_part=context,
    )


def _row(cell: Cell, bound: Bound) -> Row:
    return Row(
        cell.policy.label,
        cell.excess,
        over_seeds([r.tokens_per_s for r in cell.runs]),
        over_seeds([_tpot(r) for r in cell.runs]),
        share_of(cell, bound),
    )


def _tpot(run: Run) -> float:
    return float(run.mean_step_ms if run.tpot_ms is None else run.tpot_ms.mean)


def _lost(cell: Cell, bound: Bound) -> Interval:
    """Share of a policy's step time that the oracle saves, seed by seed."""
    return over_seeds(
        [1 - (1 + o.excess) / (1 + r.excess) for r, o in zip(cell.runs, bound.runs, strict=True)]
    )


def _parts(setting: Setting, base: Cell) -> tuple[float, float, float]:
    """Fixed share of an ideal step; what uneven batches and uneven contexts each add to it under the baseline."""
    prices = setting.cost.prices()
    batch, context = base.mean("mean_batch"), base.mean("mean_context_tokens")
    last = prices.batch.shape[1] - 1

    def price(term: int, requests: float) -> float:
        inside = float(np.interp(min(requests, last), np.arange(last + 1), prices.batch[term]))
        return float(inside + prices.batch_tail[term] * max(requests - last, 0.0))

    terms = range(len(prices.context))
    token = float(prices.context.sum())
    saturated = sum(
        float(prices.saturated[:, s].sum()) * min(batch * int(length), context)
        for s, length in enumerate(prices.saturation_tokens)
    )
    ideal = prices.constant + sum(price(t, batch) for t in terms) + token * context + saturated
    if ideal <= 0:
        return 0.0, 0.0, 0.0
    fixed = prices.constant + sum(float(prices.batch[t, 0]) for t in terms)
    more_batch = batch * base.mean("max_over_mean_batch")
    uneven = sum(price(t, more_batch) - price(t, batch) for t in terms)
    long = token * context * (base.mean("max_over_mean_context") - 1)
    return fixed / ideal, uneven / ideal, long / ideal

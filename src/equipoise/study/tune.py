"""`tune`: the best parameters of a policy for each cost model, and how flat the optimum is.

A coarse grid first, then Optuna's TPE refines around what the grid found. All candidates see the same requests (paired
seeds). The winner was picked because it looked best, so its excess there is too good: it is measured again, beside the
defaults, on seeds the search never saw.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from equipoise.errors import InputError, PolicyError
from equipoise.policies import Policy, get, spec
from equipoise.study.compare import Cell, Comparison, Progress, between, compare
from equipoise.study.plan import ComparePlan, Setting
from equipoise.study.statistics import Interval

__all__ = ["FLAT_POINTS", "Range", "Trial", "Tuning", "default_space", "tune"]

FLAT_POINTS = 0.001
"""A candidate is as good as the best if its excess is shown to be less than a tenth of a point behind."""

FRESH = 100_000
"""Distance of the checking seeds from the searching ones."""

BATCH = 4
"""Candidates asked of the sampler at a time: they run side by side."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where to look for one parameter.

    Parameters
    ----------
    name : str
    grid : sequence of float or bool or str
        Coarse values, ascending where they are numbers.
    refine : bool
        Whether values between the grid's are tried too.
    """

    name: str
    grid: tuple[Any, ...]
    refine: bool = True


DEFAULT_SPACES: Mapping[str, tuple[Range, ...]] = {
    "dualpath": (Range("z", (0.9, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 2.0)),),
    "length_split": (
        Range("window", (100, 1000, 10_000)),
        Range("percentile", (50.0, 70.0, 80.0, 90.0, 95.0)),
        Range("swapped", (False, True), refine=False),
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One candidate: its cell over the searching seeds, and whether it is shown to be as good as the best.

    Not shown to be worse is less: with few seeds it is true of almost anything.
    """

    cell: Cell
    as_good_as_best: bool
    behind: Interval | None
    """Its excess minus the best's; None for the best itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Tuning:
    """The search in one setting.

    Parameters
    ----------
    setting : Setting
    trials : sequence of Trial
        Best first.
    best, default : Cell
        The winner and the policy as it comes, over seeds the search never saw.
    gain : Interval
        Excess of the default minus that of the winner, on those seeds.
    """

    setting: Setting
    trials: tuple[Trial, ...]
    best: Cell
    default: Cell
    gain: Interval

    def flat_range(self, name: str) -> tuple[Any, Any]:
        """Smallest and largest value of a parameter among the candidates as good as the best."""
        values = sorted(t.cell.policy.params[name] for t in self.trials if t.as_good_as_best)
        return values[0], values[-1]


def default_space(policy: str) -> tuple[Range, ...]:
    """Where to look by default.

    Raises
    ------
    PolicyError
        The policy has no parameter with a known range.
    """
    definition = spec(policy)
    if definition.name in DEFAULT_SPACES:
        return DEFAULT_SPACES[definition.name]
    fix = f"give ranges such as --range name=low:high, or tune one of {', '.join(DEFAULT_SPACES)}"
    raise PolicyError(f"policy {policy!r} has no default range to search", fix=fix)


def tune(
    plan: ComparePlan,
    policy: str,
    *,
    space: Sequence[Range] | None = None,
    fixed: Mapping[str, Any] | None = None,
    refinements: int = 16,
    jobs: int = 2,
    progress: Progress | None = None,
) -> list[Tuning]:
    """Search the parameters of a policy, setting by setting.

    Parameters
    ----------
    plan : ComparePlan
        Traces, costs, pool and seeds; its policies are ignored.
    policy : str
    space : sequence of Range, optional
    fixed : mapping, optional
        Parameters held at a value.
    refinements : int
        Candidates tried after the grid.
    jobs : int
    progress : function, optional
        Called with (candidates measured, candidates in all).
    """
    ranges = tuple(space or default_space(policy))
    if not 0 <= refinements <= 10_000:
        raise InputError(f"refinements = {refinements}", fix="must be from 0 to 10000")
    held = dict(fixed or {})
    get(policy, **held)
    settings = plan.settings()
    refine = refinements if any(r.refine and len(r.grid) > 1 for r in ranges) else 0
    per_setting = _grid_size(ranges) + refine + 2
    total = per_setting * len(settings)
    tunings: list[Tuning] = []
    for setting in settings:
        before = len(tunings) * per_setting

        def measured(done: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        tunings.append(_tune_one(_only(plan, setting), setting, policy, ranges, held, refine, jobs, measured))
    return tunings


def _grid_size(ranges: Sequence[Range]) -> int:
    size = 1
    for r in ranges:
        size *= len(r.grid)
    return size


def _only(plan: ComparePlan, setting: Setting) -> ComparePlan:
    return replace(
        plan,
        traces=(setting.trace,),
        costs=(setting.cost,),
        groups=(setting.pool.groups,),
        group_policies=(setting.group_policy,),
        baseline=None,
    )


def _tune_one(
    plan: ComparePlan,
    setting: Setting,
    policy: str,
    ranges: Sequence[Range],
    fixed: Mapping[str, Any],
    refinements: int,
    jobs: int,
    measured: Any,
) -> Tuning:
    optuna = _optuna()
    space = {r.name: _distribution(optuna, spec(policy), r) for r in ranges}
    cells: dict[str, Cell] = {}

    def measure(candidates: Sequence[Policy]) -> list[float]:
        new = list({p.text: p for p in candidates if p.text not in cells}.values())
        if new:
            for cell in compare(replace(plan, policies=new), jobs=jobs).cells:
                cells[cell.policy.text] = cell
        measured(len(cells))
        return [cells[p.text].excess.mean for p in candidates]

    def candidate(trial: Any) -> Policy:
        return get(policy, **fixed, **{k: _readable(v) for k, v in trial.params.items()})

    sampler = optuna.samplers.TPESampler(seed=plan.first_seed, n_startup_trials=0, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    for values in product(*(r.grid for r in ranges)):
        study.enqueue_trial(dict(zip(space, values, strict=True)))
    trials = [study.ask(space) for _ in range(_grid_size(ranges))]
    for trial, value in zip(trials, measure([candidate(t) for t in trials]), strict=True):
        study.tell(trial, value)
    for start in range(0, refinements, BATCH):
        trials = [study.ask(space) for _ in range(min(BATCH, refinements - start))]
        for trial, value in zip(trials, measure([candidate(t) for t in trials]), strict=True):
            study.tell(trial, value)

    ranked = sorted(cells.values(), key=lambda c: c.excess.mean)
    winner = ranked[0]
    default = get(policy, **fixed)
    fresh = _fresh(plan, winner.policy, default, jobs)
    measured(_grid_size(ranges) + refinements + 2)
    best_cell, default_cell = fresh.cells[0], fresh.cells[-1]
    return Tuning(
        setting=setting,
        trials=tuple(_trial(c, winner) for c in ranked),
        best=best_cell,
        default=default_cell,
        gain=fresh.difference(default_cell, best_cell).excess,
    )


def _fresh(plan: ComparePlan, winner: Policy, default: Policy, jobs: int) -> Comparison:
    """The winner and the default on seeds the search never saw."""
    both = [winner] if winner.text == default.text else [winner, default]
    return compare(replace(plan, policies=both, first_seed=plan.first_seed + FRESH), jobs=jobs)


def _trial(cell: Cell, best: Cell) -> Trial:
    if cell is best:
        return Trial(cell, True, None)
    behind = between(cell, best)
    return Trial(cell, behind.high < FLAT_POINTS, behind)


def _readable(value: Any) -> Any:
    """Four digits: nobody deploys a threshold of 1.1534872346."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _distribution(optuna: Any, definition: Any, r: Range) -> Any:
    parameter = next((p for p in definition.parameters if p.name == r.name), None)
    if parameter is None:
        raise PolicyError(
            f"policy {definition.name!r} has no parameter {r.name!r}", fix="see 'equipoise policies'"
        )
    if not r.refine or isinstance(parameter.default, bool) or parameter.choices:
        return optuna.distributions.CategoricalDistribution(list(r.grid))
    low, high = min(r.grid), max(r.grid)
    if parameter.integer:
        return optuna.distributions.IntDistribution(int(low), int(high), log=high > 20 * low > 0)
    return optuna.distributions.FloatDistribution(float(low), float(high), step=None)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError(
            "tune needs Optuna", fix="pip install 'equipoise[tune]', in a checkout '.[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna

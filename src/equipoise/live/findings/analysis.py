"""`analyse`: from the folder of a live run to everything that can be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.errors import CostError, EquipoiseError, InputError, nearest
from equipoise.live.findings.agreement import Level, Ranking, levels, rankings
from equipoise.live.findings.beyond import Beyond, spread_part
from equipoise.live.findings.gap import Gap, gaps
from equipoise.live.findings.measured import Measured, measure
from equipoise.live.findings.numbers import MEASURES, Slo
from equipoise.live.findings.pairs import Finding, compare_all
from equipoise.live.findings.predict import Prediction, predict
from equipoise.live.findings.residuals import Region, residuals
from equipoise.live.findings.runs import LiveRuns, outcomes, read_runs
from equipoise.live.rows import ANSWERED
from equipoise.study.statistics import Interval, over_seeds

__all__ = ["Agreement", "Analysis", "PolicyNumbers", "analyse", "analyse_runs"]

MARGIN = 0.02
MOST_CLASSES = 12


@dataclass(frozen=True, slots=True)
class PolicyNumbers:
    """One policy.

    Parameters
    ----------
    policy : str
    repeats : int
    values : mapping of str to tuple of float
        By measure, repeat by repeat.
    outcomes : mapping of str to int
        How requests ended, all repeats together.
    """

    policy: str
    repeats: int
    values: Mapping[str, tuple[float, ...]]
    outcomes: Mapping[str, int]

    def mean(self, name: str) -> Interval:
        """Mean over repeats of a measure, with Student's t interval of this policy alone."""
        return over_seeds(self.values[name])

    @property
    def failed(self) -> int:
        """Requests whose times could not be used."""
        return sum(n for kind, n in self.outcomes.items() if kind not in {str(o) for o in ANSWERED})


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """Predicted against measured.

    Parameters
    ----------
    prediction : Prediction
    levels : tuple of Level
    rankings : tuple of Ranking
    gaps : tuple of Gap
    regions : tuple of Region
        Empty where `no_regions` says why.
    no_regions : str
    beyond : Beyond
    """

    prediction: Prediction
    levels: tuple[Level, ...]
    rankings: tuple[Ranking, ...]
    gaps: tuple[Gap, ...]
    regions: tuple[Region, ...]
    no_regions: str
    beyond: Beyond


@dataclass(frozen=True, eq=False)
class Analysis:
    """What a live run showed.

    Parameters
    ----------
    runs : LiveRuns
    margin : float
        Share up to which two policies are called equal.
    slo : Slo
    policies : sequence of PolicyNumbers
    by_class : mapping of str to sequence of PolicyNumbers
        The same for each class of requests; empty where there is one.
    findings : sequence of Finding
        Every pair of policies in every measure.
    traffic_words : str
        How blocks of the trace were drawn, or why not.
    agreement : Agreement or None
        None where nothing is predicted.
    no_agreement : str
        Why not.
    notes : sequence of str
    """

    runs: LiveRuns
    margin: float
    slo: Slo
    policies: tuple[PolicyNumbers, ...]
    by_class: Mapping[str, tuple[PolicyNumbers, ...]]
    findings: tuple[Finding, ...]
    traffic_words: str
    agreement: Agreement | None
    no_agreement: str
    notes: tuple[str, ...]

    @property
    def pairs(self) -> int:
        """Pairs of policies."""
        return len(list(combinations(self.runs.policies, 2)))

    def of(self, measure: str) -> list[Finding]:
        """Findings of a measure."""
        return [f for f in self.findings if f.measure.name == measure]


def analyse(
    folder: str | Path,
    *,
    margin_percent: float = 100 * MARGIN,
    measures: Sequence[str] | None = None,
    slo: Slo | None = None,
    cost: StepCost | None = None,
) -> Analysis:
    """Analyse the folder of a live run, finished or not.

    Parameters
    ----------
    folder : path
    margin_percent : float
        Two policies whose whole interval is within so many percent are called equal.
    measures : sequence of str, optional
        Compare policies by these only, such as ``itl_ms.mean``.
    slo : Slo, optional
        What a good request meets; as the run was told, by default.
    cost : StepCost, optional
        Predict with this one; by default with one fitted to the probe's steps.

    Raises
    ------
    InputError
        The folder is none of a live run, no run is whole, or a name or number is out of bounds.
    """
    if not 0 < margin_percent <= 100:
        raise InputError(
            f"margin = {margin_percent:g} %", where="--margin-percent", fix="must be above 0 and at most 100"
        )
    for name in measures or ():
        if name not in MEASURES:
            raise InputError(f"no measure {name!r}", where="--measure", fix=nearest(name, MEASURES))
    return analyse_runs(read_runs(folder), margin=margin_percent / 100, measures=measures, slo=slo, cost=cost)


def analyse_runs(
    runs: LiveRuns,
    *,
    margin: float = MARGIN,
    measures: Sequence[str] | None = None,
    slo: Slo | None = None,
    cost: StepCost | None = None,
) -> Analysis:
    """The same, of runs that are at hand."""
    about = runs.about
    measured = measure(runs, slo or Slo(about.ttft_slo_ms, about.tpot_slo_ms))
    kinds = runs.trace["class"].fill_null("").to_numpy()
    classes = [str(c) for c in np.unique(kinds.astype(str)) if c]
    shown = classes if 1 < len(classes) <= MOST_CLASSES else []
    notes = [*about.notes, *runs.notes, *(n for r in about.runs for n in r.notes)]
    if len(classes) > MOST_CLASSES:
        notes.append(
            f"The trace has {len(classes)} classes; numbers by class are given for up to {MOST_CLASSES}."
        )
    notes += _unequal(runs)
    findings = compare_all(measured, margin, measures)
    agreement, why_not = _agreement(measured, findings, cost)
    return Analysis(
        runs,
        margin,
        measured.slo,
        tuple(_numbers(measured, p) for p in runs.policies),
        {c: tuple(_numbers(measured, p, c, kinds == c) for p in runs.policies) for c in shown},
        tuple(findings),
        _traffic(measured),
        agreement,
        why_not,
        tuple(dict.fromkeys(notes)),
    )


def _agreement(
    measured: Measured, findings: Sequence[Finding], cost: StepCost | None
) -> tuple[Agreement | None, str]:
    """Predict, and hold the prediction against what was measured; where that cannot be, why."""
    try:
        prediction = predict(measured, cost)
    except EquipoiseError as error:
        if cost is not None and isinstance(error, CostError):
            raise
        return None, str(error)
    regions, why_not = residuals(measured, prediction)
    return Agreement(
        prediction,
        tuple(levels(measured, prediction)),
        tuple(rankings(measured, prediction, findings)),
        tuple(gaps(measured, prediction)),
        tuple(regions),
        why_not,
        spread_part(prediction.calibration),
    ), ""


def _numbers(
    measured: Measured, policy: str, kind: str | None = None, among: np.ndarray | None = None
) -> PolicyNumbers:
    by_repeat = measured.own(policy, among)
    names = [n for n in MEASURES if all(n in numbers for numbers in by_repeat.values())]
    if kind is not None:
        names = [n for n in names if MEASURES[n].is_time]
    counts: dict[str, int] = {}
    for run in measured.runs.of(policy).values():
        for what, n in outcomes(run, among):
            counts[what] = counts.get(what, 0) + n
    return PolicyNumbers(
        policy,
        len(by_repeat),
        {n: tuple(by_repeat[k][n].value for k in sorted(by_repeat)) for n in names},
        dict(sorted(counts.items(), key=lambda item: -item[1])),
    )


def _unequal(runs: LiveRuns) -> list[str]:
    """A sentence where policies have different repeats."""
    repeats = {p: set(runs.of(p)) for p in runs.policies}
    every = set.union(*repeats.values())
    return [
        f"{p} lacks repeat{'s' if len(every - r) > 1 else ''} {', '.join(str(k) for k in sorted(every - r))}: pairs "
        "with it are compared over the repeats that both have."
        for p, r in repeats.items()
        if r != every
    ]


def _traffic(measured: Measured) -> str:
    drawn = measured.drawn
    if not drawn.enough:
        return (
            f"The trace is too short for blocks ({drawn.blocks:.1f} of the length its requests remember each other): "
            "nothing is said of other traffic."
        )
    return (
        f"For other traffic like this, {drawn.blocks:.0f} blocks of the trace were drawn again, the same for all "
        "policies and repeats."
    )

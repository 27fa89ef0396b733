"""Did the prediction hold? Its level, policy by policy, and its order of the policies: two questions, two answers.

A model may know what makes ranks differ and not what every step pays besides; then the order is right and the level is
not. So they are never mixed into one score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from equipoise.live.findings.measured import Measured
from equipoise.live.findings.numbers import MEASURES, Measure
from equipoise.live.findings.pairs import Finding
from equipoise.live.findings.predict import Prediction
from equipoise.study.statistics import CONFIDENCE, Interval, over_seeds, student
from equipoise.types import Floats

__all__ = ["LEVELS", "Level", "OrderedPair", "Ranking", "levels", "rankings", "tau"]

LEVELS = (
    *("itl_ms.mean", "itl_ms.p50", "itl_ms.p99", "tpot_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean"),
    *("tokens_per_s.mean", "max_over_mean_batch.mean", "max_over_mean_context.mean"),
)
"""What is predicted."""
RANKED = ("itl_ms.mean", "tpot_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean")
WITH_PROMPTS = ("ttft_ms", "end_to_end_ms")
DRAWS = 2000

Agrees = Literal["right", "wrong", "undecided"]


@dataclass(frozen=True, slots=True)
class Level:
    """One number of one policy, predicted and measured.

    Parameters
    ----------
    measure : Measure
    policy : str
    predicted, measured : float
        Means over repeats.
    log_ratio : Interval
        Of log(predicted / measured), for itself; it knows what varies from repeat to repeat, not how sure the cost is.
    partial : bool
        Whether the prediction lacks the price of prompts, which this number holds.
    """

    measure: Measure
    policy: str
    predicted: float
    measured: float
    log_ratio: Interval
    partial: bool

    @property
    def off(self) -> tuple[float, float, float]:
        """Predicted over measured less 1, and the ends of its interval."""
        i = self.log_ratio
        return math.expm1(i.mean), math.expm1(i.low), math.expm1(i.high)


@dataclass(frozen=True, slots=True)
class OrderedPair:
    """Whether two policies are predicted in the order that was measured.

    Parameters
    ----------
    a, b : str
    predicted : float
        log(a / b), mean over repeats.
    measured : Interval
        The same; simultaneous with all other pairs.
    agrees : {"right", "wrong", "undecided"}
        ``undecided`` where no difference was measured.
    """

    a: str
    b: str
    predicted: float
    measured: Interval
    agrees: Agrees


@dataclass(frozen=True, slots=True)
class Ranking:
    """The order of the policies by one measure.

    Parameters
    ----------
    measure : Measure
    pairs : tuple of OrderedPair
    tau, low, high : float
        Kendall's tau between predicted and measured means; the ends from drawing repeats again, NaN for less than 3.
    """

    measure: Measure
    pairs: tuple[OrderedPair, ...]
    tau: float
    low: float
    high: float

    def count(self, agrees: Agrees) -> int:
        """Pairs of that kind."""
        return sum(p.agrees == agrees for p in self.pairs)


def levels(measured: Measured, prediction: Prediction) -> list[Level]:
    """Predicted against measured, number by number and policy by policy."""
    found = []
    drawn = measured.drawn
    for name in LEVELS:
        measure = MEASURES[name]
        partial = measure.quantity in WITH_PROMPTS and not prediction.prefill
        for policy, by_repeat in prediction.by_policy.items():
            own = measured.own(policy)
            rows = [(by_repeat[k].values.get(name, math.nan), own[k].get(name)) for k in sorted(own)]
            pairs = [(p, m) for p, m in rows if m is not None and p > 0 and m.value > 0]
            if not pairs or len(pairs) < len(rows):
                continue
            logs = [math.log(p / m.value) for p, m in pairs]
            ratio = over_seeds(logs)
            figure = pairs[0][1].figure
            if len(pairs) == 1 and figure is not None and figure.known and drawn.enough:
                spread = float(np.nanstd(np.log(figure.redrawn(drawn.a)), ddof=1))
                ratio = student(logs[0], spread, drawn.blocks - 1, "blocks")
            means = [float(np.mean(side)) for side in zip(*((p, m.value) for p, m in pairs), strict=True)]
            found.append(Level(measure, policy, means[0], means[1], ratio, partial))
    return found


def rankings(measured: Measured, prediction: Prediction, findings: Sequence[Finding]) -> list[Ranking]:
    """Predicted order against measured order."""
    policies = tuple(prediction.by_policy)
    found = []
    for name in RANKED:
        by_pair = {(f.a, f.b): f for f in findings if f.measure.name == name}
        pairs = []
        for a, b in combinations(policies, 2):
            finding = by_pair.get((a, b))
            shared = sorted(set(prediction.by_policy[a]) & set(prediction.by_policy[b]))
            ours, theirs = (
                [prediction.by_policy[p][k].values.get(name, math.nan) for k in shared] for p in (a, b)
            )
            if finding is None or not shared or not all(v > 0 for v in (*ours, *theirs)):
                continue
            said = float(np.mean(np.log(ours) - np.log(theirs)))
            pairs.append(OrderedPair(a, b, said, finding.interval, _agrees(said, finding)))
        if pairs:
            found.append(Ranking(MEASURES[name], tuple(pairs), *_tau(measured, prediction, name)))
    return found


def _agrees(said: float, finding: Finding) -> Agrees:
    if finding.verdict not in ("lower", "higher"):
        return "undecided"
    return "right" if said * finding.interval.mean > 0 else "wrong"


def _tau(measured: Measured, prediction: Prediction, name: str) -> tuple[float, float, float]:
    """Kendall's tau, and where most of it lies when repeats are drawn again."""
    said, seen = _logs(measured, prediction, name)
    repeats = said.shape[1]
    found = float(tau(said.mean(axis=1), seen.mean(axis=1))) if repeats else math.nan
    if repeats < 3:
        return found, math.nan, math.nan
    drawn = np.random.default_rng(0).integers(0, repeats, (DRAWS, repeats))
    again = tau(said[:, drawn].mean(axis=2), seen[:, drawn].mean(axis=2))
    low, high = np.quantile(again, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return found, float(low), float(high)


def _logs(measured: Measured, prediction: Prediction, name: str) -> tuple[Floats, Floats]:
    """Predicted and measured logarithms, float64[policies, repeats], of the repeats that all policies have."""
    own = {p: measured.own(p) for p in prediction.by_policy}
    shared: list[int] = sorted(set.intersection(*(set(v) for v in own.values()))) if own else []
    said: Mapping[str, list[float]] = {
        p: [prediction.by_policy[p][k].values.get(name, math.nan) for k in shared] for p in own
    }
    seen = {p: [own[p][k][name].value if name in own[p][k] else math.nan for k in shared] for p in own}
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.array(list(said.values()))), np.log(np.array(list(seen.values())))


def tau(a: Floats, b: Floats) -> Floats:
    """Kendall's tau-a along the first axis: pairs in the same order less pairs in the other, over all pairs."""
    if len(a) < 2:
        return np.full(a.shape[1:], np.nan)
    i, j = np.triu_indices(len(a), 1)
    return np.asarray(np.mean(np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]), axis=0))

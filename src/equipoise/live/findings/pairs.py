"""Every pair of policies: by how much they differ, whether that is shown, whether equality is, and what it would take.

Two questions, two intervals. *On this trace, here*: repeats replay the same requests, so what varies from repeat to
repeat is the machine, and Student's t over the repeats' differences holds their mean. *On other traffic like it*: the
trace is then itself a draw; blocks of it are drawn again, the same in both policies and in all repeats (Künsch 1989),
and that variance is added to the one over repeats. The sum counts what repeats and traffic share twice, so it errs on
the wide side (Owen, The pigeonhole bootstrap, 2007). One repeat alone has the second interval only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from equipoise.live.findings.measured import Measured
from equipoise.live.findings.numbers import MEASURES, Measure, Number
from equipoise.live.findings.repeats import Resolve, resolve
from equipoise.study.pairs.figures import Draws
from equipoise.study.statistics import Interval, over_seeds, student, widened
from equipoise.types import Floats

__all__ = ["Finding", "Verdict", "compare_all", "finding_of"]

Verdict = Literal["lower", "higher", "equal", "not_shown", "no_interval"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One number under two policies.

    Parameters
    ----------
    measure : Measure
    a, b : str
        The policies.
    values_a, values_b : tuple of float
        Repeat by repeat.
    interval : Interval
        Of log(a / b), or of a - b where the measure is a share; together with those of all other pairs it holds with
        95 % confidence (Bonferroni).
    alone : Interval
        The same, this pair for itself.
    traffic : Interval
        This pair for itself, on other traffic like this.
    margin : float
        Share, or difference of shares, up to which two policies are called equal.
    resolve : Resolve or None
        Repeats needed to tell a difference as large as the margin.
    """

    measure: Measure
    a: str
    b: str
    values_a: tuple[float, ...]
    values_b: tuple[float, ...]
    interval: Interval
    alone: Interval
    traffic: Interval
    margin: float
    resolve: Resolve | None

    @property
    def reach(self) -> float:
        """The margin on the scale of the intervals, the same whichever policy is named first."""
        return math.log1p(self.margin) if self.measure.scale == "ratio" else self.margin

    @property
    def within_margin(self) -> bool | None:
        """Whether the two are shown to be equal up to the margin: the whole interval is inside it."""
        if self.interval.method == "none":
            return None
        return -self.reach <= self.interval.low and self.interval.high <= self.reach

    @property
    def verdict(self) -> Verdict:
        """What is shown of A against B; a difference that is shown may still be within the margin."""
        if self.interval.method == "none":
            return "no_interval"
        if not self.interval.covers_zero:
            return "lower" if self.interval.mean < 0 else "higher"
        return "equal" if self.within_margin else "not_shown"

    def change(self, value: float) -> float:
        """A position on the interval's scale as people say it: a share of B, or points."""
        return math.expm1(value) if self.measure.scale == "ratio" else value


def compare_all(measured: Measured, margin: float, measures: Sequence[str] | None = None) -> list[Finding]:
    """Compare every pair of policies in every measure that both have.

    Parameters
    ----------
    measured : Measured
    margin : float
        A share: 0.02.
    measures : sequence of str, optional
        Names of `MEASURES`; all of them by default.
    """
    policies = measured.runs.policies
    pairs = list(combinations(policies, 2))
    drawn = measured.drawn
    redrawn: dict[int, Floats] = {}
    found = []
    for name in measures or MEASURES:
        measure = MEASURES[name]
        for a, b in pairs:
            rows = [(x[name], y[name]) for _, x, y in measured.pair(a, b) if name in x and name in y]
            if rows:
                found.append(finding_of(measure, a, b, rows, drawn, margin, len(pairs), redrawn))
        redrawn.clear()
    return found


def finding_of(
    measure: Measure,
    a: str,
    b: str,
    rows: Sequence[tuple[Number, Number]],
    drawn: Draws,
    margin: float,
    pairs: int,
    redrawn: dict[int, Floats] | None = None,
) -> Finding:
    """Compare two policies in one measure.

    Parameters
    ----------
    rows : sequence of (Number, Number)
        Under A and under B, repeat by repeat.
    drawn : Draws
    margin : float
    pairs : int
        How many pairs are compared.
    redrawn : dict, optional
        Remembers replicates of a number from pair to pair.
    """
    ratio = measure.scale == "ratio"
    ours, theirs = [x.value for x, _ in rows], [y.value for _, y in rows]
    gaps = [_log(x) - _log(y) if ratio else x - y for x, y in zip(ours, theirs, strict=True)]
    repeats = over_seeds(gaps) if all(map(math.isfinite, gaps)) else _unknown(math.nan)
    blocks = _blocks(rows, drawn, ratio, {} if redrawn is None else redrawn, repeats.mean)
    alone = repeats if len(rows) > 1 else blocks
    traffic = _both(repeats, blocks) if len(rows) > 1 else blocks
    needed = None
    if repeats.method != "none":
        reach = math.log1p(margin) if ratio else margin
        deviation = repeats.standard_error * math.sqrt(len(rows))
        needed = resolve(deviation, repeats.freedom, margin, reach, pairs)
    return Finding(
        measure,
        a,
        b,
        tuple(ours),
        tuple(theirs),
        widened(alone, pairs),
        alone,
        traffic,
        margin,
        needed,
    )


def _blocks(
    rows: Sequence[tuple[Number, Number]], drawn: Draws, ratio: bool, redrawn: dict[int, Floats], mean: float
) -> Interval:
    """Over blocks of the trace: standard error of the mean over repeats, the repeats taken as they are."""
    if not drawn.enough or not all(n.figure is not None and n.figure.known for row in rows for n in row):
        return _unknown(mean)

    def of(number: Number) -> Floats:
        if id(number) not in redrawn:
            assert number.figure is not None
            values = number.figure.redrawn(drawn.a)
            redrawn[id(number)] = (
                np.log(values, out=np.full(len(values), np.nan), where=values > 0) if ratio else values
            )
        return redrawn[id(number)]

    replicates = np.mean([of(x) - of(y) for x, y in rows], axis=0)
    known = replicates[np.isfinite(replicates)]
    if len(known) < 0.95 * len(replicates):
        return _unknown(mean)
    units = drawn.a.shape[1]
    longer = math.ceil(units / drawn.span) * drawn.span / units
    factor = math.sqrt(
        longer * drawn.blocks / (drawn.blocks - 1) * _cut_off(_influence(rows, ratio), drawn.span)
    )
    return student(mean, factor * float(known.std(ddof=1)), drawn.blocks - 1, "blocks")


def _influence(rows: Sequence[tuple[Number, Number]], ratio: bool) -> Floats:
    """By how much each stretch moves the mean difference, float64[units]."""

    def of(number: Number) -> Floats:
        assert number.figure is not None
        return number.figure.influence / (number.value if ratio else 1.0)

    return np.asarray(np.mean([of(x) - of(y) for x, y in rows], axis=0))


def _cut_off(influence: Floats, span: int) -> float:
    """Factor on the variance for what blocks cut off: neighbours in different blocks remember each other, too.

    What is cut off falls as 1 / length, so twice the variance of blocks less that of blocks half as long is free of it
    (the lugsail estimator of Vats and Flegal, Biometrika 2022, with r = 2, c = 1/2). Never below 1.
    """
    half = span // 2
    if half < 1:
        return 1.0
    whole = _variance(influence, span)
    return min(max((2 * whole - _variance(influence, half)) / whole, 1.0), 2.0) if whole > 0 else 1.0


def _variance(influence: Floats, span: int) -> float:
    """Of the sum, from overlapping circular blocks."""
    around = np.concatenate([[0.0], np.cumsum(np.concatenate([influence, influence[: span - 1]]))])
    sums = around[span:] - around[:-span]
    return float(sums.var() * len(influence) / span)


def _both(repeats: Interval, blocks: Interval) -> Interval:
    """Variance over repeats and over traffic together (Welch-Satterthwaite)."""
    if "none" in (repeats.method, blocks.method):
        return _unknown(repeats.mean)
    over, of = repeats.standard_error**2, blocks.standard_error**2
    if over + of == 0:
        return repeats
    freedom = (over + of) ** 2 / (over**2 / repeats.freedom + of**2 / blocks.freedom)
    return student(repeats.mean, math.sqrt(over + of), freedom, "blocks")


def _unknown(mean: float) -> Interval:
    return student(mean, math.nan, 0, "none")


def _log(value: float) -> float:
    return math.log(value) if value > 0 else math.nan


def by_measure(findings: Sequence[Finding]) -> Mapping[str, list[Finding]]:
    """Findings of each measure, in their order."""
    found: dict[str, list[Finding]] = {}
    for f in findings:
        found.setdefault(f.measure.name, []).append(f)
    return found

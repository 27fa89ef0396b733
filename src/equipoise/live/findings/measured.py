"""All numbers of all runs, and the stretches of the trace that are drawn again, the same in every run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations

import numpy as np

from equipoise.live.findings.numbers import Number, Slo, numbers, whole_numbers
from equipoise.live.findings.runs import Chosen, LiveRuns, Run
from equipoise.study.pairs.figures import Draws, draws, units_for
from equipoise.study.pairs.gather import LIVES
from equipoise.types import Floats, Ints

__all__ = ["Measured", "measure"]

LEADING = ("itl_ms.mean", "ttft_ms.mean", "end_to_end_ms.mean")
"""Their differences say how long neighbours remember each other."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Numbers of every run.

    Parameters
    ----------
    runs : LiveRuns
    slo : Slo
    unit : int64[requests]
        Stretch of the trace each request belongs to, by the time it was meant to be sent.
    units : int
    least_span : int
        Stretches that a block holds at least: `LIVES` times as long as a request lives.
    """

    runs: LiveRuns
    slo: Slo
    unit: Ints
    units: int
    least_span: int
    _known: dict[tuple[str, int, bytes], dict[str, Number]] = field(default_factory=dict)
    _whole: dict[tuple[str, int], dict[str, Number]] = field(default_factory=dict)

    def numbers(self, run: Run, chosen: Chosen) -> dict[str, Number]:
        """Latencies of the chosen requests, and what is said of the run as a whole."""
        key = (run.policy, run.repeat, np.packbits(chosen).tobytes())
        if key not in self._known:
            self._known[key] = numbers(run, chosen, self.unit, self.units)
        whole = self._whole.get(key[:2])
        if whole is None:
            whole = whole_numbers(run, self.slo, self.runs.ranks, self.unit, self.units)
            self._whole[key[:2]] = whole
        return {**self._known[key], **whole}

    def own(self, policy: str, among: Chosen | None = None) -> dict[int, dict[str, Number]]:
        """By repeat, over all requests that the run answered."""
        return {
            k: self.numbers(r, r.answered if among is None else r.answered & among)
            for k, r in self.runs.of(policy).items()
        }

    def pair(self, a: str, b: str) -> Iterator[tuple[int, dict[str, Number], dict[str, Number]]]:
        """By repeat that both have, over the requests that both answered: who loses the slow ones is not faster."""
        ours, theirs = self.runs.of(a), self.runs.of(b)
        for k in sorted(set(ours) & set(theirs)):
            both = ours[k].answered & theirs[k].answered
            yield k, self.numbers(ours[k], both), self.numbers(theirs[k], both)

    @cached_property
    def drawn(self) -> Draws:
        """Blocks of the trace, the same for all policies, repeats and numbers."""
        return draws(list(self._series()), self.units, self.least_span)

    def _series(self) -> Iterator[Floats]:
        for a, b in combinations(self.runs.policies, 2):
            pairs = list(self.pair(a, b))
            for name in LEADING:
                found = [
                    x[name].figure.influence / x[name].value - y[name].figure.influence / y[name].value  # type: ignore[union-attr]
                    for _, x, y in pairs
                    if name in x and name in y and x[name].value > 0 and y[name].value > 0
                ]
                if found:
                    yield np.mean(found, axis=0)


def measure(runs: LiveRuns, slo: Slo) -> Measured:
    """Prepare the numbers of all runs."""
    n = runs.trace.height
    meant = _nanmean([r.intended_s for r in runs.runs])
    meant = np.where(np.isfinite(meant), meant, np.nanmax(meant) if np.isfinite(meant).any() else 0.0)
    units = units_for(n)
    span_s = float(np.ptp(meant))
    unit = np.zeros(n, dtype=np.int64)
    if span_s > 0:
        unit = np.minimum((meant - meant.min()) / span_s * units, units - 1).astype(np.int64)
    lives = np.concatenate([(r.finished_s - r.intended_s)[r.answered] for r in runs.runs])
    life_s = LIVES * float(lives.mean()) if len(lives) else math.nan
    least = math.ceil(life_s / span_s * units) if span_s > 0 and math.isfinite(life_s) else units
    return Measured(runs, slo, unit, units, max(1, min(least, units)))


def _nanmean(rows: Sequence[Floats]) -> Floats:
    """Mean over rows of what is known; NaN where nothing is."""
    table = np.stack(rows)
    known = np.isfinite(table)
    count = known.sum(axis=0)
    total = np.where(known, table, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(table.shape[1], np.nan), where=count > 0))

"""One number of one run, and how it moves when stretches of its time are drawn again.

Requests that are served side by side share steps and queues, so they are not independent and never drawn one by one.
The counted time is cut into short units of equal length; a replicate draws blocks of neighbouring units (Künsch 1989,
the circular block bootstrap), in both runs the same ones where they served the same requests. What a unit holds is
summed beforehand, so that a replicate costs the number of units, whatever the number of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from equipoise._blocks import block_length, draw_blocks
from equipoise.study.statistics import Interval, student
from equipoise.types import Floats, Ints

__all__ = ["Draws", "Figure", "draws", "per_unit", "quantile", "raw_difference", "sums_ratio", "units_for"]

REPLICATES = 1000
"""The standard error they give is itself known to 2 %."""
MOST_UNITS = 512
LEAST_BLOCKS = 8
"""Of fewer a spread says too little."""
EDGES = 256
"""Levels around a quantile at which replicates are read off."""
LEAST_BEYOND = 10
"""Requests that must lie beyond a quantile on either side: of fewer it is hardly more than the extreme value."""


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """A number of a run.

    Parameters
    ----------
    value : float
    influence : float64[units]
        By how much each unit moves it, to first order.
    redrawn : function
        From float64[replicates, units], how often each unit was drawn, to the number in each replicate.
    known : bool
        False where the run is too small to say how uncertain the number is.
    """

    value: float
    influence: Floats
    redrawn: Callable[[Floats], Floats]
    known: bool = True


def units_for(requests: int) -> int:
    """Units of time for so many requests: short beside blocks, long beside the gaps between requests."""
    return int(np.clip(requests // 32, 5, MOST_UNITS // 8)) * 8


def per_unit(unit: Ints, units: int, amounts: Floats | None = None) -> Floats:
    """Sum of amounts in each unit, float64[units]; without amounts, how many there are."""
    return np.bincount(unit, amounts, units).astype(np.float64)


def sums_ratio(top: Floats, bottom: Floats, *, minus: float = 0.0) -> Figure:
    """A sum over units divided by another: a mean, a rate, a cost over its ideal."""
    total = float(bottom.sum())
    ratio = float(top.sum()) / total if total else math.nan

    def redrawn(counts: Floats) -> Floats:
        below = counts @ bottom
        found: Floats = np.divide(counts @ top, below, out=np.full(len(counts), np.nan), where=below != 0)
        return found - minus

    return Figure(
        ratio - minus, (top - ratio * bottom) / (total or math.nan), redrawn, known=math.isfinite(ratio)
    )


def quantile(values: Floats, unit: Ints, units: int, level: float) -> Figure:
    """A quantile of values that stand in units of time.

    Parameters
    ----------
    values : float64[n]
    unit : int64[n]
    units : int
        A multiple of 8, as `units_for` has it.
    level : float
        Between 0 and 1.

    Notes
    -----
    A replicate's quantile is the least of up to `EDGES` order statistics at which its distribution reaches `level`.
    They are spaced for six standard deviations around the level, so each is far finer than the uncertainty.
    """
    n = len(values)
    ordered = np.sort(values)
    found = float(np.percentile(ordered, 100 * level))
    held = per_unit(unit, units)
    below = np.bincount(unit, values <= found, units)
    at_most = float(below.sum()) / n
    shares = (below - at_most * held) / n
    # how far the level of a replicate strays; blocks of an eighth of the time are at the safe side of any
    wide = shares.reshape(8, -1)
    deviation = max(float(np.sqrt((wide.sum(axis=1) ** 2).sum())), math.sqrt(level * (1 - level) / n))
    reach = min(6 * deviation, 1.0)
    levels = np.linspace(level - reach, level + reach, EDGES)
    positions = np.clip(np.ceil(levels * n).astype(np.int64) - 1, 0, n - 1)
    edges = np.unique(np.concatenate([ordered[positions], [found]]))
    if edges[-1] < ordered[-1]:
        edges = np.append(edges, ordered[-1])
    place = np.searchsorted(edges, values, side="left")
    width = len(edges)
    table = np.bincount(unit * width + place, minlength=units * width).reshape(units, width).cumsum(axis=1)
    rows = table.astype(np.float64)

    def redrawn(counts: Floats) -> Floats:
        reached = counts @ rows
        wanted = level * reached[:, -1:]
        out: Floats = edges[np.argmax(reached >= wanted - 1e-9 * reached[:, -1:], axis=1)]
        return np.where(reached[:, -1] > 0, out, np.nan)

    near = min(2 * deviation, level, 1 - level)
    low, high = np.percentile(ordered, [100 * (level - near), 100 * (level + near)])
    slope = float(high - low) / (2 * near)
    return Figure(found, -shares * slope, redrawn, known=n * min(level, 1 - level) >= LEAST_BEYOND)


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Blocks drawn for a pair of runs.

    Parameters
    ----------
    a, b : float64[replicates, units]
        The same array where the runs are paired.
    span : int
        Units a block.
    blocks : float
        Blocks in the counted time.
    memory : int
        Units that differences were found to remember each other.
    """

    a: Floats
    b: Floats
    span: int
    blocks: float
    memory: int

    def apart(self) -> Draws:
        """The same blocks in A, others in B."""
        rng = np.random.default_rng(1)
        return replace(self, b=draw_blocks(rng, len(self.b), self.b.shape[1], self.span))

    @property
    def enough(self) -> bool:
        """Whether there are so many blocks that their spread says something."""
        return self.blocks >= LEAST_BLOCKS


def draws(series: Sequence[Floats], units: int, least_span: int, *, seed: int = 0) -> Draws:
    """Choose the length of blocks and draw them, the same ones in both runs.

    Parameters
    ----------
    series : sequence of float64[units]
        What should be nearly independent from block to block: influences, or their differences where runs are paired.
    units : int
    least_span : int
        Units a block holds at least: what is known of how long requests share the pool.
    seed : int
    """
    memory = max((block_length(s) for s in series if np.ptp(s) > 0), default=1)
    span = max(least_span, memory)
    if units / span < LEAST_BLOCKS:
        nothing = np.zeros((0, units))
        return Draws(nothing, nothing, span, units / span, memory)
    drawn = draw_blocks(np.random.default_rng(seed), REPLICATES, units, span)
    return Draws(drawn, drawn, span, units / span, memory)


def raw_difference(a: Figure, b: Figure, drawn: Draws, *, paired: bool) -> tuple[Interval, Interval]:
    """``b - a``, and the logarithm of ``b / a``, each with its own 95 % interval.

    The logarithm is not known where either number is 0 or less.

    Notes
    -----
    Standard errors are those of the replicates, with n / (n - 1) for n blocks and for replicates that are a little
    longer than the run; Student's t with n - 1 degrees of freedom (2 (n - 1) where both runs are drawn on their own).
    """
    positive = a.value > 0 and b.value > 0
    gap = b.value - a.value
    ratio = math.log(b.value) - math.log(a.value) if positive else math.nan
    if not (a.known and b.known and drawn.enough):
        return student(gap, math.nan, 0, "none"), student(ratio, math.nan, 0, "none")
    first, second = a.redrawn(drawn.a), b.redrawn(drawn.b)
    units = drawn.a.shape[1]
    drawn_units = math.ceil(units / drawn.span) * drawn.span
    factor = math.sqrt(drawn_units / units * drawn.blocks / (drawn.blocks - 1))
    freedom = (drawn.blocks - 1) * (1 if paired else 2)
    return (
        student(gap, factor * _deviation(second - first), freedom, "blocks"),
        student(ratio, factor * _deviation(_log(second) - _log(first)), freedom, "blocks")
        if positive
        else student(math.nan, math.nan, 0, "none"),
    )


def _log(values: Floats) -> Floats:
    return np.log(values, out=np.full(len(values), np.nan), where=values > 0)


def _deviation(values: Floats) -> float:
    """Standard deviation; NaN where more than a few replicates are not numbers."""
    known = values[np.isfinite(values)]
    return float(known.std(ddof=1)) if len(known) > 0.95 * len(values) else math.nan

"""Load regions: cells of the (batch, context) plane, left out whole to test a fit where it has not been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from equipoise.calibrate.samples import Samples
from equipoise.types import Floats, Ints

__all__ = ["Regions", "load_regions", "regimes"]

WIDTHS: Final = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""Widths of a cell in octaves, the widest that gives enough cells is taken."""
ENOUGH_CELLS: Final = 6
MOST_CELLS: Final = 40
TIME_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """A partition of steps.

    Parameters
    ----------
    of_step : int64[steps]
        Region of each step, from 0.
    count : int
    octaves : float
        Width of a cell along batch and context; 0 where regions are blocks of time.
    kind : {"load", "time"}
        ``time``: the load hardly varies, so consecutive steps are left out instead. That tests less.
    """

    of_step: Ints
    count: int
    octaves: float
    kind: Literal["load", "time"]

    def describe(self) -> str:
        """In words."""
        if self.kind == "time":
            return f"{self.count} stretches of time (the load varies too little for regions)"
        width = "1 octave" if self.octaves == 1 else f"{self.octaves:g} octaves"
        return f"{self.count} cells of the (batch, context) plane, {width} wide"


def load_regions(samples: Samples) -> Regions:
    """Cells of mean batch and mean context tokens a rank, on a logarithmic grid."""
    steps = len(samples)
    B = np.log2(np.maximum(samples.mean(samples.batch), 0.25))
    C = np.log2(np.maximum(samples.mean(samples.context), 1.0))
    least = max(1.0, steps / 200)
    for octaves in WIDTHS:
        x = np.floor(B / octaves + 1e-9).astype(np.int64)
        y = np.floor(C / octaves + 1e-9).astype(np.int64)
        _, cell, size = np.unique(np.stack([x, y]), axis=1, return_inverse=True, return_counts=True)
        cell = cell.reshape(-1)
        if (size >= least).sum() >= min(ENOUGH_CELLS, steps):
            return _limited(cell.astype(np.int64), size, octaves)
    blocks = min(TIME_BLOCKS, steps)
    return Regions((np.arange(steps) * blocks // steps).astype(np.int64), blocks, 0.0, "time")


def _limited(cell: Ints, size: Ints, octaves: float) -> Regions:
    """Keep the largest cells apart and put the others together into one region."""
    if len(size) > MOST_CELLS:
        order = np.argsort(-size, kind="stable")
        number = np.full(len(size), MOST_CELLS - 1)
        number[order[: MOST_CELLS - 1]] = np.arange(MOST_CELLS - 1)
        cell = number[cell]
    return Regions(cell, int(cell.max()) + 1, octaves, "load")


BATCHES: Final = (8, 64)
CONTEXTS: Final = (8192, 65536)
"""Bounds between small, middle and large, in requests a rank and context tokens a request."""


def regimes(samples: Samples) -> tuple[Ints, tuple[str, ...]]:
    """Coarse regime of each step by mean batch and mean context a request, with its name.

    The bounds are fixed, so that fits can be compared.
    """
    batch = samples.mean(samples.batch)
    length = samples.mean(samples.context) / np.maximum(batch, 1e-9)
    i, j = np.searchsorted(BATCHES, batch), np.searchsorted(CONTEXTS, length)
    b_names = [f"batch <= {BATCHES[0]}", f"batch {BATCHES[0]}-{BATCHES[1]}", f"batch > {BATCHES[1]}"]
    c_names = ["context <= 8k", "context 8k-64k", "context > 64k"]
    names = tuple(f"{b}, {c}" for b in b_names for c in c_names)
    return np.asarray(i * 3 + j, dtype=np.int64), names


def weighted_mean(values: Floats, weight: Floats) -> float:
    """Mean; NaN of nothing."""
    total = float(weight.sum())
    return float(values @ weight) / total if total > 0 else float("nan")

"""The plotted steps of a fit by cell of the (batch, context) plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from equipoise.calibrate.result import Points
from equipoise.calibrate.words import tokens
from equipoise.types import Floats, Ints

__all__ = ["Cells", "residual_cells"]

WIDTHS: Final = (1.0, 0.5, 0.25)
"""Widths of a cell in octaves; the widest that gives enough cells is taken."""
ENOUGH: Final = 12


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Median residual by cell.

    Parameters
    ----------
    batch_from, context_from : float64[n], float64[m]
        Lower bounds: mean requests a rank, mean context tokens a rank.
    octaves : float
        Width of a cell.
    residual : float64[n, m]
        Median of measured over predicted less 1; NaN where there is no step.
    steps : int64[n, m]
    """

    batch_from: Floats
    context_from: Floats
    octaves: float
    residual: Floats
    steps: Ints

    @property
    def reach(self) -> float:
        """Largest residual worth a colour of its own."""
        seen = np.abs(self.residual[np.isfinite(self.residual)])
        return max(0.01, float(np.quantile(seen, 0.95))) if len(seen) else 0.01

    @property
    def labels(self) -> tuple[list[str], list[str]]:
        """Bounds as text."""
        return [f"{b:.3g}" for b in self.batch_from], [tokens(c) for c in self.context_from]


def residual_cells(points: Points) -> Cells:
    """Sort the plotted steps into cells."""
    B = np.log2(np.maximum(points.batch, 0.5))
    C = np.log2(np.maximum(points.context_tokens, 1.0))
    for octaves in WIDTHS:
        y, x = (np.floor(v / octaves + 1e-9).astype(np.int64) for v in (B, C))
        if len(np.unique(np.stack([y, x]), axis=1).T) >= ENOUGH:
            break
    rows, columns = int(y.max() - y.min()) + 1, int(x.max() - x.min()) + 1
    residual = np.full((rows, columns), np.nan)
    steps = np.zeros((rows, columns), dtype=np.int64)
    cell = (y - y.min()) * columns + (x - x.min())
    for at in np.unique(cell):
        here = cell == at
        residual.flat[at] = np.median(points.residual[here])
        steps.flat[at] = here.sum()
    return Cells(
        batch_from=np.exp2((y.min() + np.arange(rows)) * octaves),
        context_from=np.exp2((x.min() + np.arange(columns)) * octaves),
        octaves=octaves,
        residual=residual,
        steps=steps,
    )

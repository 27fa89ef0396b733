"""Where in the (batch, context) plane the data lie: a fit knows nothing of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.calibrate.samples import Samples
from equipoise.types import Ints

__all__ = ["Coverage", "coverage"]


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Counts by cell, one octave wide each way.

    Parameters
    ----------
    batch_from, context_from : int64[n], int64[m]
        Lower bound of each cell: requests a rank, context tokens a rank.
    rows : int64[n, m]
        Loads of ranks.
    slowest : int64[n, m]
        Loads of ranks that were slowest in some barrier: what the prices really rest on.
    """

    batch_from: Ints
    context_from: Ints
    rows: Ints
    slowest: Ints

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "batch_from": self.batch_from.tolist(),
            "context_from": self.context_from.tolist(),
            "rows": self.rows.tolist(),
            "slowest": self.slowest.tolist(),
        }


def coverage(samples: Samples, slowest_rows: Ints) -> Coverage:
    """Count loads by cell; idle ranks are left out.

    Parameters
    ----------
    samples : Samples
    slowest_rows : int64[terms, steps]
        Slowest row of every barrier.
    """
    b = np.floor(np.log2(np.maximum(samples.batch, 1))).astype(np.int64)
    c = np.floor(np.log2(np.maximum(samples.context, 1))).astype(np.int64)
    busy = samples.batch > 0
    if not busy.any():
        busy = ~busy
    low_b, low_c = int(b[busy].min()), int(c[busy].min())
    n, m = int(b[busy].max()) - low_b + 1, int(c[busy].max()) - low_c + 1
    cell = np.where(busy, (b - low_b) * m + (c - low_c), -1)
    picked = np.zeros(samples.rows, dtype=bool)
    picked[slowest_rows] = True

    def count(cells: Ints) -> Ints:
        return np.bincount(cells[cells >= 0], minlength=n * m).reshape(n, m)

    return Coverage(
        batch_from=2 ** np.arange(low_b, low_b + n),
        context_from=2 ** np.arange(low_c, low_c + m),
        rows=count(cell),
        slowest=count(cell[picked]),
    )

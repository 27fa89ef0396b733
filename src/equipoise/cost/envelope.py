"""Lower convex envelope of a batch price given as a table with a linear tail."""

from __future__ import annotations

import numpy as np

from equipoise.types import Floats

__all__ = ["lower_convex_envelope"]


def lower_convex_envelope(table: Floats, tail: float) -> tuple[Floats, float]:
    """Largest convex function below a batch price, at the table's points.

    By Jensen's inequality the envelope at the mean batch is at most the mean of the prices: it is what makes
    ``ideal <= cost`` hold for staircases too. Convex tables come back unchanged.

    Parameters
    ----------
    table : float64[N + 1]
        Price of a batch of 0 ... N.
    tail : float
        Price of each request beyond N.

    Returns
    -------
    envelope : float64[N + 1]
    tail : float
        Its slope beyond N; equal to the argument.

    Examples
    --------
    >>> lower_convex_envelope(np.array([0.0, 4.0, 4.0, 4.0]), 2.0)[0].tolist()
    [0.0, 1.3333333333333333, 2.6666666666666665, 4.0]
    """
    steps = np.diff(table)
    if np.all(steps[1:] >= steps[:-1]) and (len(steps) == 0 or tail >= steps[-1]):
        return table.copy(), tail
    hull: list[int] = []
    for i in range(len(table)):
        while len(hull) >= 2 and _is_above(table, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    # The tail is a ray of slope `tail` from the last point: segments steeper than it lie above that ray.
    while len(hull) >= 2 and (table[hull[-1]] - table[hull[-2]]) > tail * (hull[-1] - hull[-2]):
        hull.pop()
    end = hull[-1]
    envelope = np.interp(np.arange(len(table)), hull, table[hull])
    envelope[end:] = table[end] + tail * np.arange(len(table) - end)
    return np.minimum(envelope, table), tail


def _is_above(table: Floats, left: int, middle: int, right: int) -> bool:
    """Whether the middle point lies on or above the chord from left to right."""
    return bool(
        (table[middle] - table[left]) * (right - left) >= (table[right] - table[left]) * (middle - left)
    )

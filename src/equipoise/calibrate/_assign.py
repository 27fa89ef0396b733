"""Which rank is slowest in every barrier of every step, compiled: the inner loop of a fit."""

from __future__ import annotations

from numba import types

from equipoise._jit import compiled
from equipoise.types import Floats, Ints

__all__ = ["slowest"]

INTS, INTS_2D = types.Array(types.int64, 1, "C"), types.Array(types.int64, 2, "C")
FLOATS, FLOATS_2D = types.Array(types.float64, 1, "C"), types.Array(types.float64, 2, "C")


@compiled(types.void(INTS, INTS, FLOATS, FLOATS, FLOATS, FLOATS_2D, FLOATS_2D, INTS_2D, FLOATS))
def slowest(
    starts: Ints,
    batch: Ints,
    context: Floats,
    saturated: Floats,
    extra_queries: Floats,
    batch_price: Floats,
    price: Floats,
    row: Ints,
    time_us: Floats,
) -> None:
    """Find the slowest rank of each term of each step, and what the step takes beside the constant.

    Ties go to the first row. `saturated` and `extra_queries` may be empty.

    Parameters
    ----------
    starts : int64[steps + 1]
    batch, context, saturated, extra_queries : [rows]
    batch_price : float64[terms, largest batch + 1]
    price : float64[terms, 3]
        Per context token, per saturated token, per extra query.
    row : int64[terms, steps], out
    time_us : float64[steps], out
    """
    has_saturated, has_queries = len(saturated) > 0, len(extra_queries) > 0
    for step in range(len(starts) - 1):
        total = 0.0
        for t in range(batch_price.shape[0]):
            best, at = -1.0, starts[step]
            for r in range(starts[step], starts[step + 1]):
                work = batch_price[t, batch[r]] + price[t, 0] * context[r]
                if has_saturated:
                    work += price[t, 1] * saturated[r]
                if has_queries:
                    work += price[t, 2] * extra_queries[r]
                if work > best:
                    best, at = work, r
            row[t, step] = at
            total += best
        time_us[step] = total

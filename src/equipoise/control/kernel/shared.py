"""The compiled pieces of the distributed form: a rank's curve, the plan from all curves, a rank's part of it."""

from __future__ import annotations

from numba import types

from equipoise._jit import borrowed, compiled
from equipoise.control.kernel.fill import fill_binned, fill_sorted
from equipoise.control.kernel.levels import binned_points
from equipoise.control.kernel.points import base_loads, query_slope, sorted_points
from equipoise.control.kernel.room import DRAFTS, PRICES, ROOM
from equipoise.control.kernel.scan import best_deadline

__all__ = ["agree_kernel", "curve_kernel", "fill_kernel"]


@compiled(types.int64(DRAFTS, PRICES, ROOM, types.float64), first_class=False)
def curve_kernel(drafts, prices, room, trim):  # type: ignore[no-untyped-def]
    """Fill the curve of one rank into its room; return the first row whose survivals are wrong, or -1."""
    drafts, prices, room = borrowed(drafts), borrowed(prices), borrowed(room)
    base_loads(drafts, prices, room)
    slope = query_slope(prices, room.batch, drafts.survival.shape[1])
    if room.levels.size == 0:
        return sorted_points(drafts, prices, room, slope, trim)
    return binned_points(drafts, prices, room, slope, trim, 1)


@compiled(types.void(PRICES, ROOM, types.float64[::1]), first_class=False)
def agree_kernel(prices, room, out):  # type: ignore[no-untyped-def]
    """Cap, deadline and rate (in 2**-22 tokens) of the best plan, from the curves in a room."""
    prices, room = borrowed(prices), borrowed(room)
    out[0], out[1], out[2] = best_deadline(prices, room)


@compiled(types.void(DRAFTS, PRICES, ROOM, types.float64, types.int64, types.float64), first_class=False)
def fill_kernel(drafts, prices, room, trim, cap, deadline):  # type: ignore[no-untyped-def]
    """Fill `trial` of one rank whose curve is in its room."""
    drafts, prices, room = borrowed(drafts), borrowed(prices), borrowed(room)
    slope = query_slope(prices, room.batch, drafts.survival.shape[1])
    room.near[:] = 0
    if room.levels.size == 0:
        fill_sorted(room, cap, deadline)
    else:
        fill_binned(drafts, prices, room, slope, trim, cap, deadline)

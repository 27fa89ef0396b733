"""New traces from old: cut, repeat, interleave, scale in time. All keep the order law of `Trace`."""

from __future__ import annotations

import numpy as np

from equipoise.errors import TraceError
from equipoise.traces.interleave import assign_session_starts, cycle, reinterleave
from equipoise.traces.reorder import by_arrival, check_count, check_positive, reorder
from equipoise.traces.streams import generator
from equipoise.traces.trace import Trace

__all__ = [
    "assign_session_starts",
    "cycle",
    "detect_tick",
    "head",
    "prefill_delay",
    "reinterleave",
    "scale_rate",
    "spread_ticks",
]


def head(trace: Trace, requests: int) -> Trace:
    """The first ``requests`` requests (all, if there are fewer)."""
    check_count("requests", requests)
    return trace if requests >= len(trace) else reorder(trace, slice(0, requests))


def scale_rate(trace: Trace, factor: float) -> Trace:
    """Let requests arrive ``factor`` times as fast; think times stay as recorded.

    Raises
    ------
    TraceError
        The factor is not a positive number.
    """
    check_positive("factor", factor)
    return reorder(trace, None, arrival_s=trace.arrival_s / factor)


def prefill_delay(trace: Trace, fixed_s: float = 0.0, per_token_s: float = 0.0) -> Trace:
    """Arrival at a decode pool: arrival + fixed + per token x context, in the order of these times.

    Parameters
    ----------
    trace : Trace
    fixed_s : float
        Seconds every request takes through prefill and transfer.
    per_token_s : float
        Further seconds a context token.
    """
    for name, value in (("fixed_s", fixed_s), ("per_token_s", per_token_s)):
        if not (np.isfinite(value) and value >= 0):
            raise TraceError(
                f"{name} = {value} is not a delay", fix="expected a finite number of seconds, at least 0"
            )
    return by_arrival(trace, trace.arrival_s + fixed_s + per_token_s * trace.context_tokens)


def detect_tick(trace: Trace) -> float | None:
    """The grid that all arrivals sit on, in seconds, if most requests share their tick with others; else None.

    Recorded ticks wander by a few milliseconds (Mooncake's do), so steps are counted from one distinct time to the
    next and the grid is fitted to all of them; every time must lie within 2 % of a tick from it.
    """
    ticks, counts = np.unique(trace.arrival_s, return_counts=True)
    if len(ticks) < 3 or counts[counts > 1].sum() * 2 < len(trace):
        return None
    gap_s = np.diff(ticks)
    steps = np.cumsum(np.rint(gap_s / np.quantile(gap_s, 0.1)))
    tick_s = float((ticks[-1] - ticks[0]) / steps[-1])
    if np.abs(ticks[1:] - ticks[0] - steps * tick_s).max() > 0.02 * tick_s:
        return None
    return float(f"{tick_s:.4g}")


def spread_ticks(trace: Trace, tick_s: float | None = None, seed: int = 0) -> Trace:
    """Spread requests that share a tick uniformly inside it, in the order they stand.

    Some exports round arrivals to a grid (the Mooncake traces to 3 s): all requests of a tick would arrive at once.

    Parameters
    ----------
    trace : Trace
    tick_s : float, optional
        The grid in seconds; detected if not given, and without a grid the trace is returned as it is.
    seed : int
    """
    if tick_s is None:
        tick_s = detect_tick(trace)
        if tick_s is None:
            return trace
    check_positive("tick_s", tick_s)
    rng = generator(seed, "spread ticks")
    place = rng.random(len(trace)) * tick_s
    tick = np.cumsum(np.diff(trace.arrival_s, prepend=trace.arrival_s[0]) > 0)
    # sorted inside each tick: the order of the file is the order of arrival
    place = place[np.lexsort((place, tick))]
    # Ticks closer than tick_s (a value the user gave) could overlap; the order law comes first.
    return by_arrival(trace, trace.arrival_s + place)

"""Mixing sessions in time: draw their starts, mix them anew, repeat a trace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import TraceError
from equipoise.traces.reorder import by_arrival, check_count, check_positive, reorder
from equipoise.traces.sessions import session_rows
from equipoise.traces.streams import generator
from equipoise.traces.trace import PrefixBlocks, Trace
from equipoise.types import Floats, Ints

__all__ = ["Process", "assign_session_starts", "cycle", "reinterleave"]

SHUFFLE_BLOCK = 128
"""Consecutive requests that stay together when a trace without sessions is permuted."""
OPEN_SHARE = 1 / 30
"""Share of all sessions open at a time where starts are drawn: the ramps stay within some 3 % of the requests."""

Process = Literal["poisson", "gamma"]


def assign_session_starts(
    trace: Trace,
    seed: int = 0,
    *,
    rate_per_s: float | None = None,
    process: Process = "poisson",
    cv: float = 2.0,
) -> Trace:
    """Place sessions whose start is not recorded, so that they interleave as they would live.

    Turns keep their order and the recorded gaps inside a session. Two ways:

    - Without a rate, every session stays whole. Starts fall evenly over a span T, long against a session:
      T = total session time / open, with 1/30 of all sessions (at least 2) open at a time, and at least the longest
      session. A session whose last request comes D after its first starts at p x (T - D), p from the process. The
      number of open sessions is stationary but for a ramp of a few percent at either end.
    - With a rate, the trace is a window of ``requests / rate`` seconds cut out of an endless stationary process:
      what hangs over its end is seen at its beginning, as sessions in progress (with session numbers of their own
      and their turn numbers as recorded). Any rate is possible without touching a gap, the context mix is stationary
      from the first request, and no request is lost.

    Requests without a session are sessions of one request and keep their order.

    Parameters
    ----------
    trace : Trace
        Its arrivals are offsets inside a session; only their differences count.
    seed : int
    rate_per_s : float, optional
        Requests a second.
    process : "poisson" or "gamma"
        Gaps between session starts: exponential, or Gamma with the coefficient of variation ``cv``.
    cv : float

    Raises
    ------
    TraceError
        A rate or CV that is not positive, or an unknown process.
    """
    sessions = session_rows(trace)
    rng = generator(seed, "session starts")
    points = _points(rng, sessions.count, process, cv)
    if (trace.session >= 0).any():
        points = rng.permutation(points)
    offset_s = trace.arrival_s - sessions.start_s[sessions.of_row]
    if rate_per_s is None:
        open_sessions = max(2.0, sessions.count * OPEN_SHARE)
        span_s = max(sessions.duration_s.sum() / open_sessions, sessions.length_s.max())
        start_s = points * (span_s - sessions.length_s)
        return by_arrival(trace, start_s[sessions.of_row] + offset_s)
    check_positive("rate_per_s", rate_per_s)
    span_s = len(trace) / rate_per_s
    arrival_s = points[sessions.of_row] * span_s + offset_s
    lap = np.floor(arrival_s / span_s).astype(np.int64)
    arrival_s = np.maximum(arrival_s - lap * span_s, 0.0)
    return by_arrival(trace, arrival_s, session=_numbered_laps(trace.session, lap))


def _numbered_laps(session: Ints, lap: Ints) -> Ints:
    """A session number of its own for each part of a session that was cut."""
    part = (session >= 0) & (lap > 0)
    if not part.any():
        return session
    _, inverse = np.unique(np.stack([session[part], lap[part]]), axis=1, return_inverse=True)
    numbers = session.copy()
    numbers[part] = session.max() + 1 + inverse.ravel()
    return numbers


def reinterleave(trace: Trace, seed: int = 0, *, lap: int = 0) -> Trace:
    """The same requests over the same span, mixed anew.

    Sessions stay whole: the recorded starts are dealt out to the sessions anew, each pulled in so that the session
    ends inside the span. A trace without sessions is cut into blocks of 128 consecutive requests, which are permuted
    together with the gaps before their requests, so that bursts and local correlation survive.

    Parameters
    ----------
    trace : Trace
    seed : int
    lap : int
        Numbers the mixes of one seed.
    """
    rng = generator(seed, "reinterleave", lap)
    if not (trace.session >= 0).any():
        size = max(1, min(SHUFFLE_BLOCK, len(trace) // 8))
        blocks = [np.arange(i, min(i + size, len(trace))) for i in range(0, len(trace), size)]
        order = np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
        gap_s = np.diff(trace.arrival_s, prepend=trace.arrival_s[0])
        arrival_s = np.cumsum(gap_s[order])
        return reorder(trace, order, arrival_s=arrival_s - arrival_s[0])
    sessions = session_rows(trace)
    offset_s = trace.arrival_s - sessions.start_s[sessions.of_row]
    span_s = trace.arrival_s[-1] - trace.arrival_s[0]
    place = (sessions.start_s - trace.arrival_s[0]) / span_s if span_s > 0 else np.zeros(sessions.count)
    start_s = rng.permutation(place) * (span_s - sessions.length_s)
    return by_arrival(trace, start_s[sessions.of_row] + offset_s)


def cycle(trace: Trace, requests: int, seed: int = 0) -> Trace:
    """Repeat a trace until it has ``requests`` requests; every pass is mixed anew by `reinterleave`.

    Pass 0 under seed 0 is the trace as it is. Sessions and prefix blocks of a later pass are new ones: a repetition
    finds nothing of an earlier pass in a cache. A pass follows the one before after the trace's mean gap.

    Parameters
    ----------
    trace : Trace
    requests : int
        Wanted length; fewer than the trace has cuts it.
    seed : int
    """
    check_count("requests", requests)
    gap_s = (trace.arrival_s[-1] - trace.arrival_s[0]) / max(1, len(trace) - 1)
    sessions = int(trace.session.max()) + 1
    blocks = 0 if trace.prefix is None or not len(trace.prefix.ids) else int(np.ptp(trace.prefix.ids)) + 1
    passes: list[Trace] = []
    end_s, left = 0.0, requests
    while left > 0:
        k = len(passes)
        again = trace if k == seed == 0 else reinterleave(trace, seed, lap=k)
        again = again if left >= len(again) else reorder(again, slice(0, left))
        changes: dict[str, object] = {}
        if k:
            changes["arrival_s"] = again.arrival_s - again.arrival_s[0] + end_s + gap_s
            if sessions > 0:
                changes["session"] = np.where(again.session < 0, -1, again.session + k * sessions)
            if again.prefix is not None:
                prefix = again.prefix
                changes["prefix"] = PrefixBlocks(prefix.offsets, prefix.ids + k * blocks, prefix.block_tokens)
        passes.append(reorder(again, None, **changes))
        end_s = float(passes[-1].arrival_s[-1])
        left -= len(again)
    return passes[0] if len(passes) == 1 else _joined(passes)


def _joined(passes: list[Trace]) -> Trace:
    def column(name: str) -> NDArray[Any]:
        values = [getattr(p, name) for p in passes]
        if all(
            v.strides == (0,) and v[0] == values[0][0] for v in values
        ):  # a fill-in stays a view of one value
            return np.broadcast_to(values[0][0], sum(map(len, values)))
        return np.concatenate(values)

    prefixes = [p.prefix for p in passes if p.prefix is not None]
    prefix = None
    if prefixes:
        lengths = np.concatenate([np.diff(p.offsets) for p in prefixes])
        ids = np.concatenate([p.ids for p in prefixes])
        prefix = PrefixBlocks(np.concatenate([[0], np.cumsum(lengths)]), ids, prefixes[0].block_tokens)
    names = ("arrival_s", "context_tokens", "output_tokens", "session", "turn", "think_s")
    return replace(passes[0], prefix=prefix, **{name: column(name) for name in names})  # type: ignore[arg-type]


def _points(rng: np.random.Generator, n: int, process: str, cv: float) -> Floats:
    """N rising points in (0, 1): a renewal process, conditioned on n arrivals."""
    if process not in ("poisson", "gamma"):
        raise TraceError(f"the process {process!r} is unknown", fix="expected poisson or gamma")
    check_positive("cv", cv)
    gaps = rng.standard_exponential(n + 1) if process == "poisson" else rng.standard_gamma(1 / cv**2, n + 1)
    total = gaps.sum()
    return np.cumsum(gaps)[:-1] / total if total > 0 else np.arange(1, n + 1) / (n + 1)

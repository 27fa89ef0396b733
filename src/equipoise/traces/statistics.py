"""What a trace looks like: arrivals, lengths, sessions, prefix reuse, and the contexts that decoding really sees."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from equipoise.traces.trace import PrefixBlocks, Trace
from equipoise.traces.transforms import detect_tick
from equipoise.types import Floats, Ints

__all__ = ["Arrivals", "Decode", "Lengths", "Sessions", "TraceStatistics", "describe"]

COUNT_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens; quantiles are linear between order statistics."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: int


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When requests come.

    Parameters
    ----------
    span_s : float
        From the first to the last request.
    rate_per_s : float or None
        Requests a second; None for a span of zero.
    gap_cv : float or None
        Coefficient of variation of the gaps between arrivals (Poisson: 1).
    counts_variance_over_mean : float or None
        Of the requests in whole windows of 60 s (Poisson: 1); None below two windows.
    tick_s : float or None
        The grid that the arrivals sit on, if most requests share their tick.
    known : bool
        False: drawn, not recorded.
    """

    span_s: float
    rate_per_s: float | None
    gap_cv: float | None
    counts_variance_over_mean: float | None
    tick_s: float | None
    known: bool


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations.

    Parameters
    ----------
    count : int
        Sessions seen.
    in_progress : int
        Of these, sessions whose first turn is not in the trace.
    turns_mean, turns_p50, turns_p90, turns_p99 : float
        Requests of a session that are in the trace.
    think_p50_s, think_p90_s : float
        Over all turns but the first.
    """

    count: int
    in_progress: int
    turns_mean: float
    turns_p50: float
    turns_p90: float
    turns_p99: float
    think_p50_s: float | None
    think_p90_s: float | None


@dataclass(frozen=True, slots=True)
class Decode:
    """Context as a decode step meets it: every request weighted by the steps it runs, its output tokens.

    While a request decodes, its context grows from C to C + output; its mean, C + output / 2, is taken.
    This, not the mean over requests, is what balance depends on.
    """

    mean: float
    cv: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """All of it; `to_dict` for JSON.

    Parameters
    ----------
    name, source : str
    requests : int
    arrivals : Arrivals
    context, output : Lengths
        Tokens when decoding starts, and tokens generated.
    share_above_32k, share_above_100k : float
        Requests whose context is longer than 32,768 and than 100,000 tokens.
    log_correlation : float or None
        Pearson correlation of the logarithms of context and output.
    decode : Decode
    sessions : Sessions or None
    prefix_hit_share : float or None
        Share of context tokens in leading prefix blocks that an earlier request had: the hits of an endless cache.
        None where the trace has no blocks.
    """

    name: str
    source: str
    requests: int
    arrivals: Arrivals
    context: Lengths
    output: Lengths
    share_above_32k: float
    share_above_100k: float
    log_correlation: float | None
    decode: Decode
    sessions: Sessions | None
    prefix_hit_share: float | None

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values under the schema name ``equipoise.trace-info/1``."""
        return {"schema": "equipoise.trace-info/1", **asdict(self)}


def describe(trace: Trace) -> TraceStatistics:
    """Summarise a trace.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    TraceStatistics
    """
    context, output = trace.context_tokens, trace.output_tokens
    return TraceStatistics(
        name=trace.name,
        source=trace.source,
        requests=len(trace),
        arrivals=_arrivals(trace),
        context=_lengths(context),
        output=_lengths(output),
        share_above_32k=float((context > 32_768).mean()),
        share_above_100k=float((context > 100_000).mean()),
        log_correlation=_correlation(np.log(context), np.log(output)),
        decode=_decode(context, output),
        sessions=_sessions(trace),
        prefix_hit_share=None if trace.prefix is None else _prefix_hits(trace.prefix, context),
    )


def _lengths(tokens: Ints) -> Lengths:
    p50, p90, p99 = np.quantile(tokens, [0.5, 0.9, 0.99])
    return Lengths(float(tokens.mean()), float(p50), float(p90), float(p99), int(tokens.max()))


def _arrivals(trace: Trace) -> Arrivals:
    arrival_s = trace.arrival_s - trace.arrival_s[0]
    span_s = float(arrival_s[-1])
    gap_cv = None
    if len(trace) > 1 and span_s > 0:
        gap_s = np.diff(arrival_s)
        gap_cv = float(gap_s.std() / gap_s.mean())
    windows = int(min(span_s // COUNT_WINDOW_S, 10_000_000))
    dispersion = None
    if windows >= 2:
        index = (arrival_s[arrival_s < windows * COUNT_WINDOW_S] // COUNT_WINDOW_S).astype(np.int64)
        counts = np.bincount(index, minlength=windows)
        dispersion = float(counts.var() / counts.mean())
    rate_per_s = (len(trace) - 1) / span_s if span_s > 0 else None
    return Arrivals(span_s, rate_per_s, gap_cv, dispersion, detect_tick(trace), trace.arrivals_known)


def _decode(context: Ints, output: Ints) -> Decode:
    weight = output.astype(np.float64)
    seen = context + weight / 2
    total = weight.sum()
    mean = float((seen * weight).sum() / total)
    variance = float((np.square(seen - mean) * weight).sum() / total)
    order = np.argsort(seen, kind="stable")
    share = np.cumsum(weight[order]) / total
    at = np.minimum(np.searchsorted(share, [0.5, 0.9, 0.99]), len(order) - 1)
    p50, p90, p99 = seen[order[at]].tolist()
    return Decode(mean, variance**0.5 / mean, p50, p90, p99)


def _correlation(x: Floats, y: Floats) -> float | None:
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def _sessions(trace: Trace) -> Sessions | None:
    rows = trace.session >= 0
    if not rows.any():
        return None
    numbers, turns = np.unique(trace.session[rows], return_counts=True)
    begun = np.unique(trace.session[rows & (trace.turn == 0)])
    p50, p90, p99 = np.quantile(turns, [0.5, 0.9, 0.99])
    think_s = trace.think_s[rows & (trace.turn > 0)]
    think = np.quantile(think_s, [0.5, 0.9]) if len(think_s) else (None, None)
    return Sessions(
        len(numbers),
        len(numbers) - len(begun),
        float(turns.mean()),
        *(float(p) for p in (p50, p90, p99)),
        *(None if t is None else float(t) for t in think),
    )


def _prefix_hits(prefix: PrefixBlocks, context: Ints) -> float:
    """Leading blocks of each request that an earlier request had, in tokens, over all context tokens."""
    if not len(prefix.ids):
        return 0.0
    _, first, inverse = np.unique(prefix.ids, return_index=True, return_inverse=True)
    lengths = np.diff(prefix.offsets)
    begin = np.repeat(prefix.offsets[:-1], lengths)
    new = np.flatnonzero(first[inverse] >= begin)  # first seen in this very request
    # First new block at or after each request's begin; a request without one is hit in full.
    at = np.r_[new, len(prefix.ids)][np.searchsorted(new, prefix.offsets[:-1])]
    hits = np.minimum(at, prefix.offsets[1:]) - prefix.offsets[:-1]
    tokens = np.minimum(hits * prefix.block_tokens, context)
    return float(tokens.sum() / context.sum())

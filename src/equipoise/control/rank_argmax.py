"""What engines do today: every rank for itself, by a profile of time against query tokens."""

from __future__ import annotations

import numpy as np
from numba import types

from equipoise._jit import compiled
from equipoise.control.kernel.prices import batch_price, captured, context_price
from equipoise.control.price import VerifyPrice
from equipoise.control.state import Snapshot
from equipoise.types import Floats, Ints

__all__ = ["PROFILED_TOKENS", "best_within", "own_times", "profiled_times", "rank_argmax"]

PROFILED_TOKENS = 8192
"""Context of the dummy requests that start-up profiles are taken with (vLLM's adaptive verification)."""


@compiled(
    types.void(types.float32[:, ::1], types.int64[::1], types.float64[:, ::1], types.int64[::1]),
    first_class=False,
)
def _argmax(survival, first, times, lengths):  # type: ignore[no-untyped-def]
    drafts = survival.shape[1]
    for r in range(len(first) - 1):
        start, batch = first[r], first[r + 1] - first[r]
        if batch == 0:
            continue
        flat = survival[start : first[r + 1]].reshape(-1)
        order = np.argsort(-flat, kind="mergesort")
        tokens, best, upto = float(batch), batch / times[r, batch], 0
        for n in range(len(order)):
            tokens += flat[order[n]]
            found = tokens / times[r, batch + n + 1]
            if found > best:
                best, upto = found, n + 1
        for row in range(start, first[r + 1]):
            lengths[row] = 0
        for n in range(upto):
            lengths[start + order[n] // drafts] += 1


def rank_argmax(snapshot: Snapshot, times: Floats) -> Ints:
    """Verify lengths where each rank takes the best prefix of its drafts, sorted by survival, on a time curve.

    All prefixes are tried, since curves with graph sizes are staircases.

    Parameters
    ----------
    snapshot : Snapshot
    times : float64[ranks, queries + 1]
        Time of 0, 1, 2, ... query tokens on each rank, up to all its drafts.

    Returns
    -------
    int64[requests]
    """
    lengths = np.zeros(len(snapshot.context_tokens), dtype=np.int64)
    _argmax(snapshot.survival, snapshot.first, times, lengths)
    return lengths


def best_within(snapshot: Snapshot, budgets: Ints) -> Ints:
    """Verify lengths where each rank takes so many of its drafts, those that survive most often.

    Parameters
    ----------
    snapshot : Snapshot
    budgets : int64[ranks]
        Drafts of each rank; below 0 counts as 0.

    Returns
    -------
    int64[requests]
    """
    n, drafts = snapshot.survival.shape
    rank_of = np.repeat(np.arange(snapshot.ranks), np.diff(snapshot.first) * drafts)
    flat = snapshot.survival.reshape(-1)
    order = np.lexsort((-flat, rank_of))  # stable: of equals the earlier draft first, so lengths are prefixes
    place = np.arange(n * drafts) - snapshot.first[rank_of] * drafts
    taken = order[place < np.asarray(budgets)[rank_of]]
    return np.bincount(taken // max(drafts, 1), minlength=n).astype(np.int64)


def profiled_times(price: VerifyPrice, most_queries: int, context_tokens: int = PROFILED_TOKENS) -> Floats:
    """A start-up profile: steps of equal ranks, one query token for every request of a short context.

    Returns
    -------
    float64[queries + 1]
    """
    p = price.arrays
    reads = np.array([context_tokens, *(min(context_tokens, n) for n in p.saturation_tokens)], dtype=np.int64)
    none = np.zeros_like(reads)
    times = np.empty(most_queries + 1)
    for q in range(most_queries + 1):
        level = int(captured(p, q))
        times[q] = p.constant + p.ep_per_query * max(0.0, q - p.ep_free)
        for g in range(len(p.tail)):
            times[q] += batch_price(p, g, level) + context_price(p, g, q * reads, none)
    return times


def own_times(snapshot: Snapshot, price: VerifyPrice) -> Floats:
    """Each rank's true time if it were alone, its own contexts in it; drafts read the rank's mean context.

    Returns
    -------
    float64[ranks, queries + 1]
    """
    p, ranks = price.arrays, snapshot.ranks
    bounds = [np.iinfo(np.int64).max, *p.saturation_tokens.tolist()]
    most = int(np.diff(snapshot.first).max()) * (1 + snapshot.drafts)
    queries = np.arange(most + 1)
    level = np.array([captured(p, int(q)) for q in queries])
    table = sum(np.array([batch_price(p, g, int(q)) for q in level]) for g in range(len(p.tail)))
    times = np.empty((ranks, most + 1))
    for r in range(ranks):
        context = snapshot.context_tokens[snapshot.first[r] : snapshot.first[r + 1]]
        reads = np.array([np.minimum(context, b).sum() for b in bounds], dtype=np.float64)
        base = sum(context_price(p, g, reads, np.zeros_like(reads)) for g in range(1, len(p.tail)))
        share = reads / max(len(context), 1)
        again = sum(context_price(p, g, np.zeros_like(reads), share) for g in range(1, len(p.tail)))
        free = np.maximum(0.0, queries - p.ep_free) * p.ep_per_query
        times[r] = p.constant + table + base + again * np.maximum(0, queries - len(context)) + free
    return times

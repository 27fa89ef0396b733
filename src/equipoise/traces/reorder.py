"""Rows of a trace in another order, prefix blocks included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from equipoise.errors import TraceError
from equipoise.traces.trace import PrefixBlocks, Trace
from equipoise.types import Floats, Ints

__all__ = ["by_arrival", "check_count", "check_positive", "reorder"]


def reorder(trace: Trace, order: Ints | slice | None, **changes: object) -> Trace:
    """Chosen rows in a given order, then other fields replaced.

    Parameters
    ----------
    trace : Trace
    order : int64[...] or slice, optional
        Rows to keep, in this order; None keeps all as they are.
    **changes
        Fields of the new trace, already in the new order.
    """
    if order is None:
        return replace(trace, **changes)  # type: ignore[arg-type]
    if trace.prefix is not None and "prefix" not in changes:
        rows = np.arange(len(trace))[order] if isinstance(order, slice) else order
        changes["prefix"] = _take_blocks(trace.prefix, rows)
    return trace.take(order, **changes)


def _take_blocks(prefix: PrefixBlocks, rows: Ints) -> PrefixBlocks:
    lengths = np.diff(prefix.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    return PrefixBlocks(
        offsets, prefix.ids[np.repeat(prefix.offsets[rows], lengths) + within], prefix.block_tokens
    )


def by_arrival(trace: Trace, arrival_s: Floats, *, session: Ints | None = None) -> Trace:
    """Rows sorted by new arrivals, ties in their old order, time counted from the first one.

    Parameters
    ----------
    trace : Trace
    arrival_s : float64[requests]
        New arrival of each row of ``trace``.
    session : int64[requests], optional
        New session of each row.
    """
    order = np.argsort(arrival_s, kind="stable")
    changes: dict[str, object] = {"arrival_s": arrival_s[order] - arrival_s[order[0]]}
    if session is not None:
        changes["session"] = session[order]
    return reorder(trace, order, **changes)


def check_count(name: str, value: int) -> None:
    """Raise TraceError unless the value is a whole number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise TraceError(f"{name} = {value!r}", fix="expected a whole number, at least 1")


def check_positive(name: str, value: float) -> None:
    """Raise TraceError unless the value is finite and above 0."""
    if not (np.isfinite(value) and value > 0):
        raise TraceError(f"{name} = {value}", fix="expected a finite number above 0")

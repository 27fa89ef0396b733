"""Sessions as rows of a trace: which turn a row is, how long the client thought, where a session begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.traces.timing import service_s
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints

__all__ = ["SessionRows", "session_rows", "think_times", "turn_numbers"]


@dataclass(frozen=True, slots=True)
class SessionRows:
    """The sessions of a trace; a request without one counts as a session of its own.

    Parameters
    ----------
    of_row : int64[requests]
        Session index of each row, 0 ... count - 1, in order of first arrival.
    count : int
    start_s : float64[count]
        Arrival of the first request.
    length_s : float64[count]
        From there to the arrival of the last request.
    duration_s : float64[count]
        From there to the estimated end of the last answer.
    """

    of_row: Ints
    count: int
    start_s: Floats
    length_s: Floats
    duration_s: Floats


def session_rows(trace: Trace) -> SessionRows:
    """Group the rows of a trace by session."""
    n = len(trace)
    alone = trace.session < 0
    # Requests without a session get keys of their own, below all session numbers.
    keys = np.where(alone, -1 - np.arange(n), trace.session)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    of_row = rank[inverse]
    start_s = trace.arrival_s[np.sort(first)]
    last_s, end_s = start_s.copy(), start_s.copy()
    np.maximum.at(last_s, of_row, trace.arrival_s)
    np.maximum.at(end_s, of_row, trace.arrival_s + service_s(trace.output_tokens))
    return SessionRows(of_row, len(first), start_s, last_s - start_s, end_s - start_s)


def _previous_in_session(session: Ints) -> Ints:
    """Row of the previous request of the same session, -1 for the first and for requests without one."""
    order = np.argsort(session, kind="stable")
    grouped = session[order]
    previous = np.full(len(session), -1, dtype=np.int64)
    follows = (grouped[1:] == grouped[:-1]) & (grouped[1:] >= 0)
    previous[order[1:][follows]] = order[:-1][follows]
    return previous


def turn_numbers(session: Ints) -> NDArray[np.int32]:
    """Turn of every request inside its session, from 0, in row order; 0 where there is no session."""
    order = np.argsort(session, kind="stable")
    grouped = session[order]
    begins = np.r_[True, grouped[1:] != grouped[:-1]]
    first = np.maximum.accumulate(np.where(begins, np.arange(len(session)), 0))
    turns = np.arange(len(session)) - first
    turns[grouped < 0] = 0
    result = np.empty(len(session), dtype=np.int32)
    result[order] = turns
    return result


def think_times(trace: Trace, elapsed_s: Floats | None = None) -> Floats:
    """Gap to the previous turn minus its answer time, in seconds, at least 0.

    Parameters
    ----------
    trace : Trace
    elapsed_s : float64[requests], optional
        Recorded answer times; without them `service_s` estimates them.
    """
    previous = _previous_in_session(trace.session)
    answer_s = service_s(trace.output_tokens) if elapsed_s is None else elapsed_s
    gap_s = trace.arrival_s - trace.arrival_s[previous] - answer_s[previous]
    return np.where(previous >= 0, np.maximum(gap_s, 0.0), 0.0)

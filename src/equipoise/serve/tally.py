"""Counts and histograms of the servers: plain numbers, read when someone asks for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["Histogram", "Tally"]

MOST_KEYS = 128
"""Label values of one counter; what comes after counts as ``other``."""


class Counter:
    """Numbers by key, of a bounded number of keys."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[str, int] = {}

    def add(self, key: str, n: int = 1) -> None:
        """Count `n` more."""
        if key not in self.of and len(self.of) >= MOST_KEYS:
            key = "other"
        self.of[key] = self.of.get(key, 0) + n

    def __getitem__(self, key: str) -> int:
        return self.of.get(key, 0)


class Histogram:
    """Numbers by size.

    Parameters
    ----------
    bounds : sequence of float
        Upper ends of the buckets, growing.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a number."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulated counts, as Prometheus has them."""
        total, rows = 0, []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(total)))
        return rows


class Tally:
    """Everything the servers count.

    Attributes
    ----------
    requests : Counter
        By route.
    answers : Counter
        Ended requests by status of the answer.
    refused : Counter
        Requests turned away before an engine was asked, by reason: the edge's, the router's.
    failed : Counter
        Requests that an engine was asked for and that ended otherwise than well, by reason.
    timeouts : Counter
        Timers that ran out, by name.
    retries : Counter
        Second tries, by what made them.
    retries_refused : int
        Second tries that the budget did not allow.
    upstream_status : Counter
        Answers of engines, by status.
    polls, poll_failures : Counter
        Looks at engines, by instance; those that failed, by reason.
    preemptions : Counter
        Requests that engines threw out for lack of room, by instance.
    tokens, chunks : int
        Passed on.
    streams : int
        Exchanges under way.
    body_bytes : int
        Of request bodies held.
    decision_s, queue_s, first_byte_s : Histogram
        Time of a round, for each request of it; from arrival to dispatch; from arrival to the first byte.
    """

    def __init__(self) -> None:
        self.requests, self.answers, self.refused = Counter(), Counter(), Counter()
        self.failed, self.timeouts, self.retries = Counter(), Counter(), Counter()
        self.upstream_status, self.polls, self.poll_failures = Counter(), Counter(), Counter()
        self.decided, self.released, self.preemptions = Counter(), Counter(), Counter()
        self.retries_refused = 0
        self.tokens = self.chunks = self.streams = self.body_bytes = 0
        self.decision_s = Histogram([1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 0.1])
        self.queue_s = Histogram([1e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60])
        self.first_byte_s = Histogram([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300])

    def round(self, requests: int, seconds: float) -> None:
        """The driver has decided a round."""
        self.decision_s.add(seconds, requests)

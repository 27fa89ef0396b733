"""Which requests of two runs are compared, and their quantities."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import InputError
from equipoise.study.pairs.columns import Requests
from equipoise.study.pairs.files import RunFile
from equipoise.study.pairs.measured import Ending
from equipoise.types import Floats, Ints

__all__ = ["Chosen", "Served", "check_same_requests", "endings", "has", "place", "quantities", "values"]

Chosen = NDArray[np.bool_]
NAMED_ROWS = 5
TIMES = ("ttft_ms", "tpot_ms", "end_to_end_ms", "queue_wait_ms")


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """The requests of a run, and the stretch of time that counts.

    Parameters
    ----------
    run : RunFile
    requests : Requests
    arrived_s : float64[requests]
    ended : array of str
    window_s : tuple of float
        Requests that came between these count.
    came, finished : bool[requests]
        Came in the window; and got all their tokens.
    """

    run: RunFile
    requests: Requests
    arrived_s: Floats
    ended: Any
    window_s: tuple[float, float]
    came: Chosen
    finished: Chosen

    @classmethod
    def of(cls, run: RunFile, window_s: tuple[float, float] | None = None) -> Served:
        """Read a run; its own counted time is the window unless another is given."""
        assert run.requests is not None
        arrived = run.requests.arrived_s()
        ended = run.requests.endings()
        window = window_s or run.counted_s
        if window is None:
            known = arrived[np.isfinite(arrived)]
            if not len(known):
                raise InputError("no request ever came", where=run.source, fix="compare runs with requests")
            window = float(known.min()), float(known.max())
        came = (arrived >= window[0]) & (arrived <= window[1])
        lasted = run.requests.ended_s() - arrived
        finished = came & (ended == "finished") & np.isfinite(lasted) & (lasted >= 0)
        return cls(run, run.requests, arrived, ended, window, came, finished)

    def unit(self, units: int) -> Ints:
        """Unit of the window that each request came in, int64[requests]; of those outside, the nearest."""
        return place(self.arrived_s, self.window_s, units)

    def unit_s(self, units: int) -> float:
        """Seconds a unit."""
        return (self.window_s[1] - self.window_s[0]) / units


def place(time_s: Floats, window_s: tuple[float, float], units: int) -> Ints:
    """Unit of the window that each moment falls into; of those outside, the nearest."""
    first, last = window_s
    share = (np.nan_to_num(time_s, nan=first) - first) / ((last - first) or 1.0)
    return np.clip(share * units, 0, units - 1).astype(np.int64)


def check_same_requests(a: RunFile, b: RunFile, letters: tuple[str, str]) -> None:
    """Refuse runs that did not serve the same requests, row by row.

    Raises
    ------
    InputError
        Another number of rows, or a row of another length.
    """
    assert a.requests is not None
    assert b.requests is not None
    fix = "compare runs of the same trace, or use --unpaired"
    where = f"{a.source} and {b.source}" if a.source != b.source else a.source
    for name in ("context_tokens", "output_tokens"):
        ours, theirs = a.requests.numbers(name), b.requests.numbers(name)
        if len(ours) != len(theirs):
            raise InputError(
                f"not the same requests: {letters[0]} has {len(ours):,} rows, {letters[1]} {len(theirs):,}",
                where=where,
                fix=fix,
            )
        other = np.flatnonzero(ours != theirs)
        if len(other):
            i = int(other[0])
            raise InputError(
                f"not the same requests: row {i} has {name} {ours[i]:g} in {letters[0]} and {theirs[i]:g} in "
                f"{letters[1]}",
                where=where,
                fix=fix,
            )


def has(requests: Requests, quantity: str) -> bool:
    """Whether a file has the columns that a quantity is made of."""
    if quantity == "ttft_ms":
        return requests.has("first_token_s")
    return quantity != "preemptions" or requests.has("preemptions")


def quantities(a: Requests, b: Requests) -> Iterator[str]:
    """The times that both files can say."""
    return (q for q in TIMES if has(a, q) and has(b, q))


def values(served: Served, quantity: str, chosen: Chosen) -> Floats:
    """A quantity of the chosen requests, float64[chosen]; NaN where a request has none."""
    r = served.requests
    if quantity in ("ttft_ms", "end_to_end_ms"):
        until = r.numbers("first_token_s") if quantity == "ttft_ms" else r.ended_s()
        return 1000.0 * (until[chosen] - served.arrived_s[chosen])
    if quantity == "tpot_ms":
        return _tpot_ms(r, chosen)
    if quantity == "queue_wait_ms":
        since = (r.numbers("queued_s") if r.has("queued_s") else served.arrived_s)[chosen]
        waited = 1000.0 * (r.numbers("start_s")[chosen] - since)
        # of a request lost with its rank the queue's time belongs to another life than the start
        return np.where(r.numbers("losses")[chosen] > 0, np.nan, waited) if r.has("losses") else waited
    raise ValueError(quantity)


def _tpot_ms(r: Requests, chosen: Chosen) -> Floats:
    ended = r.ended_s()[chosen]
    if r.has("first_token_s"):
        gaps = r.first_of("tokens", "output_tokens")[chosen] - 1
        spent = ended - r.numbers("first_token_s")[chosen]
        found: Floats = np.divide(1000.0 * spent, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
        return found
    return 1000.0 * (ended - r.numbers("start_s")[chosen]) / r.numbers("output_tokens")[chosen]


def endings(a: Served, b: Served) -> tuple[Ending, ...]:
    """Requests that came in the counted time of both and ended differently, by how."""
    rows = np.flatnonzero(a.came & b.came & (a.ended != b.ended))
    kinds = sorted(set(zip(a.ended[rows].tolist(), b.ended[rows].tolist(), strict=True)))
    found = []
    for one, other in kinds:
        such = rows[(a.ended[rows] == one) & (b.ended[rows] == other)]
        found.append(Ending(one, other, len(such), tuple(int(i) for i in such[:NAMED_ROWS])))
    return tuple(found)

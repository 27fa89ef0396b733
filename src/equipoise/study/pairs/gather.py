"""The figures of two runs that served requests: each with what is needed to say how uncertain its difference is."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import numpy as np

from equipoise.study.pairs.figures import (
    Draws,
    Figure,
    draws,
    per_unit,
    quantile,
    raw_difference,
    sums_ratio,
    units_for,
)
from equipoise.study.pairs.measured import Measured
from equipoise.study.pairs.served import Chosen, Served, has, place, quantities, values
from equipoise.types import Floats

__all__ = ["Gathered", "Slo", "gather"]

STATISTICS = {"p50": 0.5, "p99": 0.99}
LIVES = 2.0
"""A block is at least so many times as long as a request is in the system."""


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as goodput; milliseconds, None: no bound."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Gathered:
    """Differences of two runs, each with its own 95 % interval, and the blocks they come from."""

    measured: tuple[Measured, ...]
    requests: tuple[int, int]
    block_s: float
    blocks: float
    reason: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Two:
    """A figure of both runs; `together`: what was drawn in one is drawn in the other."""

    quantity: str
    statistic: str
    a: Figure
    b: Figure
    together: bool


def gather(a: Served, b: Served, wanted: Collection[str], slo: Slo, *, paired: bool) -> Gathered:
    """Measure two runs.

    Parameters
    ----------
    a, b : Served
    wanted : collection of str
        Quantities, keys of `measured.QUANTITIES`.
    slo : Slo
    paired : bool
        Rows of both are the same requests.
    """
    came = (a.came & b.came, a.came & b.came) if paired else (a.came, b.came)
    both = a.finished & b.finished if paired else None
    kept = (both, both) if both is not None else (a.finished, b.finished)
    counts = int(kept[0].sum()), int(kept[1].sum())
    units = units_for(min(counts))
    one_clock = paired and bool(np.allclose(a.arrived_s[came[0]], b.arrived_s[came[1]], rtol=1e-9, atol=1e-9))
    found = [
        *_times(a, b, kept, units, wanted, paired),
        *_rates(a, b, came, units, wanted, slo, paired, one_clock),
        *_excess(a, b, units, wanted, one_clock),
    ]
    life_s = [float(values(s, "end_to_end_ms", k).mean()) / 1000.0 for s, k in ((a, kept[0]), (b, kept[1]))]
    if min(a.unit_s(1), b.unit_s(1)) > 0:
        lives = max(life_s[0] / a.unit_s(units), life_s[1] / b.unit_s(units))
        least = max(1, math.ceil(min(LIVES * lives, 1000 * units)))
    else:
        least = units  # all came at once: there is no time to cut
    series: list[Floats] = []
    for two in found:
        series += [two.b.influence - two.a.influence] if two.together else [two.a.influence, two.b.influence]
    together = draws(series, units, least)
    apart = together.apart() if any(not t.together for t in found) else together
    measured = tuple(_measured(t, together if t.together else apart) for t in found)
    block_s = together.span * a.unit_s(units)
    reason = _reason(together, least, units, a.unit_s(units), max(life_s))
    notes = []
    if not together.enough:
        notes.append(
            f"No intervals: a block must last {block_s:.3g} s, and the counted time of {a.unit_s(1):.3g} s holds only "
            f"{together.blocks:.1f} of them; use more requests, or several seeds."
        )
    elif together.memory >= units // 10 and together.memory > least:
        notes.append(
            "Differences remember each other for a tenth of the counted time or longer, so intervals may be too "
            "narrow: use a longer run, or several seeds."
        )
    if together.enough and paired and not one_clock:
        notes.append(
            "Requests came at other times in the two runs, so they are paired row by row, blocks follow A's clock, and "
            "rates and the excess are not paired."
        )
    return Gathered(measured, counts, block_s, together.blocks, reason, tuple(notes))


def _reason(drawn: Draws, least: int, units: int, unit_s: float, life_s: float) -> str:
    """Why blocks are as long as they are."""
    if drawn.memory > least:
        longest = drawn.memory >= units // 10
        return "so long do differences remember each other" + (", or longer" if longest else "")
    if least > 1:
        return f"{LIVES:g} times the mean time of a request from arrival to end ({life_s:.3g} s)"
    return f"one of {units} parts; neither requests nor their differences last longer"


def _measured(two: _Two, drawn: Draws) -> Measured:
    gap, ratio = raw_difference(two.a, two.b, drawn, paired=two.together)
    return Measured(two.quantity, two.statistic, two.a.value, two.b.value, gap, ratio)


def _times(
    a: Served, b: Served, kept: tuple[Chosen, Chosen], units: int, wanted: Collection[str], paired: bool
) -> Iterator[_Two]:
    places = a.unit(units)[kept[0]], a.unit(units)[kept[1]] if paired else b.unit(units)[kept[1]]
    for quantity in quantities(a.requests, b.requests):
        if quantity not in wanted:
            continue
        ours, theirs = values(a, quantity, kept[0]), values(b, quantity, kept[1])
        known = np.isfinite(ours), np.isfinite(theirs)
        if paired:
            known = (known[0] & known[1],) * 2
        if not (known[0].any() and known[1].any()):
            continue
        sides = [(v[k], p[k]) for v, k, p in zip((ours, theirs), known, places, strict=True)]
        means = [sums_ratio(per_unit(p, units, v), per_unit(p, units)) for v, p in sides]
        yield _Two(quantity, "mean", means[0], means[1], paired)
        for name, level in STATISTICS.items():
            first, second = (quantile(v, p, units, level) for v, p in sides)
            yield _Two(quantity, name, first, second, paired)


def _rates(
    a: Served,
    b: Served,
    came: tuple[Chosen, Chosen],
    units: int,
    wanted: Collection[str],
    slo: Slo,
    paired: bool,
    one_clock: bool,
) -> Iterator[_Two]:
    sides = ((a, came[0]), (b, came[1]))
    if "tokens_per_s" in wanted:
        first, second = (_tokens(s, units) for s, _ in sides)
        yield _Two("tokens_per_s", "mean", first, second, one_clock)
    of_request: dict[str, Callable[[Served, Chosen], Floats]] = {}
    if "goodput_per_s" in wanted and (slo.ttft_ms is not None or slo.tpot_ms is not None):
        of_request["goodput_per_s"] = lambda s, c: _meets(s, c, slo)
    if "preemptions" in wanted and has(a.requests, "preemptions") and has(b.requests, "preemptions"):
        of_request["preemptions"] = lambda s, c: s.requests.numbers("preemptions")[c]
    for quantity, amount in of_request.items():
        figures = []
        for served, chosen in sides:
            at = (a if paired else served).unit(units)[chosen]
            top = per_unit(at, units, amount(served, chosen))
            bottom = (
                np.full(units, served.unit_s(units)) if quantity == "goodput_per_s" else per_unit(at, units)
            )
            figures.append(sums_ratio(top, bottom))
        yield _Two(quantity, "mean", figures[0], figures[1], paired)


def _tokens(served: Served, units: int) -> Figure:
    """Tokens of the requests that finished in the window, a second of it."""
    ended = served.requests.ended_s()
    first, last = served.window_s
    inside = (ended >= first) & (ended <= last) & (served.ended == "finished")
    at = place(ended[inside], served.window_s, units)
    tokens = served.requests.first_of("tokens", "output_tokens")[inside]
    return sums_ratio(per_unit(at, units, tokens), np.full(units, served.unit_s(units)))


def _meets(served: Served, chosen: Chosen, slo: Slo) -> Floats:
    good = served.finished[chosen].copy()
    if slo.ttft_ms is not None and has(served.requests, "ttft_ms"):
        good &= values(served, "ttft_ms", chosen) <= slo.ttft_ms
    if slo.tpot_ms is not None:
        tpot = values(served, "tpot_ms", chosen)
        good &= np.isnan(tpot) | (tpot <= slo.tpot_ms)  # a single token has no TPOT to miss
    return good.astype(np.float64)


def _excess(a: Served, b: Served, units: int, wanted: Collection[str], one_clock: bool) -> Iterator[_Two]:
    if "excess" not in wanted or a.run.steps is None or b.run.steps is None:
        return
    figures = []
    for served in (a, b):
        assert served.run.steps is not None
        start, cost, ideal = served.run.steps.counted()
        inside = (start >= served.window_s[0]) & (start < served.window_s[1])
        at = place(start[inside], served.window_s, units)
        figures.append(
            sums_ratio(per_unit(at, units, cost[inside]), per_unit(at, units, ideal[inside]), minus=1.0)
        )
    yield _Two("excess", "mean", figures[0], figures[1], one_clock)

"""`compare_runs`: finished runs against the first of them, number by number, with intervals that hold together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from equipoise.errors import InputError, nearest
from equipoise.study.pairs.cells import matched, unlike
from equipoise.study.pairs.files import RunFile, open_runs
from equipoise.study.pairs.gather import Slo, gather
from equipoise.study.pairs.measured import QUANTITIES, Measured, Pair, Pairing, RunComparison
from equipoise.study.pairs.served import Served, check_same_requests, endings
from equipoise.study.statistics import Interval, block_ratio, over_seeds, student, unpaired, widened

__all__ = ["compare_runs"]

MOST_RUNS = 26
LEAST_SEEDS = 4
"""Of fewer, blocks of one run say more: from two, an interval that holds with others is as good as none."""
NOTHING = student(math.nan, math.nan, 0, "none")


def compare_runs(
    sources: Sequence[str],
    *,
    margin_percent: float | None = None,
    paired: bool = True,
    quantities: Sequence[str] = (),
    slo: Slo | None = None,
) -> RunComparison:
    """Compare finished runs with the first of them.

    Parameters
    ----------
    sources : sequence of str
        Result folders, ``summary.json`` or ``requests.parquet``; ``#LABEL`` behind one picks a policy of it.
    margin_percent : float, optional
        By how much two numbers may differ and still be called equal.
    paired : bool
        Runs served the same requests; False: they need not have.
    quantities : sequence of str
        Which to compare, keys of `measured.QUANTITIES`; all by default. Of fewer, intervals are narrower.
    slo : Slo, optional
        What a request must meet to count as goodput.

    Raises
    ------
    InputError
        Something that is not a run, runs of other requests, nothing in common, or a number out of bounds.
    """
    if not 2 <= len(sources) <= MOST_RUNS:
        raise InputError(
            f"{len(sources)} run{'' if len(sources) == 1 else 's'} named", fix=f"name from 2 to {MOST_RUNS}"
        )
    if margin_percent is not None and not 0 < margin_percent <= 100:
        raise InputError(
            f"margin_percent = {margin_percent:g}",
            where="--margin-percent",
            fix="must be above 0, 100 at most",
        )
    for name in quantities:
        if name not in QUANTITIES:
            raise InputError(f"no measure {name!r}", where="--measure", fix=nearest(name, QUANTITIES))
    slo = slo or Slo()
    for option, bound in (("--ttft-ms", slo.ttft_ms), ("--tpot-ms", slo.tpot_ms)):
        if bound is not None and not (math.isfinite(bound) and bound > 0):
            raise InputError(f"{bound:g} ms", where=option, fix="must be a finite number above 0")
    wanted = tuple(quantities) or tuple(QUANTITIES)
    opened = [open_runs(s) for s in sources]
    found = []
    for letter, others in zip("BCDEFGHIJKLMNOPQRSTUVWXYZ", opened[1:], strict=False):
        for cell, a, b in matched(opened[0], others):
            found.append(_pair(("A", letter), cell, a, b, wanted, slo, paired))
    intervals = sum(m.difference.method != "none" for p in found for m in p.measured)
    margin = None if margin_percent is None else margin_percent / 100
    pairs = tuple(
        replace(p, measured=tuple(_together(m, max(intervals, 1), margin) for m in p.measured)) for p in found
    )
    return RunComparison(tuple(sources), pairs, intervals, margin)


def _together(m: Measured, intervals: int, margin: float | None) -> Measured:
    return replace(
        m,
        difference=widened(m.difference, intervals),
        log_ratio=widened(m.log_ratio, intervals),
        margin=margin,
    )


def _pair(
    letters: tuple[str, str],
    cell: Mapping[str, Any],
    a: RunFile,
    b: RunFile,
    wanted: Sequence[str],
    slo: Slo,
    paired: bool,
) -> Pair:
    notes = unlike(a, b, letters)
    seeds = sorted(set(a.excess_of_seed) & set(b.excess_of_seed))
    one_run = (
        a.requests is not None and b.requests is not None and a.steps is not None and b.steps is not None
    )
    by_seed = len(seeds) >= (LEAST_SEEDS if one_run else 2)
    if a.requests is not None and b.requests is not None:
        if by_seed and any(q in wanted for q in QUANTITIES if q != "excess"):
            notes.append(f"Requests are those of the first seed, the excess is over {len(seeds)} seeds.")
        over = [q for q in wanted if not (by_seed and q == "excess")]
        pair = _by_requests(letters, cell, a, b, over, slo, paired)
    elif a.excess_of_seed and b.excess_of_seed:
        pair = _by_summary(letters, cell, a, b, wanted, paired, len(seeds))
    else:
        lacking = a if a.requests is None else b
        raise InputError(
            "no requests.parquet beside it, and the other run has no summary.json",
            where=lacking.source,
            fix="name two folders, or two requests.parquet of timed runs",
        )
    measured = list(pair.measured)
    if "excess" in wanted and by_seed:
        measured.append(_over_seeds(a, b, seeds, paired))
    if not measured:
        raise InputError(
            f"both runs say nothing of {', '.join(wanted)}",
            where=f"{a.source} and {b.source}",
            fix="ask for other measures; goodput needs --ttft-ms or --tpot-ms",
        )
    order = list(QUANTITIES)
    measured.sort(key=lambda m: order.index(m.quantity))
    return replace(pair, measured=tuple(measured), notes=(*notes, *pair.notes))


def _by_requests(
    letters: tuple[str, str],
    cell: Mapping[str, Any],
    a: RunFile,
    b: RunFile,
    wanted: Sequence[str],
    slo: Slo,
    paired: bool,
) -> Pair:
    if paired:
        check_same_requests(a, b, letters)
    first, second = Served.of(a), Served.of(b)
    if paired and np.allclose(first.arrived_s, second.arrived_s, rtol=1e-9, atol=1e-9, equal_nan=True):
        window = (
            max(first.window_s[0], second.window_s[0]),
            min(first.window_s[1], second.window_s[1]),
        )
        first, second = Served.of(a, window), Served.of(b, window)
    ended = endings(first, second) if paired else ()
    left = (
        (first.finished & second.finished, second.finished) if paired else (first.finished, second.finished)
    )
    if not (left[0].any() and left[1].any()):
        raise InputError(
            "no request that came in the counted time finished in both" if paired else "no request finished",
            where=f"{a.source} and {b.source}",
            fix="compare longer runs",
        )
    if slo == Slo() and a.slo == b.slo:
        slo = Slo(**a.slo)
    found = gather(first, second, wanted, slo, paired=paired)
    return Pair(
        letters,
        a,
        b,
        cell,
        "requests" if paired else "none",
        found.requests,
        found.block_s,
        found.blocks,
        found.reason,
        ended,
        found.measured,
        found.notes,
    )


def _by_summary(
    letters: tuple[str, str],
    cell: Mapping[str, Any],
    a: RunFile,
    b: RunFile,
    wanted: Sequence[str],
    paired: bool,
    seeds: int,
) -> Pair:
    """What two summaries say; only the excess has an interval."""
    if paired and a.cell.get("trace") != b.cell.get("trace"):
        raise InputError(
            f"not the same trace: {a.cell.get('trace')} and {b.cell.get('trace')}",
            where=f"{a.source} and {b.source}",
            fix="compare runs of the same trace, or use --unpaired",
        )
    measured = []
    for (quantity, statistic), ours in a.figures.items():
        theirs = b.figures.get((quantity, statistic))
        if theirs is not None and quantity in wanted:
            log_ratio = math.log(theirs / ours) if ours > 0 and theirs > 0 else math.nan
            gap = student(theirs - ours, math.nan, 0, "none")
            measured.append(
                Measured(quantity, statistic, ours, theirs, gap, student(log_ratio, math.nan, 0, "none"))
            )
    if "excess" in wanted and seeds < 2:
        measured.append(_one_seed(a, b))
    only = "a summary holds only their means over the seeds" if seeds > 1 else "there is one seed"
    notes = [f"No intervals but of the excess: {only}."] if len(measured) > (seeds < 2) else []
    pairing: Pairing = "seeds" if paired and seeds > 1 else "none"
    return Pair(
        letters, a, b, cell, pairing, (0, 0), math.nan, math.nan, "", (), tuple(measured), tuple(notes)
    )


def _over_seeds(a: RunFile, b: RunFile, seeds: Sequence[int], paired: bool) -> Measured:
    """The excess over seeds: seed by seed where runs are paired."""
    ours, theirs = ([r.excess_of_seed[s] for s in seeds] for r in (a, b))
    if not paired:
        ours, theirs = list(a.excess_of_seed.values()), list(b.excess_of_seed.values())
    positive = min(*ours, *theirs) > 0
    gap = _seed_gap(ours, theirs, paired)
    ratio = (
        _seed_gap([math.log(x) for x in ours], [math.log(x) for x in theirs], paired) if positive else NOTHING
    )
    return Measured("excess", "mean", float(np.mean(ours)), float(np.mean(theirs)), gap, ratio)


def _seed_gap(ours: Sequence[float], theirs: Sequence[float], paired: bool) -> Interval:
    if paired:
        return over_seeds([y - x for x, y in zip(ours, theirs, strict=True)])
    return replace(unpaired(over_seeds(theirs), over_seeds(ours)), method="seeds")


def _one_seed(a: RunFile, b: RunFile) -> Measured:
    """The excess of one run each without requests: from blocks of each, not paired."""
    sides = []
    for run in (a, b):
        (seed_excess,) = list(run.excess_of_seed.values())[:1]
        sides.append(_blocks(run) or student(seed_excess, math.nan, 0, "none"))
    one, other = sides
    positive = one.mean > 0 and other.mean > 0
    ratio = unpaired(_log(other), _log(one)) if positive else NOTHING
    return Measured("excess", "mean", one.mean, other.mean, unpaired(other, one), ratio)


def _blocks(run: RunFile) -> Interval | None:
    if run.steps is None:
        return None
    start, cost, ideal = run.steps.counted()
    if not len(start):
        return None
    return block_ratio(cost, ideal, np.ones(len(start)))


def _log(interval: Interval) -> Interval:
    """Of the logarithm, by the delta method."""
    return student(
        math.log(interval.mean), interval.standard_error / interval.mean, interval.freedom, interval.method
    )

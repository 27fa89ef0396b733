"""From what an engine logged to the decode steps a fit may look at; what is left out is counted, with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.records import Drop, Flag, StepRecords
from equipoise.calibrate.samples import Samples
from equipoise.errors import CalibrationError
from equipoise.types import Ints

__all__ = ["TABLE_FORMATS", "Cleaned", "clean", "is_grid", "merged"]

Mask = NDArray[np.bool_]

TABLE_FORMATS: Final = ("aic",)
"""Readers of measured tables."""

ONE_RANK_FORMATS: Final = ("vllm_bench_forward",)
"""Readers of measurements in which one rank stands for all, since all run the same."""

PROMPT = Flag.PREFILL | Flag.MIXED


@dataclass(frozen=True, slots=True, eq=False)
class Cleaned:
    """Decode steps to fit, and what became of the rest.

    Parameters
    ----------
    samples : Samples
        Plain decode steps within range.
    outside : Samples
        Plain decode steps out of range (batch too large, contexts too short): to test extrapolation on.
    prefill : StepRecords
        Steps with prompt tokens on any rank, for the prefill fit.
    dropped : tuple of Drop
        Of the reader and of this; `outside` and `prefill` are among them.
    notes : tuple of str
    variance_is_known : bool
        Whether the variance of the context lengths within a rank is given wherever a rank has several requests.
    contexts_are_logged : bool
        Whether any decoding row says how long its contexts are. If none does, all count as 0 and no step is left out
        for it: the price of a batch can still be told.
    """

    samples: Samples
    outside: Samples
    prefill: StepRecords
    dropped: tuple[Drop, ...]
    notes: tuple[str, ...]
    variance_is_known: bool
    contexts_are_logged: bool


def is_grid(records: StepRecords) -> bool:
    """Whether the rows are points of a measured table.

    They are where the reader says so. Otherwise: one rank a step, no clock, and lengths (context tokens a request) that
    come back again and again, as no traffic's do.
    """
    if records.format in TABLE_FORMATS:
        return True
    if len(records) != len(records.step_starts()) - 1 or not np.isnan(records.clock_s).all():
        return False
    lengths = records.context_tokens / np.maximum(records.batch, 1)
    return bool(len(np.unique(lengths)) * 3 <= len(records))


def clean(
    records: StepRecords,
    *,
    max_batch: int | None = None,
    min_context: int | None = None,
    warmup_steps: int = 0,
    missing_ranks_are_idle: bool = False,
) -> Cleaned:
    """Sort steps into decode steps to fit and steps to leave out.

    A step goes as a whole: its time is one rank's, and nobody can say which. Idle ranks stay, with no load.

    Parameters
    ----------
    records : StepRecords
    max_batch : int, optional
        Steps with a larger batch on any rank are out of range.
    min_context : int, optional
        Steps whose requests have fewer context tokens on average are out of range.
    warmup_steps : int
        Decode steps to leave out at the beginning of every instance.
    missing_ranks_are_idle : bool
        Keep steps that lack ranks, as if those had had nothing to do.

    Raises
    ------
    CalibrationError
        No decode step is left; the message says where they went. Or a bound on contexts that are not logged.
    """
    whole = records
    logged = not _lacks_contexts(records)
    if not logged:
        if min_context:
            raise CalibrationError(
                f"min_context = {min_context:,}, but no row says how long its contexts are",
                where=records.source or None,
                fix="leave min_context out",
            )
        records = replace(records, context_tokens=np.zeros_like(records.context_tokens))
    starts = records.step_starts()
    if len(starts) < 2:
        raise CalibrationError(
            "holds no step", where=records.source or None, fix="give a log with decode steps"
        )
    sieve = _Sieve(records, starts)
    flags, B, C = records.flags, records.batch, records.context_tokens
    idle = (B == 0) & ((flags & PROMPT) == 0)

    time_s = np.where(np.isfinite(records.time_s), records.time_s, -np.inf)
    step_time = np.maximum.reduceat(time_s, starts[:-1])
    sieve.drop("step time is not above 0", ~(step_time > 0))
    sieve.drop_rows("negative batch", B < 0)
    same = (np.diff(records.rank) == 0) & (np.diff(records.step) == 0) & (np.diff(records.instance) == 0)
    sieve.drop_rows("a rank twice in one step", np.concatenate([[False], same]))
    prompt = sieve.any((flags & PROMPT) != 0)
    sieve.drop("prefill or mixed step", prompt)
    sieve.drop("no rank decodes", sieve.all(idle))
    sieve.drop_rows("context length is not logged", (C < 0) & (B > 0))
    missing = _missing_ranks(records, starts)
    if not missing_ranks_are_idle:
        sieve.drop("ranks are missing", missing)
    sieve.drop("first step after a pause", _after_pause(records, sieve, idle, step_time))
    if warmup_steps:
        sieve.drop("warm-up", _warm_up(sieve, warmup_steps))
    kept_in_time = sieve.kept.copy()
    if max_batch is not None:
        sieve.drop(f"batch above {max_batch:,}", sieve.any(max_batch < B))
    if min_context is not None:
        requests = np.add.reduceat(np.maximum(B, 0), starts[:-1])
        tokens = np.add.reduceat(np.maximum(C, 0), starts[:-1])
        sieve.drop(f"context below {min_context:,} tokens a request", tokens < min_context * requests)
    if not sieve.kept.any():
        raise _nothing_left(records, sieve)
    grid = is_grid(records)
    notes = _notes(records, sieve, int((missing & sieve.kept).sum()))
    one_is_enough = grid or records.format in ONE_RANK_FORMATS
    warnings = [] if one_is_enough else _unseen_ranks(records, sieve)
    return Cleaned(
        samples=_pack(records, starts, sieve.kept, step_time, grid),
        outside=_pack(records, starts, kept_in_time & ~sieve.kept, step_time, grid),
        prefill=whole.select(np.repeat(prompt & (step_time > 0), np.diff(starts))),
        dropped=(*records.dropped, *sieve.drops),
        notes=(*warnings, *records.notes, *notes),
        variance_is_known=grid or not np.isnan(records.context_variance[records.batch > 1]).any(),
        contexts_are_logged=logged,
    )


def _lacks_contexts(records: StepRecords) -> bool:
    """Whether no decoding row says how long its contexts are."""
    decoding = records.batch > 0
    return bool(decoding.any() and (records.context_tokens[decoding] < 0).all())


class _Sieve:
    """The steps still kept, and the drops so far. A step counts for the first reason that takes it."""

    def __init__(self, records: StepRecords, starts: Ints) -> None:
        self.records, self.starts = records, starts
        self.sizes = np.diff(starts)
        self.kept = np.ones(len(self.sizes), dtype=bool)
        self.drops: list[Drop] = []

    def any(self, rows: Mask) -> Mask:
        return np.asarray(np.logical_or.reduceat(rows, self.starts[:-1]))

    def all(self, rows: Mask) -> Mask:
        return np.asarray(np.logical_and.reduceat(rows, self.starts[:-1]))

    def drop_rows(self, reason: str, rows: Mask) -> None:
        if rows.any():
            self.drop(reason, self.any(rows))

    def drop(self, reason: str, steps: Mask) -> None:
        steps = steps & self.kept
        if not steps.any():
            return
        first = int(self.starts[int(np.argmax(steps))])
        where = self.records.where(first) if self.records.line[first] else ""
        self.drops.append(Drop(reason, int(self.sizes[steps].sum()), where))
        self.kept &= ~steps


def _missing_ranks(records: StepRecords, starts: Ints) -> Mask:
    """Steps with fewer ranks than their instance has at its largest."""
    instance = records.instance[starts[:-1]]
    sizes = np.diff(starts)
    most = np.zeros(int(instance.max()) + 1, dtype=np.int64)
    np.maximum.at(most, instance, sizes)
    return np.asarray(sizes < most[instance])


def _after_pause(records: StepRecords, sieve: _Sieve, idle: Mask, step_time: NDArray[np.float64]) -> Mask:
    """Steps whose time may hold a wait: all busy ranks come from a pause, or the one that was slowest does."""
    first = (records.flags & Flag.FIRST) != 0
    if not first.any():
        return np.zeros(len(sieve.kept), dtype=bool)
    slowest = records.time_s >= np.repeat(step_time, sieve.sizes)
    # Where all ranks report one time nobody is known to be slowest; only a pause of all of them shows.
    return sieve.all(first | idle) | (sieve.any(first & slowest) & sieve.any(~slowest))


def _warm_up(sieve: _Sieve, steps: int) -> Mask:
    """The first kept steps of every instance."""
    instance = sieve.records.instance[sieve.starts[:-1]]
    early = np.zeros(len(instance), dtype=bool)
    for i in np.unique(instance):
        early[np.flatnonzero(sieve.kept & (instance == i))[:steps]] = True
    return early


def _pack(
    records: StepRecords, starts: Ints, steps: Mask, step_time: NDArray[np.float64], grid: bool
) -> Samples:
    sizes = np.diff(starts)
    rows = np.repeat(steps, sizes)
    B, Q = records.batch[rows], records.query_tokens[rows]
    variance = records.context_variance[rows]
    C = np.maximum(records.context_tokens[rows], 0).astype(np.float64)
    return Samples(
        starts=np.concatenate([[0], np.cumsum(sizes[steps])]).astype(np.int64),
        batch=B,
        context=np.where(B > 0, C, 0.0),
        extra_queries=np.maximum(Q - B, 0).astype(np.float64) if (B < Q).any() else np.empty(0),
        context_variance=np.empty(0) if (grid or not (variance > 0).any()) else variance,
        time_us=step_time[steps] * 1e6,
        weight=np.maximum.reduceat(records.steps, starts[:-1])[steps].astype(np.float64),
        instance=records.instance[starts[:-1]][steps].astype(np.int64),
        is_grid=grid,
    )


def _notes(records: StepRecords, sieve: _Sieve, idle_filled: int) -> list[str]:
    notes = []
    if idle_filled:
        steps = "step lacks" if idle_filled == 1 else "steps lack"
        notes.append(f"{idle_filled:,} {steps} ranks; those were taken as idle.")
    kept = np.repeat(sieve.kept, sieve.sizes)
    if (records.steps[kept] > 1).any():
        notes.append(
            "Rows are means over several steps: they count as many times as they stand for, and the slowest rank of "
            "the mean loads stands for the mean of the slowest ranks, which flatters imbalance."
        )
    return notes


def _unseen_ranks(records: StepRecords, sieve: _Sieve) -> list[str]:
    """A warning where ranks seem to be missing from the whole log: nothing else would show it."""
    made = "their loads made these times too, and without them the prices come out wrong: give the logs of all ranks."
    seen = np.unique(records.rank)
    absent = sorted(set(range(int(seen[-1]) + 1)) - set(seen.tolist()))
    if absent:
        names = ", ".join(map(str, absent[:8])) + (" ..." if len(absent) > 8 else "")
        which = f"Rank {names} is" if len(absent) == 1 else f"Ranks {names} are"
        return [f"{which} nowhere in the log, though it has rank {int(seen[-1])}: {made}"]
    if (sieve.sizes[sieve.kept] == 1).all():
        return [f"Every step shows one rank. If the pool has more, {made}"]
    return []


def _nothing_left(records: StepRecords, sieve: _Sieve) -> CalibrationError:
    went = "; ".join(f"{d.rows:,} {'row' if d.rows == 1 else 'rows'}: {d.reason}" for d in sieve.drops)
    worst = max(sieve.drops, key=lambda d: d.rows)
    fixes = {
        "context length is not logged": "log the sum of context lengths per rank: without it nothing says what "
        "context costs",
        "prefill or mixed step": "log steps of a decode pool, or a stretch without new prompts",
        "ranks are missing": "log all ranks, or say that missing ranks are idle",
        "no rank decodes": "log a loaded engine",
    }
    fix = fixes.get(worst.reason, "give a log with plain decode steps in this range")
    return CalibrationError(
        f"has no decode step to fit ({went})", where=worst.first or records.source, fix=fix
    )


def merged(drops: tuple[Drop, ...]) -> tuple[Drop, ...]:
    """Drops with the same reason added up; the first place is kept."""
    total: dict[str, Drop] = {}
    for drop in drops:
        seen = total.get(drop.reason)
        total[drop.reason] = replace(seen, rows=seen.rows + drop.rows) if seen else drop
    return tuple(total.values())

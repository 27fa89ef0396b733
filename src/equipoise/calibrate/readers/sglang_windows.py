"""Averages over the windows between SGLang's decode lines: which hold, what they are, which ranks' belong together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.readers.align import instances_of_rows, windows
from equipoise.calibrate.readers.format import Job
from equipoise.calibrate.readers.rows import Columns
from equipoise.calibrate.records import Flag
from equipoise.types import Floats, Ints

__all__ = ["WINDOW_REASONS", "averages", "verify_width"]

MOVED = 0.1
"""A window whose number of requests moved by more than this share has no mean step time."""
WAIT = 3.0
"""A window this many times longer a step than its neighbours holds a wait."""
NEIGHBOURS = 11
STAMP_S = 1.0
"""The stamps of a log are whole seconds."""
WINDOW_REASONS = (
    "first line of a rank: the beginning of its window is unknown",
    f"the number of requests moved by more than {MOVED:.0%} in the window",
)


def averages(job: Job, columns: Columns) -> None:
    """Add instance, step, batch, context, time, flags and ``reason``; what they are made of goes.

    The window of a line began where the rank's line before it ended: batch and context are the means of both ends.
    """
    running, tokens = columns.pop("running").astype(np.float64), columns.pop("tokens").astype(np.float64)
    clock, throughput = columns["clock_s"], columns.pop("throughput")
    iteration = columns.pop("iteration")
    rank, file, line = columns["rank"], columns["file"], columns["line"]
    numbers, begins = _instances(job, file, rank, clock)
    columns["instance"] = numbers[file].astype(np.int32)
    order = np.lexsort((line, begins[file], rank, columns["instance"]))
    before = np.full(len(order), -1)
    same = (np.diff(rank[order]) == 0) & (np.diff(columns["instance"][order]) == 0)
    before[order[1:][same]] = order[:-1][same]
    known = before >= 0
    mean = np.where(known, (running + running[before]) / 2, running)
    held = np.where(known, (tokens + tokens[before]) / 2, tokens)
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s = mean * columns["accepted"] / throughput
    moved = known & (np.abs(running - running[before]) > MOVED * np.maximum(running, running[before]))
    columns["reason"] = np.where(~known, 1, np.where(moved, 2, 0)).astype(np.uint8)
    columns["batch"] = np.rint(mean).astype(np.int64)
    columns["context_tokens"] = np.rint(held).astype(np.int64)
    columns["time_s"] = time_s
    gap_s = np.where(known, clock - clock[before], np.nan)
    columns["step"] = _steps(job, columns, iteration, gap_s)
    _waits(job, columns, order)
    _interval(job, time_s[columns["reason"] == 0], gap_s[columns["reason"] == 0])
    if np.isnan(clock).all():
        del columns["clock_s"]


def _instances(
    job: Job, file: NDArray[np.int16], rank: NDArray[np.int64], clock: Floats
) -> tuple[Ints, Floats]:
    """Number of the instance and time of the beginning, for every file."""
    begins = np.zeros(len(job.files))
    for f in range(len(job.files)):
        times = clock[file == f]
        begins[f] = np.nanmin(times) if len(times) and not np.isnan(times).all() else 0.0
    numbers = instances_of_rows(len(job.files), file, rank, clock)
    if len(set(numbers.tolist())) > 1:
        job.ledger.note(
            f"The files hold the same ranks at the same time: they are taken as {numbers.max() + 1} instances."
        )
    return numbers, begins


def _steps(job: Job, columns: Columns, iteration: Floats, gap_s: Floats) -> Ints:
    """Number the windows of an instance: by iteration where the lines have one, else by time, else by order."""
    steps = np.zeros(len(columns["line"]), np.int64)
    for number in np.unique(columns["instance"]):
        rows = np.flatnonzero(columns["instance"] == number)
        rows = rows[np.lexsort((columns["line"][rows], columns["file"][rows]))]
        rank, clock, counted = columns["rank"][rows], columns["clock_s"][rows], iteration[rows]
        one_file = len(np.unique(columns["file"][rows])) == 1
        if not np.isnan(counted).any():
            position, span, what = counted, job.decode_log_interval / 2, "the iteration number"
        elif not np.isnan(clock).any() and not (one_file and (np.diff(clock) < -STAMP_S).any()):
            gaps = gap_s[rows]
            usual = float(np.nanmedian(gaps)) if not np.isnan(gaps).all() else 0.0
            position, span, what = clock, max(usual / 2, STAMP_S), "the time stamps"
        else:
            position, span, what = np.arange(len(rows), dtype=np.float64), np.inf, "the order of the lines"
        steps[rows] = windows(position, rank, span)
        if len(np.unique(rank)) > 1:
            job.ledger.note(f"The windows of the ranks are aligned on {what}.")
    return steps


def _waits(job: Job, columns: Columns, order: Ints) -> None:
    """Flag windows that took far longer a step than those around them: the rank waited for work or for others."""
    flags = np.zeros(len(order), np.uint8)
    usable = order[columns["reason"][order] == 0]
    chain = columns["instance"][usable].astype(np.int64) * (1 << 20) + columns["rank"][usable]
    for part in np.split(usable, np.flatnonzero(np.diff(chain)) + 1):
        if len(part) < NEIGHBOURS:
            continue
        time_s = columns["time_s"][part]
        padded = np.pad(time_s, NEIGHBOURS // 2, mode="reflect")
        usual = np.median(np.lib.stride_tricks.sliding_window_view(padded, NEIGHBOURS), axis=1)
        flags[part[time_s > WAIT * usual]] = Flag.FIRST
    columns["flags"] = flags
    waits = int((flags > 0).sum())
    if waits:
        job.ledger.note(
            f"{waits:,} windows took more than {WAIT:.0f} times longer a step than their neighbours; they are flagged "
            f"as holding a wait."
        )


def _interval(job: Job, time_s: Floats, gap_s: Floats) -> None:
    """Say where the lines are not as far apart as the interval says."""
    good = np.isfinite(time_s) & (time_s > 0) & np.isfinite(gap_s)
    if good.sum() < 10 or gap_s[good].sum() <= 0:
        return
    steps = float(gap_s[good].sum() / time_s[good].sum())
    if not 0.75 < steps / job.decode_log_interval < 1.33:
        job.ledger.note(
            f"The lines are {steps:.0f} mean steps apart, not {job.decode_log_interval}: give --decode-log-interval as "
            f"the server had it, or the server waited or prefilled in between."
        )


def verify_width(accepted: Floats, rate: Floats) -> int | None:
    """Tokens that a request verifies a step, from its accepted tokens and the rate; None where they do not agree.

    Versions differ: the rate is accepted / width, or (accepted - 1) / (width - 1). Both numbers have two decimals.
    """
    good = np.flatnonzero(np.isfinite(accepted) & np.isfinite(rate) & (rate > 0))
    if not len(good):
        return None
    good = good[:: max(1, len(good) // 10_000)]
    widths = np.arange(1, 65)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = np.abs(accepted[good] / widths - rate[good]) <= 0.0105
        drafts = np.abs((accepted[good] - 1) / (widths - 1) - rate[good]) <= 0.0105
    share = np.concatenate([whole.mean(axis=1), drafts.mean(axis=1)])
    best = int(np.argmax(share))
    return best % 64 + 1 if share[best] >= 0.8 else None

"""What ForwardPassMetrics leave to be worked out: which rows are one step, prefill pairs, what the time is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.readers.align import LOCKSTEP_SHARE, SAMPLE, counter_offsets, windows
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.readers.rows import Columns
from equipoise.types import Floats, Ints

__all__ = ["align", "prefill_pairs", "time_meaning", "variances"]

SAME_TIME = 0.05
"""Ranks whose times differ by less than this share report the time of the step, not their own."""


def align(columns: Columns, ledger: Ledger) -> None:
    """Add ``step``: per worker from the counters where they run in lockstep, else from the clock; the counter goes."""
    counter = columns.pop("counter_id")
    instance = columns["instance"]
    workers = np.unique(instance)
    if len(workers) == 1:
        columns["step"] = _steps(columns, counter, slice(None), ledger)
        return
    step = np.empty(len(counter), np.int64)
    for worker in workers:
        rows = np.flatnonzero(instance == worker)
        step[rows] = _steps(columns, counter, rows, ledger)
    columns["step"] = step


def _steps(columns: Columns, counter: Ints, rows: Any, ledger: Ledger) -> Ints:
    counter, rank = counter[rows], columns["rank"][rows]
    ranks = np.unique(rank)
    if len(ranks) == 1:
        if len(counter) > 1 and (counter == counter[0]).all():
            ledger.note("counter_id is missing: steps are counted in the order of the lines.")
            return np.arange(len(counter))
        return counter
    if "clock_s" in columns and not np.isnan(columns["clock_s"][rows]).any():
        clock = columns["clock_s"][rows]
        offsets = counter_offsets(counter, clock, rank)
        if offsets is not None:
            apart = any(offsets.values())
            ledger.note(
                "The ranks of a worker are aligned on counter_id: their counters run in lockstep"
                + (", after a fixed distance between them was taken off." if apart else ".")
            )
            ahead = np.array([offsets[int(r)] for r in ranks], np.int64)
            step: Ints = counter - ahead[np.searchsorted(ranks, rank)]
            return step
        ledger.note(
            "The ranks of a worker are aligned on the time of receipt: their counters do not run in lockstep."
        )
        times = columns["time_s"][rows]
        usual = float(np.median(times[times > 0])) if (times > 0).any() else 0.0
        return windows(clock, rank, usual / 2)
    return _without_clock(columns, counter, rank, rows, ledger)


def _without_clock(columns: Columns, counter: Ints, rank: NDArray[Any], rows: Any, ledger: Ledger) -> Ints:
    ranks, counts = np.unique(rank, return_counts=True)
    most = counter[rank == ranks[np.argmax(counts)]]
    shares = [np.isin(counter[rank == r], most).mean() for r in ranks]
    if min(shares) >= LOCKSTEP_SHARE:
        ledger.note(
            "The ranks of a worker are aligned on counter_id; without times of receipt it cannot be checked that the "
            "counters run in lockstep."
        )
        return counter
    file, line = columns["file"][rows], columns["line"][rows]
    if len(np.unique(file)) == 1:
        ledger.note(
            "The ranks of a worker are aligned on the order of the lines: their counters do not agree, and times of "
            "receipt are missing."
        )
        return windows(line.astype(np.float64), rank, np.inf)
    ledger.note(
        "The ranks of a worker are aligned by counting their records: their counters do not agree, and times of "
        "receipt are missing. One lost record shifts a rank; record them again with times."
    )
    step = np.empty(len(counter), np.int64)
    for r in ranks:
        own = np.flatnonzero(rank == r)
        step[own[np.lexsort((line[own], file[own]))]] = np.arange(len(own))
    return step


def variances(columns: Columns, ledger: Ledger) -> None:
    """Turn both variances into float columns with NaN where they are unknown.

    TensorRT-LLM's records reach Dynamo without variances, as 0: where a file has no other value, 0 is unknown.
    """
    batch, prompts = columns["batch"], columns["prefill_requests"]
    context, prompt = columns.pop("var_decode_kv_tokens"), columns.pop("var_prefill_length")
    if not (context > 0).any() and not (prompt > 0).any():
        if ((batch > 1) | (prompts > 1)).any():
            ledger.note("The variances of the lengths are 0 in every record, they are taken as unknown.")
        context = np.where(batch == 1, 0.0, np.nan)
        prompt = np.where(prompts == 1, 0.0, np.nan)
    columns["context_variance"] = np.where((batch > 0) & (context >= 0), context, np.nan)
    columns["prompt_variance"] = np.where((prompts > 0) & (prompt >= 0), prompt, np.nan)


def prefill_pairs(columns: Columns, ledger: Ledger) -> Floats:
    """Attended pairs of the prompt tokens, as far as the sums tell; NaN: unknown. Takes its columns away.

    Dynamo's definition: ``sum_prefill_tokens`` T are computed in this step, ``sum_prefill_kv_tokens`` P are read
    (cached prefixes and earlier chunks), ``var_prefill_length`` is that of whole prompts. For one prompt the pairs are
    T P + T (T + 1) / 2. For n prompts without anything before them, none of them cut into chunks, the sum of squares
    follows from mean and variance: n (variance + (T / n)^2) / 2 + T / 2. With several prompts and prefixes it does
    not follow from the sums.
    """
    count, tokens = columns["prefill_requests"], columns["prefill_tokens"].astype(np.float64)
    before = columns.pop("sum_prefill_kv_tokens").astype(np.float64)
    variance = columns.pop("prompt_variance")
    pairs = np.zeros(len(count))
    some = (count > 0) | (tokens > 0)
    if not some.any():
        return pairs
    before = _before(before, tokens, count, ledger)
    pairs[some] = np.nan
    one = count == 1
    pairs[one] = tokens[one] * before[one] + tokens[one] * (tokens[one] + 1) / 2
    many = (count > 1) & (before == 0)
    mean = tokens[many] / count[many]
    pairs[many] = count[many] * (variance[many] + mean**2) / 2 + tokens[many] / 2
    return pairs


def _before(before: Floats, tokens: Floats, count: Ints, ledger: Ledger) -> Floats:
    """Take the new tokens off where the source counts them among those read.

    SGLang sums ``prefix_indices`` of the requests, and where it does so after the pass these hold the new tokens too:
    a prompt without any cached prefix then has P = T, and none has less.
    """
    one = count == 1
    if (
        one.any()
        and (before[one] >= tokens[one]).all()
        and (before[one] == tokens[one]).any()
        and tokens[one].any()
    ):
        ledger.note(
            "sum_prefill_kv_tokens is never below sum_prefill_tokens and often equal: it is taken to hold the new "
            "tokens too, and they are taken off."
        )
        return np.maximum(before - tokens, 0.0)
    return before


def time_meaning(columns: Columns, ledger: Ledger) -> str:
    """``step`` where the ranks of a step report (nearly) the same time, else ``rank``."""
    step, instance, time_s = columns["step"], columns["instance"], columns["time_s"]
    chosen = step % max(1, len(step) // SAMPLE) == 0
    rows = np.flatnonzero(chosen & (time_s > 0))
    rows = rows[np.lexsort((step[rows], instance[rows]))]
    if not len(rows):
        return "step"
    new = np.append(True, (np.diff(step[rows]) != 0) | (np.diff(instance[rows]) != 0))
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(rows)))
    high = np.maximum.reduceat(time_s[rows], starts)[sizes > 1]
    low = np.minimum.reduceat(time_s[rows], starts)[sizes > 1]
    if not len(high):
        return "step"
    spread = float(np.median((high - low) / high))
    if spread < SAME_TIME:
        return "step"
    ledger.note(
        f"The times of a step's ranks differ by {spread:.0%} (median): every row's time is the rank's own."
    )
    return "rank"

"""`PrefillSamples`: the prefill steps of a log, packed for the same fitter as decode.

The fitter knows a rank's batch, context and saturated context. Prefill has the same three: prompt tokens T, attended
pairs P, and pairs where a query reads at most L keys; only the sums behind them differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from equipoise.calibrate.clean import is_grid
from equipoise.calibrate.records import Drop, Flag, StepRecords
from equipoise.calibrate.samples import Samples
from equipoise.types import Floats, Ints

__all__ = ["MAX_TOKENS", "PrefillSamples", "prefill_samples"]

Mask = NDArray[np.bool_]

MAX_TOKENS: Final = 4_194_304
"""Most prompt tokens of a rank in one step that are believed."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefillSamples:
    """Loads of every rank and the observed time of every prefill step.

    Parameters
    ----------
    loads : Samples
        ``batch`` holds T and ``context`` holds P; ranks without prompt tokens have no row.
    prompts : float64[rows]
        Prompts that share a row's tokens.
    """

    loads: Samples
    prompts: Floats

    def __len__(self) -> int:
        return len(self.loads)

    def take(self, steps: Mask) -> PrefillSamples:
        """The steps of a mask."""
        rows = np.repeat(steps, np.diff(self.loads.starts))
        return PrefillSamples(self.loads.take(steps), self.prompts[rows])

    def saturated(self, length: int) -> Floats:
        """float64[rows], attended pairs with at most `length` keys a query.

        Exact where a row is one prompt: its offset follows from T and P. Several prompts of a row are taken to have
        equally many tokens at equal offsets.
        """
        tokens, pairs = self.loads.batch.astype(np.float64), self.loads.context
        each = tokens / self.prompts
        offset = np.maximum(pairs / tokens - (each + 1) / 2, 0.0)
        return np.asarray(self.prompts * (_reads(offset + each, length) - _reads(offset, length)))


def _reads(position: Floats, length: int) -> Floats:
    """Sum of min(p, length) over the positions up to this one, which need not be whole."""
    within = np.minimum(position, length)
    return np.asarray(within * (within + 1) / 2 + (position - within) * length)


def prefill_samples(
    records: StepRecords, *, missing_ranks_are_idle: bool = False
) -> tuple[PrefillSamples, tuple[Drop, ...]]:
    """Pick the steps that hold prompt tokens and no decode, and say what was left out.

    A step goes as a whole: its time is one rank's, and nobody can say which.

    Parameters
    ----------
    records : StepRecords
        A log, or the ``prefill`` part of a cleaned one.
    missing_ranks_are_idle : bool
        Keep steps that lack ranks, as if those had had nothing to do.

    Returns
    -------
    samples : PrefillSamples
    dropped : tuple of Drop
        Rows of steps with prompt tokens that cannot be used. Steps without prompt tokens are not counted.
    """
    starts = records.step_starts()
    sizes = np.diff(starts)
    if not len(records):
        return PrefillSamples(_packed(records, np.zeros(0, bool), starts), np.empty(0)), ()
    has_tokens = records.prefill_tokens > 0
    drops: list[Drop] = []
    use = np.logical_or.reduceat(has_tokens, starts[:-1])
    for reason, steps in _reasons(records, starts, has_tokens, missing_ranks_are_idle):
        bad = steps & use
        use &= ~bad
        if bad.any():
            first = int(starts[:-1][bad][0])
            drops.append(
                Drop(reason, int(sizes[bad].sum()), records.where(first) if records.line[first] else "")
            )
    chosen = np.repeat(use, sizes) & has_tokens
    step = np.repeat(np.arange(len(use)), sizes)[chosen]
    firsts = np.append(np.flatnonzero(np.diff(step, prepend=-1)), len(step)).astype(np.int64)
    return PrefillSamples(_packed(records, chosen, firsts), _prompts(records, chosen)), tuple(drops)


def _reasons(
    records: StepRecords, starts: Ints, has_tokens: Mask, lacking: bool
) -> Iterator[tuple[str, Mask]]:
    """Steps that cannot be used, by reason; a step counts under the first that holds."""
    first, sizes = starts[:-1], np.diff(starts)

    def any_row(rows: Mask) -> Mask:
        return np.asarray(np.logical_or.reduceat(rows, first))

    time_s = np.where(np.isfinite(records.time_s), records.time_s, -np.inf)
    step_time = np.maximum.reduceat(time_s, first)
    yield "decode beside prefill", any_row((records.batch > 0) | ((records.flags & Flag.MIXED) > 0))
    yield "step time is not above 0", ~(step_time > 0)
    if not lacking:
        most = np.zeros(int(records.instance.max()) + 1, dtype=np.int64)
        np.maximum.at(most, records.instance[first], sizes)
        yield "ranks are missing", sizes < most[records.instance[first]]
    # As for decode: where all ranks report one time nobody is known to be slowest; only a pause of all of them shows.
    paused, slowest = (records.flags & Flag.FIRST) > 0, records.time_s >= np.repeat(step_time, sizes)
    after_pause = ~any_row(~paused & has_tokens) | (any_row(paused & slowest) & any_row(~slowest))
    yield "first step after a pause", after_pause
    yield "attended pairs are not known", any_row(has_tokens & np.isnan(records.prefill_pairs))
    # Every token attends to itself and its predecessors: fewer pairs than this cannot be.
    prompts = np.clip(records.prefill_requests, 1, np.maximum(records.prefill_tokens, 1))
    fewest = records.prefill_tokens * (records.prefill_tokens / prompts + 1) / 2
    fewer = has_tokens & ~(records.prefill_pairs >= fewest * (1 - 1e-9))
    yield "fewer attended pairs than its tokens have among themselves", any_row(fewer)
    yield f"more than {MAX_TOKENS:,} prompt tokens on a rank", any_row(records.prefill_tokens > MAX_TOKENS)
    # The mean of a maximum is not the maximum of the means.
    averaged = any_row((records.flags & Flag.AVERAGED) > 0)
    yield "a mean over steps of several ranks", averaged & (sizes > 1)


def _prompts(records: StepRecords, chosen: NDArray[np.bool_]) -> Floats:
    # A prompt has at least one token, whatever a log says.
    prompts = np.clip(records.prefill_requests[chosen], 1, records.prefill_tokens[chosen])
    return np.asarray(prompts, dtype=np.float64)


def _packed(records: StepRecords, chosen: Mask, starts: Ints) -> Samples:
    first, none = starts[:-1], np.empty(0)
    if not len(first):
        ints = np.empty(0, dtype=np.int64)
        return Samples(np.zeros(1, np.int64), ints, none, none, none, none, none, ints)
    return Samples(
        starts=starts,
        batch=records.prefill_tokens[chosen],
        context=records.prefill_pairs[chosen],
        extra_queries=none,
        context_variance=none,
        time_us=np.maximum.reduceat(_time_of_step(records)[chosen], first) * 1e6,
        weight=records.steps[chosen][first],
        instance=records.instance[chosen][first].astype(np.int64),
        is_grid=is_grid(records),
    )


def _time_of_step(records: StepRecords) -> Floats:
    """float64[rows], the slowest rank's time; a rank without prompt tokens may be the one that tells it."""
    starts = records.step_starts()
    slowest = np.fmax.reduceat(records.time_s, starts[:-1])
    return np.asarray(np.repeat(slowest, np.diff(starts)))

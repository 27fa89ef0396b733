"""Steps of an engine from the tokens of its streams.

Ranks of an instance wait for each other, so every request that decodes there gets one token a step, all of them at
nearly the same moment. From when the tokens came, and on which ranks, follow the length of each step and the load of
each rank in it; the engine need not say anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from equipoise.live.rows import ANSWERED, TABLES, empty
from equipoise.types import Floats, Ints

__all__ = ["steps_of"]

SPREAD = 0.6
"""Tokens of one step lie within this share of its length."""
COVERED = 0.98
"""A step in which fewer of the streams under way show a token was put together wrongly, and is left out."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Every token of an instance, in the order they came; and the streams they belong to."""

    at_s: Floats
    stream: Ints
    number: Ints
    gap_s: Floats


def steps_of(requests: pl.DataFrame, ranks: Sequence[tuple[str, int]], source: str) -> pl.DataFrame:
    """The steps of one run (or probe).

    Parameters
    ----------
    requests : DataFrame
        Rows of one run, as `equipoise.live.rows` has them; those without an answer are passed over, though they may
        have had tokens: what they did to the steps is not known.
    ranks : sequence of (str, int)
        Name and number of ranks of each instance.
    source : str
        For the column of that name.

    Returns
    -------
    DataFrame
        Table ``steps``: one row a step and rank, ranks without a request included. B and C are those at the step's
        beginning. ``prefill_tokens`` are the prompts of requests that were between being sent and their first token
        while the step went on, so that a fit of decoding leaves the step out.
    """
    frames = [empty("steps")]
    for number, (name, width) in enumerate(ranks):
        own = requests.filter(
            (pl.col("instance") == name)
            & pl.col("outcome").is_in([str(o) for o in ANSWERED])
            & (pl.col("rank") >= 0)
            & pl.col("first_token_s").is_not_null()
            # a chunk of several tokens hides when they were made
            & (pl.col("itl_ms").list.len() + 1 == pl.col("output_tokens"))
        )
        if len(own):
            frames.append(_of_instance(own, number, width, source))
    return pl.concat(frames)


def _of_instance(own: pl.DataFrame, instance: int, width: int, source: str) -> pl.DataFrame:
    tokens = _tokens(own)
    step = _cut(tokens)
    steps = int(step[-1]) + 1
    when = _medians(step, tokens.at_s)
    rank = own["rank"].to_numpy()
    prompt = own["prompt_tokens"].to_numpy()
    first = np.full(len(own), -1, np.int64)
    last = np.full(len(own), -1, np.int64)
    starts = tokens.number == 0
    first[tokens.stream[starts]] = step[starts]
    np.maximum.at(last, tokens.stream, step)

    # Decoding in step k: had a token before it, and gets one in it.
    decodes = tokens.number > 0
    at = step[decodes], rank[tokens.stream[decodes]]
    batch = np.zeros((steps, width), np.int64)
    context = np.zeros((steps, width), np.int64)
    np.add.at(batch, at, 1)
    np.add.at(context, at, prompt[tokens.stream[decodes]] + tokens.number[decodes])

    under_way = np.zeros(steps + 1, np.int64)
    np.add.at(under_way, first + 1, 1)
    np.add.at(under_way, last + 1, -1)
    under_way = np.cumsum(under_way)[:steps]
    shown = batch.sum(axis=1)

    length_s = np.diff(when, prepend=when[0])
    # A step is known if the one before it was whole, too, and somebody decoded through both.
    whole = (shown >= COVERED * under_way) & (shown <= under_way + (1 - COVERED) * under_way)
    good = whole & (shown > 0) & (length_s > 0)
    good[1:] &= whole[:-1]
    good[0] = False

    prefill = np.zeros((steps, width), np.int64)
    sent = own["sent_s"].fill_null(float("nan")).to_numpy()
    from_step = np.searchsorted(when, sent)  # the first that ends after it was sent
    for r, a, b, n in zip(rank.tolist(), from_step.tolist(), first.tolist(), prompt.tolist(), strict=True):
        prefill[a : b + 1, r] += n

    rows = np.flatnonzero(good)
    return pl.DataFrame(
        {
            "instance": np.full(len(rows) * width, instance),
            "step": np.repeat(rows, width),
            "rank": np.tile(np.arange(width), len(rows)),
            "clock_s": np.repeat(when[rows], width),
            "batch": batch[rows].ravel(),
            "context_tokens": context[rows].ravel(),
            "prefill_tokens": prefill[rows].ravel(),
            "time_ms": np.repeat(length_s[rows] * 1e3, width),
        }
    ).select(
        *(pl.col(n).cast(d) for n, d in TABLES["steps"].items() if n != "source"),
        pl.lit(source).alias("source"),
    )


def _tokens(own: pl.DataFrame) -> _Tokens:
    gaps = own["itl_ms"].to_list()
    begun = own["first_token_s"].to_list()
    times, stream, number, gap = [], [], [], []
    for i, (start, more) in enumerate(zip(begun, gaps, strict=True)):
        lengths = np.asarray([0.0, *more]) / 1e3
        times.append(start + np.cumsum(lengths))
        stream.append(np.full(len(lengths), i))
        number.append(np.arange(len(lengths)))
        gap.append(lengths)
    at_s = np.concatenate(times)
    order = np.argsort(at_s, kind="stable")
    return _Tokens(
        at_s[order], np.concatenate(stream)[order], np.concatenate(number)[order], np.concatenate(gap)[order]
    )


def _cut(tokens: _Tokens) -> Ints:
    """Number of the step of each token: a new one begins after a pause, or when a stream shows its second token."""
    typical = float(np.median(tokens.gap_s[tokens.number > 0])) if (tokens.number > 0).any() else 0.0
    found = np.zeros(len(tokens.at_s), np.int64)
    seen: set[int] = set()
    step, begun_s = 0, float(tokens.at_s[0])
    rows = zip(tokens.at_s.tolist(), tokens.stream.tolist(), tokens.gap_s.tolist(), strict=True)
    for i, (at_s, stream, gap_s) in enumerate(rows):
        if stream in seen or at_s - begun_s > SPREAD * (gap_s or typical):
            step += 1
            begun_s = at_s
            seen.clear()
        seen.add(stream)
        found[i] = step
    return found


def _medians(step: Ints, at_s: Floats) -> Floats:
    """Median time of each step; both are sorted already."""
    starts = np.flatnonzero(np.diff(step, prepend=-1))
    ends = np.append(starts[1:], len(step))
    low, high = (starts + ends - 1) // 2, (starts + ends) // 2
    return np.asarray((at_s[low] + at_s[high]) / 2)

"""What prompts cost, from when the first tokens of the probe came."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from equipoise.calibrate.prefill_fit import PrefillFit, fit_prefill
from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError
from equipoise.live.rows import ANSWERED

__all__ = ["fit_prompts", "prompt_steps"]

LONG = 256
"""Tokens of a prompt above which sending and receiving several at once counts for little."""


def fit_prompts(
    probe: pl.DataFrame, ranks: Sequence[tuple[str, int]], step_us: float = math.inf
) -> tuple[PrefillFit | None, str]:
    """The price of prompts in the probe of a live run; where there is none, why.

    Parameters
    ----------
    probe : DataFrame
        Its rows, as table ``requests`` has them.
    ranks : sequence of (str, int)
        Name and number of ranks of each instance.
    step_us : float
        What a step costs that does nothing, in microseconds. The constant of the fit is cut to it: the rest is the way
        there and back, and no part of a step.
    """
    try:
        found = fit_prefill(prompt_steps(probe, ranks))
    except CalibrationError as error:
        return None, error.what
    return replace(found, cost=replace(found.cost, constant=min(found.cost.constant, step_us))), ""


def prompt_steps(probe: pl.DataFrame, ranks: Sequence[tuple[str, int]]) -> StepRecords:
    """The beginnings of the probe's loads, each taken as one long step that computes all its prompts.

    The engine was idle before. From when the first request was sent to when the last first token came every rank has
    computed its prompts; the slowest one says how long that took. Requests that had their first token earlier decode in
    the meantime, which is little beside long prompts. Many short prompts at once are left out: there the time goes into
    handing requests over.
    """
    columns: dict[str, list[float]] = {
        name: []
        for name in (
            *("instance", "step", "rank", "batch", "prefill_requests"),
            *("prefill_tokens", "prefill_pairs", "time_s", "clock_s"),
        )
    }
    numbers = {name: (i, width) for i, (name, width) in enumerate(ranks)}
    groups = probe.group_by(["instance", "intended_s"], maintain_order=True)
    for step, ((name, _), rows) in enumerate(groups):
        if name not in numbers or not _usable(rows):
            continue
        instance, width = numbers[str(name)]
        tokens, rank = rows["prompt_tokens"].to_numpy().astype(np.float64), rows["rank"].to_numpy()
        count = np.bincount(rank, minlength=width)
        if count.max() > 1 and tokens.sum() < LONG * len(tokens):
            continue
        took_s = float(rows["first_token_s"].max()) - float(rows["sent_s"].min())  # type: ignore[arg-type]
        told: dict[str, Any] = {
            "instance": instance,
            "step": step,
            "rank": np.arange(width),
            "batch": 0,
            "prefill_requests": count,
            "prefill_tokens": np.bincount(rank, tokens, width),
            "prefill_pairs": np.bincount(rank, tokens * (tokens + 1) / 2, width),
            "time_s": took_s,
            "clock_s": float(rows["intended_s"][0]),
        }
        for key, value in told.items():
            columns[key] += np.broadcast_to(value, width).tolist()
    return StepRecords.build(columns, source="the probe")


def _usable(rows: pl.DataFrame) -> bool:
    """Whether all of them were answered, on a rank that is known."""
    answered = [str(o) for o in ANSWERED]
    good = rows.filter(
        pl.col("outcome").is_in(answered)
        & (pl.col("rank") >= 0)
        & pl.all_horizontal(pl.col("sent_s", "first_token_s", "prompt_tokens").is_not_null())
    )
    return len(good) == len(rows)

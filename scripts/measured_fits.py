"""Fits of every group of a measured decode table, with what is odd about each: the numbers behind measured_costs.py."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import nnls

from equipoise.calibrate import FitResult, StepRecords, fit
from equipoise.calibrate.clean import clean
from equipoise.calibrate.decode_fit import TABLE_MAX_BATCH, TABLE_MIN_CONTEXT
from equipoise.calibrate.readers import read
from equipoise.cost import StepCost
from equipoise.types import Floats

FALL = 0.10
"""A latency that falls by this share while the context grows is worth a remark."""
CLEARLY = 0.8
"""The longest context describes the time better than the sum if its error is at most this share of the other."""
AFTER_TOP_K = 4096
"""First measured context past 2,048, the top-k of the sparse models: there one framework takes a slower path."""


class Remark(NamedTuple):
    """Something odd about a group: words with a place for a number, so that those of similar groups can be joined."""

    words: str
    value: str = ""


@dataclass(frozen=True)
class Measured:
    """A fit without its data, small enough to hand between processes.

    Parameters
    ----------
    group : mapping
        Labels of the table.
    cost : StepCost
        Of one layer, in microseconds.
    intervals : mapping of str to (float, float)
    heldout, in_sample, beyond : float
        Errors as fractions: on left-out load regions, on the fitted rows, and above a quarter of the longest context
        after a fit below it (NaN: too few rows to tell).
    rate : (float, float, float)
        Context tokens a request weighs, with its interval.
    rows : int
    range : mapping of str to int
    longest : (float, float)
        Mean errors of constant + batch + context tokens, and of constant + batch + longest context.
    remarks : tuple of Remark
    """

    group: Mapping[str, Any]
    cost: StepCost
    intervals: Mapping[str, tuple[float, float]]
    heldout: float
    in_sample: float
    beyond: float
    rate: tuple[float, float, float]
    rows: int
    range: Mapping[str, int]
    longest: tuple[float, float]
    remarks: tuple[Remark, ...]

    @property
    def stack(self) -> str:
        """Framework and version, as people write them."""
        name = {"VLLM": "vLLM", "TRTLLM": "TensorRT-LLM"}.get(
            self.group["framework"], self.group["framework"]
        )
        return f"{name} {self.group['version']}"


def groups(path: Path) -> list[StepRecords]:
    """One `StepRecords` a group of the table."""
    return read(path)


def fit_all(records: Sequence[StepRecords]) -> list[Measured]:
    """Fit every group, on all processors."""
    with multiprocessing.Pool() as pool:
        return pool.map(measure, records, chunksize=4)


def measure(records: StepRecords) -> Measured:
    """Fit one group with the defaults for a table, and look for what is odd about it."""
    result = fit(records)
    samples = clean(records, max_batch=TABLE_MAX_BATCH, min_context=TABLE_MIN_CONTEXT).samples
    B, C, us = samples.batch.astype(float), samples.context.astype(float), samples.time_us
    longest = (_error(B, C, us), _error(B, C / B, us))
    return summary(result, longest, tuple(_remarks(records, result, B, C, us, longest)))


def summary(
    result: FitResult, longest: tuple[float, float] = (np.nan, np.nan), remarks: tuple[Remark, ...] = ()
) -> Measured:
    """What the page and the presets need of a fit."""
    beyond = [e.mape for e in result.extrapolation if e.beyond.startswith("fitted up to")]
    return Measured(
        group=dict(result.group),
        cost=result.cost,
        intervals=dict(result.intervals),
        heldout=result.heldout_mape,
        in_sample=result.in_sample_mape,
        beyond=beyond[0] if beyond else float("nan"),
        rate=tuple(result.exchange_rate),
        rows=result.rows,
        range=dict(result.range),
        longest=longest,
        remarks=remarks,
    )


def _remarks(
    records: StepRecords, result: FitResult, B: Floats, C: Floats, us: Floats, longest: tuple[float, float]
) -> list[Remark]:
    found = []
    term, at = result.cost.terms[0], result.range
    if at["batch_low"] > 1:
        found.append(Remark("batches from {} only", str(at["batch_low"])))
    several = C[B > 1]
    if len(several) and several.max() < 300_000:
        found.append(Remark("several requests: up to {} tokens together", f"{several.max():,.0f}"))
    falls = _falls(B, C / B, us)
    if falls is not None:
        before, after, share = falls
        where = f"from {before:,.0f} to {after:,.0f} tokens"
        found.append(Remark(f"falls by up to {{}} % {where}", f"{100 * share:.0f}"))
        if after == AFTER_TOP_K:
            without = fit(records, min_context=AFTER_TOP_K).heldout_mape
            found.append(Remark(f"held out {{}} % from {AFTER_TOP_K:,} on", f"{100 * without:.1f}"))
    if longest[1] < CLEARLY * longest[0] and longest[0] > 0.03:
        errors = f"{100 * longest[1]:.1f} instead of {100 * longest[0]:.1f}"
        found.append(Remark("follows the longest context: error {} %", errors))
    for name, words in (("per_100k_context", "context"), ("per_request", "request")):
        low, high = next((v for k, v in result.intervals.items() if k.endswith("." + name)), (1.0, 1.0))
        if low <= 0:
            found.append(Remark(f"{words} price not told from 0, at most {{}} us", f"{high:.2g}"))
    lower = np.less_equal(C, C.max() / 4)
    if term.batch_table and lower.any() and B[lower].max() < B.max():
        found.append(Remark("*beyond* is also beyond a batch of {}", f"{B[lower].max():.0f}"))
    if not result.convergence.converged:
        found.append(Remark("the iteration went to and fro"))
    return found


def _falls(B: Floats, length: Floats, us: Floats) -> tuple[float, float, float] | None:
    """The two neighbouring contexts between which most batches get faster, and by how much at most."""
    drops: dict[tuple[float, float], list[float]] = {}
    for batch in np.unique(B):
        here = np.flatnonzero(np.equal(B, batch))
        here = here[np.argsort(length[here])]
        at, time = length[here], us[here]
        for i in range(1, len(at)):
            drops.setdefault((at[i - 1], at[i]), []).append(1 - time[i] / time[i - 1])
    worst = None
    for (before, after), shares in drops.items():
        many = sum(s > FALL for s in shares) * 2 >= len(shares)
        if many and (worst is None or max(shares) > worst[2]):
            worst = (before, after, max(shares))
    return worst


def _error(B: Floats, load: Floats, us: Floats) -> float:
    """Mean relative error of constant + batch + load, fitted robustly in relative error."""
    design = np.column_stack([np.ones_like(B), B, load / 1e5]) / us[:, None]
    weight = np.ones(len(us))
    for _ in range(30):
        theta, _ = nnls(design * weight[:, None], weight)
        off = np.abs(design @ theta - 1)
        scale = max(1.4826 * float(np.median(off)), 1e-9)
        weight = np.sqrt(np.minimum(1.0, 1.345 * scale / np.maximum(off, 1e-12)))
    return float(np.abs(design @ theta - 1).mean())

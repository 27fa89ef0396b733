"""Measured step times over the price of the loads that ranks held, by region of load: where the cost is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from equipoise.live.findings.loads import KNOWN, POINTS, grid, loads_at, step_ms
from equipoise.live.findings.measured import Measured
from equipoise.live.findings.numbers import lives_of
from equipoise.live.findings.predict import Prediction
from equipoise.live.findings.runs import Chosen, Run
from equipoise.study.statistics import Interval, over_seeds, student
from equipoise.types import Floats

__all__ = ["Region", "moments", "prompts_ms", "residuals"]

THIRDS = 3
LEAST_TOKENS = 200
"""Of fewer a region says nothing."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region of load, over all policies.

    Parameters
    ----------
    batch, context_tokens : (float, float)
        From and to: requests and context tokens of the mean rank.
    log_ratio : Interval
        Of log(measured / priced) of the mean time between tokens; over repeats.
    measured_ms, priced_ms : float
    tokens : int
        Gaps between tokens that were seen there.
    share : float
        Of all of them.
    """

    batch: tuple[float, float]
    context_tokens: tuple[float, float]
    log_ratio: Interval
    measured_ms: float
    priced_ms: float
    tokens: int
    share: float


def residuals(measured: Measured, prediction: Prediction) -> tuple[list[Region], str]:
    """Regions of load, and why there are none, if so.

    The loads that were seen are cut into thirds by batch and by context of the mean rank. A token counts where its gap
    ended. Prompts computed in between lengthen steps; where they have a price it is not in the one compared here.
    """
    rows, repeats = [], []
    for run in measured.runs.runs:
        if run.policy not in prediction.by_policy:
            continue
        if lives_of(run).known < KNOWN:
            return [], "The ranks of requests are not known, so neither are the loads that steps had."
        if len(run.gap_ms) < 0.9 * float((run.output_tokens[run.answered] - 1).sum()):
            return [], "Chunks hold several tokens each, so single steps cannot be seen from outside."
        found = moments(measured, run, prediction)
        rows.append(found)
        repeats.append(np.full(len(found), run.repeat))
    if not rows:
        return [], "No policy is predicted."
    table, repeat = np.concatenate(rows), np.concatenate(repeats)
    if not len(table):
        return [], "No time between two tokens was seen."
    return _regions(table, repeat), ""


def moments(measured: Measured, run: Run, prediction: Prediction) -> Floats:
    """A row a stretch of time and instance: tokens, sum of gaps, price, mean batch, mean context, prompts under way."""
    ranks = measured.runs.ranks
    lives = lives_of(run)
    at_s = grid(lives)
    loads = loads_at(lives, at_s, sum(ranks))
    prices = step_ms(prediction.cost, loads, ranks)
    ends_s = _ends_s(run)
    place = np.clip(((ends_s - at_s[0]) / (at_s[1] - at_s[0]) + 0.5).astype(np.int64), 0, POINTS - 1)
    instance = np.searchsorted(np.cumsum(ranks), run.rank[run.gap_of], side="right")
    good = run.answered[run.gap_of] & (run.rank[run.gap_of] >= 0)
    rows = []
    first = 0
    for i, size in enumerate(ranks):
        mine = good & (instance == i)
        tokens = np.bincount(place[mine], minlength=POINTS)
        spent = np.bincount(place[mine], run.gap_ms[mine], POINTS)
        seen = (tokens > 0) & np.isfinite(prices[:, i])
        part = slice(first, first + size)
        batch, context = loads.batch[:, part].mean(axis=1), loads.context_tokens[:, part].mean(axis=1)
        prompts = _prompts(run, (run.rank >= first) & (run.rank < first + size), at_s)
        rows.append(np.stack([tokens, spent, prices[:, i], batch, context, prompts], axis=1)[seen])
        first += size
    return np.concatenate(rows)


def prompts_ms(table: Floats) -> float:
    """By how much steps with prompts under way lengthen the mean time between tokens beyond what the others take.

    The excess over the price of all stretches less that of those in which no request of the instance was between being
    sent and its first token; NaN where fewer than a twentieth of the tokens came in such stretches.
    """
    tokens, excess = table[:, 0], table[:, 1] - table[:, 0] * table[:, 2]
    quiet = table[:, 5] == 0
    if tokens[quiet].sum() < 0.05 * tokens.sum() or tokens[quiet].sum() < LEAST_TOKENS:
        return math.nan
    return float(excess.sum() / tokens.sum() - excess[quiet].sum() / tokens[quiet].sum())


def _prompts(run: Run, mine: Chosen, at_s: Floats) -> Floats:
    """How many requests were between being sent and their first token in each stretch."""
    chosen = run.answered & mine & np.isfinite(run.sent_s)
    half = (at_s[1] - at_s[0]) / 2
    begun = np.searchsorted(np.sort(run.sent_s[chosen]), at_s + half, side="right")
    ended = np.searchsorted(np.sort(run.first_s[chosen]), at_s - half, side="left")
    return np.asarray(begun - ended, dtype=np.float64)


def _ends_s(run: Run) -> Floats:
    """When each gap ended."""
    total = np.cumsum(run.gap_ms) / 1000.0
    new = np.ones(len(run.gap_of), dtype=bool)
    new[1:] = run.gap_of[1:] != run.gap_of[:-1]
    before = np.concatenate([[0.0], total[:-1]])[new]
    return np.asarray(run.first_s[run.gap_of] + total - before[np.cumsum(new) - 1])


def _regions(table: Floats, repeat: Floats) -> list[Region]:
    tokens, batch, context = table[:, 0], table[:, 3], table[:, 4]
    b, c = (_thirds(v, tokens) for v in (batch, context))
    every = float(tokens.sum())
    found = []
    for i in range(int(b.max()) + 1):
        for j in range(int(c.max()) + 1):
            here = (b == i) & (c == j)
            if float(tokens[here].sum()) < LEAST_TOKENS:
                continue
            spent = float(table[here, 1].sum())
            priced = float((tokens * table[:, 2])[here].sum())
            logs = []
            for k in np.unique(repeat[here]):
                part = here & (repeat == k)
                logs.append(math.log(table[part, 1].sum() / (tokens * table[:, 2])[part].sum()))
            n = float(tokens[here].sum())
            ratio = over_seeds(logs) if len(logs) > 1 else student(logs[0], math.nan, 0, "none")
            found.append(
                Region(
                    (float(batch[here].min()), float(batch[here].max())),
                    (float(context[here].min()), float(context[here].max())),
                    ratio,
                    spent / n,
                    priced / n,
                    int(n),
                    n / every,
                )
            )
    return found


def _thirds(values: Floats, weight: Floats) -> Floats:
    """0, 1 or 2: which third of the weight a value is in; equal values go together."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order]) / weight.sum()
    edges = [values[order][int(np.searchsorted(reached, k / THIRDS))] for k in range(1, THIRDS)]
    return np.searchsorted(np.unique(edges), values, side="left").astype(np.float64)

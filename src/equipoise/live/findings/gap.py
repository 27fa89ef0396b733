"""Where measured and predicted differ, and why, as far as the tables allow.

The mean ITL is split exactly, repeat by repeat. With M measured, P predicted, and R(x) what the step cost says of the
loads x that ranks really held (see `loads`)::

    M - P  =  ( R(measured loads) - R(predicted loads) )               loads: who ran where and when
            + ( M - R(measured loads) ) - ( P - R(predicted loads) )   price: what steps take beyond what is priced

R misses the same of both runs (what prompts add, what lies between two moments), so that cancels. The first token is
split by the queues: what waited in the engine over time, divided by the requests, is their mean wait (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from equipoise.live.findings.loads import KNOWN, Lives, grid, loads_at, step_ms, token_mean_ms
from equipoise.live.findings.measured import Measured
from equipoise.live.findings.numbers import lives_of
from equipoise.live.findings.predict import Predicted, Prediction
from equipoise.live.findings.residuals import moments, prompts_ms
from equipoise.live.findings.runs import LiveRuns, Run
from equipoise.study.statistics import Interval, over_seeds, student

__all__ = ["Gap", "gaps", "repriced_ms"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Measured less predicted under one policy, in milliseconds, means over repeats with intervals.

    Parameters
    ----------
    policy : str
    itl_ms : Interval
        Of the mean ITL.
    loads_ms, price_ms : Interval or None
        Its two parts; None where the ranks of requests are not known.
    prompts_ms : Interval or None
        Of the price, what goes with prompts that were computed meanwhile, beyond what is predicted for them; None where
        there was hardly a time without.
    ttft_ms : Interval
        Of the mean time to the first token.
    sent_late_ms : Interval
        Part of it: requests sent after they should have been.
    wait_ms : Interval or None
        Part of it: longer waits in queues; None where the engine was not asked how many wait.
    rest_ms : Interval
        What is left: computing the prompt, the way there and back, and waits where these are not known.
    """

    policy: str
    itl_ms: Interval
    loads_ms: Interval | None
    price_ms: Interval | None
    prompts_ms: Interval | None
    ttft_ms: Interval
    sent_late_ms: Interval
    wait_ms: Interval | None
    rest_ms: Interval


def gaps(measured: Measured, prediction: Prediction) -> list[Gap]:
    """Split the difference between measured and predicted, policy by policy."""
    found = []
    for policy, by_repeat in prediction.by_policy.items():
        rows = [
            _split(measured, run, by_repeat[k], prediction)
            for k, run in sorted(measured.runs.of(policy).items())
        ]
        columns = [list(c) for c in zip(*rows, strict=True)]
        itl, loads, price, prompts, ttft, late, wait, rest = (_over(c) for c in columns)
        if itl is None or ttft is None or late is None or rest is None:
            continue
        found.append(Gap(policy, itl, loads, price, prompts, ttft, late, wait, rest))
    return found


def repriced_ms(lives: Lives, prediction: Prediction, ranks: Sequence[int]) -> float:
    """Mean time between tokens that the step cost says of loads that ranks held; NaN where ranks are not known."""
    if lives.known < KNOWN:
        return math.nan
    loads = loads_at(lives, grid(lives), sum(ranks))
    return token_mean_ms(step_ms(prediction.cost, loads, ranks), loads, ranks)


def _split(
    measured: Measured, run: Run, predicted: Predicted, prediction: Prediction
) -> tuple[float, float, float, float, float, float, float, float]:
    ranks = measured.runs.ranks
    own = measured.numbers(run, run.answered)
    missing = math.nan

    def gap(name: str) -> float:
        return own[name].value - predicted.values.get(name, missing) if name in own else missing

    itl, ttft = gap("itl_ms.mean"), gap("ttft_ms.mean")
    said = float(np.mean([repriced_ms(one, prediction, ranks) for one in predicted.lives]))
    loads = repriced_ms(lives_of(run), prediction, ranks) - said
    prompts = missing
    if math.isfinite(loads) and len(run.gap_ms):
        prompts = prompts_ms(moments(measured, run, prediction))
        if prediction.prefill:
            prompts -= predicted.values.get("itl_ms.mean", missing) - said
    sent = run.answered & np.isfinite(run.sent_s)
    late = 1000.0 * float((run.sent_s - run.intended_s)[sent].mean()) if sent.any() else missing
    wait = waited_ms(measured.runs, run) - predicted.wait_ms
    known_wait = wait if math.isfinite(wait) else 0.0
    return itl, loads, itl - loads, prompts, ttft, late, wait, ttft - late - known_wait


def waited_ms(runs: LiveRuns, run: Run) -> float:
    """Mean wait of a request in the engine's queues, from how many were seen waiting; NaN where nobody looked."""
    frame = runs.scrapes.filter((pl.col("policy") == run.policy) & (pl.col("repeat") == run.repeat))
    frame = frame.filter(pl.col("waiting").is_not_null())
    if frame.height == 0:
        return math.nan
    by_time = frame.group_by("at_s").agg(pl.col("waiting").sum(), pl.len()).sort("at_s")
    every = by_time["len"].max()
    whole = by_time.filter(pl.col("len") == every)  # a moment at which all ranks answered
    at_s, waiting = whole["at_s"].to_numpy(), whole["waiting"].to_numpy().astype(np.float64)
    asked = int(run.asked.sum())
    if len(at_s) < 10 or not asked:
        return math.nan
    return 1000.0 * float(np.trapezoid(waiting, at_s)) / asked


def _over(values: Sequence[float]) -> Interval | None:
    """Mean over repeats; one repeat has no interval, an unknown one leaves all unknown."""
    if not all(math.isfinite(v) for v in values):
        return None
    return over_seeds(values) if len(values) > 1 else student(values[0], math.nan, 0, "none")

"""The fit of a maximum: assign every step to its predicted slowest rank, refit, and again, until nothing moves.

The observed time of a step is the slowest rank's, so ::

    time = constant + sum over terms of max over ranks of (prices . loads)

is fitted as it stands. Once every step's slowest rank of every term is known, this is a linear regression; its
solution may name other ranks, and so on. A fixed point is a stationary point of the non-linear least squares problem.
Several starts guard against poor ones.

Residuals are relative. A log's are taken relative to the predicted time: dividing by the observed one would favour
steps that happened to be fast, a bias of -2 sigma^2 (half a per cent at 5 % noise). A measured table has hardly any
noise, its residuals are the model's misfit, and they are taken relative to the observed time, as the reported error is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from equipoise.calibrate._assign import slowest
from equipoise.calibrate.least_squares import nonnegative
from equipoise.calibrate.robust import Loss, divisor, robust_scale, robust_weight
from equipoise.calibrate.samples import Samples, saturated_tokens
from equipoise.calibrate.shapes import PER_UNIT, Form
from equipoise.errors import InternalError
from equipoise.types import Floats, Ints

__all__ = ["BottleneckFit", "Loss", "Problem", "fit_bottleneck"]

CHUNK: Final = 500_000
"""Steps whose columns are laid out at a time: bounds the memory, not the result."""

DAMPED_FROM: Final = 10
"""Passes after which steps shrink (1/2, 1/3, ...): the minimum of a maximum may sit where two ranks tie, and full steps
would hop from one side to the other for ever."""

EXACT: Final = 1e-10
"""Relative change below which exact data are at rest, whose standard errors are 0."""


class Problem:
    """Steps and a form: what does not change while the coefficients do."""

    def __init__(self, samples: Samples, form: Form) -> None:
        self.samples, self.form = samples, form
        self.largest = int(samples.batch.max(initial=0))
        length = form.saturation_tokens
        self.saturated = saturated_tokens(samples, length) if length else np.empty(0)
        queries = any(t.queries for t in form.terms)
        self.extra_queries = samples.extra_queries if queries else np.empty(0)

    def assign(self, coefficients: Floats) -> tuple[Ints, Floats]:
        """Slowest row int64[terms, steps] of every barrier, and predicted time float64[steps]."""
        s, terms = self.samples, len(self.form.terms)
        batch_price = np.zeros((terms, self.largest + 1))
        price = np.zeros((terms, 3))
        for t, form in enumerate(self.form.terms):
            batch, context, saturated, query = self.form.parts(coefficients, t)
            batch_price[t] = form.batch.prices(batch, self.largest)
            price[t] = context / PER_UNIT, saturated / PER_UNIT, query
        row = np.empty((terms, len(s)), dtype=np.int64)
        time_us = np.empty(len(s))
        slowest(
            s.starts,
            s.batch,
            s.context,
            self.saturated,
            self.extra_queries,
            batch_price,
            price,
            row,
            time_us,
        )
        return row, time_us + coefficients[0]

    def columns(self, row: Ints, steps: slice = slice(None)) -> Floats:
        """float64[steps, coefficients], the columns of some steps at their slowest rows."""
        s = self.samples
        row = row[:, steps]
        parts = [np.ones((row.shape[1], 1))]
        for t, form in enumerate(self.form.terms):
            at = row[t]
            parts.append(form.batch.design(s.batch[at]))
            if form.context:
                parts.append(s.context[at, None] / PER_UNIT)
            if form.saturation_tokens:
                parts.append(self.saturated[at, None] / PER_UNIT)
            if form.queries:
                parts.append(self.extra_queries[at, None])
        return np.concatenate(parts, axis=1)

    def chunks(self) -> Iterator[slice]:
        """Runs of steps that fit in memory."""
        for first in range(0, len(self.samples), CHUNK):
            yield slice(first, min(first + CHUNK, len(self.samples)))

    def normal_equations(self, row: Ints, weight: Floats) -> tuple[Floats, Floats]:
        """X'WX and X'Wy over all steps."""
        p = self.form.columns
        gram, moment = np.zeros((p, p)), np.zeros(p)
        for steps in self.chunks():
            X = self.columns(row, steps)
            weighted = X * weight[steps, None]
            gram += weighted.T @ X
            moment += weighted.T @ self.samples.time_us[steps]
        return gram, moment


@dataclass(frozen=True, slots=True, eq=False)
class BottleneckFit:
    """A fitted maximum.

    Parameters
    ----------
    coefficients : float64[p]
        In the order of ``form.names``.
    row : int64[terms, steps]
        Slowest row of every barrier.
    predicted : float64[steps]
        In microseconds.
    scale : float
        Robust standard deviation of the relative residuals.
    loss : float
        Mean absolute relative residual: what starts are compared by.
    iterations : int
    converged : bool
        Whether the coefficients have come to rest.
    moved : float
        Fraction of steps whose slowest rank changed in the last pass.
    starts : int
        Starts tried.
    """

    form: Form
    coefficients: Floats
    row: Ints
    predicted: Floats
    scale: float
    loss: float
    iterations: int
    converged: bool
    moved: float
    starts: int


def fit_bottleneck(
    samples: Samples,
    form: Form,
    *,
    start: Floats | None = None,
    loss: Loss = "huber",
    multiplicity: Floats | None = None,
    max_iterations: int = 60,
    tolerance: float = 1e-3,
    thin_steps: int = 40_000,
    problem: Problem | None = None,
) -> BottleneckFit:
    """Fit the coefficients of a form to the slowest rank of every step.

    Parameters
    ----------
    samples : Samples
    form : Form
    start : float64[p], optional
        Coefficients to start from; otherwise several starts are tried on a part of the steps.
    loss : {"huber", "tukey", "squares"}
        What relative residuals count.
    multiplicity : float64[steps], optional
        How often each step counts, on top of its own weight (a bootstrap replicate).
    max_iterations : int
        Passes over all steps.
    tolerance : float
        Rest: from one pass to the next the coefficients move by less than this many standard errors.
    thin_steps : int
        With more steps than this, the first passes look at a part of them only.
    problem : Problem, optional
        The same samples and form, laid out already.

    Raises
    ------
    InternalError
        No steps.
    """
    if not len(samples):
        raise InternalError("a fit was asked for without a step")
    starts = 0
    if start is None:
        start, starts = _best_start(samples.thin(min(4000, thin_steps)), form, loss)
        if len(samples) > thin_steps:
            start = fit_bottleneck(samples.thin(thin_steps), form, start=start, loss=loss).coefficients
    problem = problem or Problem(samples, form)
    weight = samples.weight if multiplicity is None else samples.weight * multiplicity
    return _iterate(problem, start, loss, weight, max_iterations, tolerance, starts)


def _iterate(
    problem: Problem,
    theta: Floats,
    loss: Loss,
    weight: Floats,
    max_iterations: int,
    tolerance: float,
    starts: int,
) -> BottleneckFit:
    samples = problem.samples
    row, predicted = problem.assign(theta)
    moved, converged, passes = 1.0, False, 0
    scale, relative = 1.0, np.empty(0)
    counted = weight > 0
    everything = bool(counted.all())
    while passes < max_iterations and not converged:
        passes += 1
        by = divisor(samples, predicted)
        relative = (samples.time_us - predicted) / by
        scale = robust_scale(relative if everything else relative[counted])
        # The first pass starts from prices that may be far off: all residuals count, so that none is shut out.
        robust = robust_weight(relative, scale, loss if passes > 1 else "squares")
        gram, moment = problem.normal_equations(row, weight * robust / by**2)
        fitted = nonnegative(gram, moment)
        if passes > DAMPED_FROM:
            fitted = theta + (fitted - theta) / (passes - DAMPED_FROM + 1)
        change = fitted - theta
        size = np.sqrt(max(float(change @ gram @ change), 0.0))
        whole = np.sqrt(max(float(fitted @ gram @ fitted), 0.0))
        theta, before = fitted, row
        row, predicted = problem.assign(theta)
        moved = float((row != before).any(axis=0).mean())
        converged = passes > 1 and bool(size < max(tolerance * scale, EXACT * whole))
    by = divisor(samples, predicted)
    relative = (samples.time_us - predicted) / by
    share = weight / weight.sum()
    return BottleneckFit(
        form=problem.form,
        coefficients=theta,
        row=row,
        predicted=predicted,
        scale=robust_scale(relative if everything else relative[counted]),
        loss=float(np.abs(relative) @ share),
        iterations=passes,
        converged=converged,
        moved=moved,
        starts=starts,
    )


def _best_start(samples: Samples, form: Form, loss: Loss) -> tuple[Floats, int]:
    """Coefficients from the best of several guesses at the slowest ranks, after a few passes each."""
    problem = Problem(samples, form)
    first = samples.starts[:-1]
    if samples.one_rank:
        largest_batch, guesses = first, [first]
    else:
        batch, context = samples.batch.astype(np.float64), samples.context
        largest_batch = _largest(samples, batch)
        guesses = [
            _largest(samples, score)
            for score in (
                batch / max(batch.mean(), 1e-9) + context / max(context.mean(), 1e-9),
                context,
                batch,
                batch / max(batch.mean(), 1e-9) + 0.2 * context / max(context.mean(), 1e-9),
            )
        ]
    results = []
    for guess in guesses:
        # A term without a context price waits for the largest batch, whatever the prices are.
        row = np.stack([guess if t.context or samples.one_rank else largest_batch for t in form.terms])
        theta = nonnegative(*problem.normal_equations(row, samples.weight / samples.time_us**2))
        results.append(_iterate(problem, theta, loss, samples.weight, 12, 0.01, 0))
    best = min(results, key=lambda r: r.loss)
    return best.coefficients, len(guesses)


def _largest(samples: Samples, score: Floats) -> Ints:
    """First row of each step where the score is largest."""
    top = np.maximum.reduceat(score, samples.starts[:-1])
    is_top = np.flatnonzero(score == np.repeat(top, np.diff(samples.starts)))
    step = np.searchsorted(samples.starts, is_top, side="right") - 1
    return np.asarray(is_top[np.unique(step, return_index=True)[1]], dtype=np.int64)

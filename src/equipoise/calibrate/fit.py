"""From step records to a step cost with error bars: the whole of a calibration, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from equipoise.calibrate.bootstrap import Bootstrap, bootstrap
from equipoise.calibrate.bottleneck import BottleneckFit, Loss, Problem, fit_bottleneck
from equipoise.calibrate.choose import BATCH_SHAPES, SATURATIONS, Choice, choose
from equipoise.calibrate.clean import Cleaned, clean, is_grid, merged
from equipoise.calibrate.coverage import coverage
from equipoise.calibrate.holdout import extrapolation, held_out_errors, mape_by_regime
from equipoise.calibrate.identify import Unidentified, collinear, typical_loads, weak
from equipoise.calibrate.records import Drop, StepRecords
from equipoise.calibrate.regions import load_regions, weighted_mean
from equipoise.calibrate.result import Convergence, FitResult, Points, ValueInterval
from equipoise.calibrate.samples import Samples
from equipoise.calibrate.shapes import PER_UNIT, Form, TermForm
from equipoise.errors import CalibrationError, nearest
from equipoise.types import Floats

if TYPE_CHECKING:
    from equipoise.models.shape import ModelShape

__all__ = ["GRID_MAX_BATCH", "GRID_MIN_CONTEXT", "fit"]

GRID_MAX_BATCH: Final = 512
GRID_MIN_CONTEXT: Final = 2048
"""Range of a measured table that is fitted by default: batches of decode pools, contexts past the usual top-k."""

HOLD_OUT_STEPS: Final = 20_000
"""Steps a hold-out looks at."""

EXTRAPOLATION_STEPS: Final = 20_000
PLOT_POINTS: Final = 4000

PAUSE: Final = 5.0
"""A step that took this many times what the first fit says was no step but a pause; or a fifth of it: a clock jump."""
MOST_PAUSES: Final = 0.05


def fit(
    records: StepRecords | Sequence[StepRecords],
    *,
    model: str | ModelShape | None = None,
    barrier: Literal["layer", "step"] = "layer",
    terms: int | Literal["auto"] = "auto",
    batch_shape: str = "auto",
    saturation_tokens: int | Sequence[int] | Literal["auto"] | None = "auto",
    graph_sizes: Sequence[int] | None = None,
    max_batch: int | Literal["auto"] | None = "auto",
    min_context: int | Literal["auto"] | None = "auto",
    warmup_steps: int = 0,
    missing_ranks_are_idle: bool = False,
    loss: Loss = "huber",
    replicates: int = 2000,
    seed: int = 0,
    name: str | None = None,
) -> FitResult:
    """Fit what a decode step costs to what an engine logged, or to a measured table.

    Parameters
    ----------
    records : StepRecords or sequence of them
        Several files of one deployment are fitted together.
    model : str or ModelShape, optional
        The model that ran: its own saturation lengths (top-k, windows) are tried besides the usual ones.
    barrier : {"layer", "step"}
        ``layer``: layer classes wait for each other one by one, the sum of maxima; ``step``: one wait a step.
    terms : {"auto", 1, 2}
        One term of batch and context, or a term that waits for the largest batch beside one of batch and context.
    batch_shape : {"auto", "linear", "roofline", "table", "staircase"}
        ``auto``: the simplest that the held-out error supports.
    saturation_tokens : int, sequence of int, "auto" or None
        Context lengths from which a second context price may stop growing; None: none.
    graph_sizes : sequence of int, optional
        Batches for which the engine captured graphs; vLLM's default list otherwise.
    max_batch, min_context : int, "auto" or None
        Range to fit: requests a rank, context tokens a request. ``auto``: 512 and 2,048 for a measured table, no
        bounds for a log.
    warmup_steps : int
        Decode steps to leave out at the start of every instance.
    missing_ranks_are_idle : bool
        Keep steps in which ranks are missing, as if those had been idle.
    loss : {"huber", "tukey", "squares"}
    replicates : int
        Bootstrap replicates.
    seed : int
    name : str, optional
        Name of the cost.

    Returns
    -------
    FitResult

    Raises
    ------
    CalibrationError
        No decode steps, or too few to fit; an unknown option.

    Examples
    --------
    >>> import numpy as np
    >>> from equipoise.calibrate.records import StepRecords
    >>> batch, context = np.meshgrid([1, 2, 4, 8, 16, 32], [4096, 8192, 16384, 65536])
    >>> time_us = 200 + 2.0 * batch + 4.0 * batch * context / 100_000
    >>> columns = {"batch": batch.ravel(), "context_tokens": (batch * context).ravel(), "time_s": time_us.ravel() / 1e6}
    >>> fit(StepRecords.build(columns)).cost.formula()
    '200 + 1 * max(2 * B + 4 * C/100k)'
    """
    _check(batch_shape, barrier, terms, loss)
    records = records if isinstance(records, StepRecords) else _joined(records)
    grid = is_grid(records)
    cleaned = clean(
        records,
        max_batch=(GRID_MAX_BATCH if grid else None) if max_batch == "auto" else max_batch,
        min_context=(GRID_MIN_CONTEXT if grid else None) if min_context == "auto" else min_context,
        warmup_steps=warmup_steps,
        missing_ranks_are_idle=missing_ranks_are_idle,
    )
    samples, pauses = _without_pauses(cleaned.samples, loss)
    if len(samples) < LEAST_STEPS:
        raise CalibrationError(
            f"holds {len(samples)} decode steps in range",
            where=records.source or None,
            fix=f"a fit needs {LEAST_STEPS} or more, with different batches and contexts",
        )
    label = str(records.labels.get("layer") or "decode")
    choice = choose(
        samples,
        batch_shape=batch_shape,
        terms=1 if barrier == "step" else terms,
        saturation_tokens=_lengths(saturation_tokens, model),
        sizes=graph_sizes,
        loss=loss,
        names=(label, "batch", "attention"),
    )
    found = _fit_identified(samples, choice.form, loss)
    regions = load_regions(samples) if samples.is_grid else None
    errors = bootstrap(found.problem, found.fit, regions, loss=loss, replicates=replicates, seed=seed)
    context = _Context(records, cleaned, samples, pauses, choice, found, errors, loss, barrier)
    return _result(context, name or _name(records), seed)


LEAST_STEPS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """The fit on all steps, with the columns that the data can tell."""

    problem: Problem
    fit: BottleneckFit
    gone: tuple[Unidentified, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Context:
    records: StepRecords
    cleaned: Cleaned
    samples: Samples
    pauses: Drop | None
    choice: Choice
    found: _Found
    errors: Bootstrap
    loss: Loss
    barrier: Literal["layer", "step"]


def _fit_identified(samples: Samples, form: Form, loss: Loss) -> _Found:
    """Fit, and leave out columns that say the same as others until none does."""
    gone: list[Unidentified] = []
    while True:
        problem = Problem(samples, form)
        found = fit_bottleneck(samples, form, loss=loss, problem=problem)
        smaller, new = collinear(problem, found)
        gone += new
        if smaller == form or not smaller.terms:
            return _Found(problem, found, tuple(gone))
        form = smaller


def _result(at: _Context, name: str, seed: int) -> FitResult:
    samples, found, errors = at.samples, at.found, at.errors
    form, theta = found.problem.form, found.fit.coefficients
    low, high = errors.simultaneous(theta)
    extra = _extra_queries(samples)
    thin = samples.thin(HOLD_OUT_STEPS)
    regions = load_regions(thin)
    held_out = held_out_errors(thin, form, regions, theta, loss=at.loss)
    beyond = extrapolation(samples.thin(EXTRAPOLATION_STEPS), at.cleaned.outside, form, theta, loss=at.loss)
    mean_time = float(np.average(samples.time_us, weights=samples.weight))
    cost = form.cost(theta, name, extra_queries_per_request=extra, source=_source(at), barrier=at.barrier)
    context_unknown = any(u.coefficient.endswith(("per_request", "per_100k_context")) for u in found.gone)
    rates = np.array([exchange_rate(form, r, extra) for r in errors.replicates])
    rate = exchange_rate(form, theta, extra)
    if context_unknown:
        rate, rates = float("nan"), np.full(len(rates), np.nan)
    weakly = weak(samples, form, theta, low, high, typical_loads(found.problem, found.fit.row))
    drops = merged((*at.cleaned.dropped, *((at.pauses,) if at.pauses else ())))
    result = FitResult(
        cost=cost,
        intervals={n: (float(a), float(b)) for n, a, b in zip(form.names, low, high, strict=True)},
        coefficients={n: float(v) for n, v in zip(form.names, theta, strict=True)},
        heldout_mape=weighted_mean(held_out, thin.weight),
        heldout_mape_by_regime=mape_by_regime(thin, held_out),
        heldout_regions=regions.describe(),
        in_sample_mape=float(np.average(np.abs(found.fit.predicted / samples.time_us - 1), weights=samples.weight)),
        exchange_rate=ValueInterval(rate, *errors.pointwise(rates, rate)),
        fixed_share=ValueInterval(
            float(theta[0]) / mean_time,
            *errors.pointwise(errors.replicates[:, 0] / mean_time, float(theta[0]) / mean_time),
        ),
        rows=samples.rows,
        steps=len(samples),
        ranks=int(np.diff(samples.starts).max()),
        dropped=drops,
        notes=(*at.cleaned.notes, *_notes(at, extra)),
        convergence=Convergence(
            found.fit.iterations, found.fit.converged, found.fit.moved, found.fit.starts, found.fit.scale
        ),
        bootstrap={
            "units": errors.units,
            "block_steps": errors.block_steps,
            "blocks": round(errors.blocks, 1),
            "replicates": len(errors.replicates),
            "full_refits": errors.refits,
            "largest_stretch": float(errors.stretch.max()),
            "half_width_sd": errors.critical,
            "seed": seed,
        },
        candidates=at.choice.candidates,
        coverage=coverage(samples, found.fit.row),
        extrapolation=beyond,
        unidentified=(*found.gone, *weakly),
        levels=_levels(at, regions.kind, bool(beyond)),
        points=_points(samples, found.fit),
        group={k: v for k, v in at.records.labels.items() if v is not None},
        range=_range(samples),
        prefill=at.cleaned.prefill,
        source=at.records.source,
        format=at.records.format,
    )
    return result.with_metadata()


def exchange_rate(form: Form, theta: Floats, extra_queries_per_request: float) -> float:
    """Context tokens that cost as much as one more request; NaN where context costs nothing.

    As `StepCost.request_in_context_tokens`; the request is one past every saturation length.
    """
    request = context = 0.0
    for i, term in enumerate(form.terms):
        batch, per_context, saturated, query = form.parts(theta, i)
        request += term.batch.slope(batch) + query * extra_queries_per_request
        request += saturated * term.saturation_tokens / PER_UNIT
        context += per_context
    return request / context * PER_UNIT if context > 0 else float("nan")


def _extra_queries(samples: Samples) -> float:
    """Verified tokens beyond one a request, per request, over all busy ranks."""
    if not len(samples.extra_queries):
        return 0.0
    return float(samples.extra_queries.sum() / max(samples.batch.sum(), 1))


def _without_pauses(samples: Samples, loss: Loss) -> tuple[Samples, Drop | None]:
    """Take out steps that were none: pauses and clock jumps. Never from a measured table."""
    if samples.is_grid or len(samples) < 4 * LEAST_STEPS:
        return samples, None
    plain = _plainest(samples)
    first = fit_bottleneck(samples.thin(10_000), plain, loss=loss, tolerance=0.03)
    _, predicted = Problem(samples, plain).assign(first.coefficients)
    ratio = samples.time_us / np.maximum(predicted, 1e-9)
    wrong = (ratio > PAUSE) | (ratio < 1 / PAUSE)
    if not wrong.any() or wrong.mean() > MOST_PAUSES:
        return samples, None
    rows = int(np.diff(samples.starts)[wrong].sum())
    return samples.take(~wrong), Drop(f"pause or clock jump (beyond {PAUSE:g}x of the fit, either way)", rows)


def _plainest(samples: Samples) -> Form:
    """The plainest form: one term, linear in batch and context."""
    return Form((TermForm("decode", context=True, queries=len(samples.extra_queries) > 0),))


def _lengths(
    wanted: int | Sequence[int] | Literal["auto"] | None, model: str | ModelShape | None
) -> int | Sequence[int] | Literal["auto"] | None:
    if wanted != "auto" or model is None:
        return wanted
    from equipoise import models

    shape = models.load(model) if isinstance(model, str) else model
    own = {w.saturation_tokens for c in shape.classes for w in c.work if w.saturation_tokens}
    return sorted({*SATURATIONS, *own})


def _joined(records: Sequence[StepRecords]) -> StepRecords:
    parts = list(records)
    if not parts:
        raise CalibrationError("no step records", fix="give at least one log")
    formats = sorted({p.format for p in parts})
    if len(formats) > 1:
        raise CalibrationError(
            f"logs of several formats ({', '.join(formats)})",
            fix="fit each on its own: their times mean different things",
        )
    return parts[0] if len(parts) == 1 else StepRecords.concatenate(parts)


def _check(batch_shape: str, barrier: str, terms: int | str, loss: str) -> None:
    for option, value, known in (
        ("batch_shape", batch_shape, ("auto", *BATCH_SHAPES)),
        ("barrier", barrier, ("layer", "step")),
        ("loss", loss, ("huber", "tukey", "squares")),
    ):
        if value not in known:
            raise CalibrationError(f"{option} = {value!r}", fix=nearest(value, known))
    if terms not in ("auto", 1, 2):
        raise CalibrationError(f"terms = {terms!r}", fix="use 'auto', 1 or 2")


def _levels(at: _Context, kind: str, beyond: bool) -> tuple[str, ...]:
    """What was done to make sure, in words."""
    levels = ["fitted"]
    if at.found.fit.converged:
        levels.append("converged")
    levels.append("held out by load region" if kind == "load" else "held out by time")
    if len(at.choice.candidates) > 1:
        levels.append("form chosen by held-out error")
    levels.append(
        "bootstrapped over load regions" if at.errors.units == "regions" else "bootstrapped over blocks of steps"
    )
    if at.errors.refits:
        levels.append("error bars checked by full refits")
    if beyond:
        levels.append("extrapolation measured")
    return tuple(levels)


def _notes(at: _Context, extra: float) -> list[str]:
    notes = []
    if extra:
        notes.append(
            f"A request is priced at the logged {1 + extra:.2f} query tokens a step; see the coefficient per_extra_query."
        )
    if at.found.problem.form.saturation_tokens and not at.cleaned.variance_is_known:
        notes.append(
            "The variance of the context lengths within a rank is not logged; for the saturating context price all "
            "requests of a rank were taken to be equally long."
        )
    if not at.found.fit.converged:
        notes.append(
            f"The fit did not come to rest in {at.found.fit.iterations} passes "
            f"({at.found.fit.moved:.1%} of the steps changed their slowest rank in the last one)."
        )
    return notes


def _points(samples: Samples, fit: BottleneckFit) -> Points:
    """Steps for plots, evenly spread."""
    at = np.unique(np.linspace(0, len(samples) - 1, min(len(samples), PLOT_POINTS)).astype(np.int64))
    return Points(
        observed_us=samples.time_us[at],
        predicted_us=fit.predicted[at],
        batch=samples.mean(samples.batch)[at],
        context_tokens=samples.mean(samples.context)[at],
    )


def _range(samples: Samples) -> dict[str, int]:
    length = samples.context[samples.batch > 0] / samples.batch[samples.batch > 0]
    return {
        "batch_low": int(samples.batch.min()),
        "batch_high": int(samples.batch.max()),
        "context_tokens_low": int(samples.context.min()),
        "context_tokens_high": int(samples.context.max()),
        "context_a_request_low": int(length.min()) if len(length) else 0,
        "context_a_request_high": int(length.max()) if len(length) else 0,
    }


def _name(records: StepRecords) -> str:
    words = [str(records.labels[k]) for k in ("system", "framework", "model", "layer") if records.labels.get(k)]
    return " ".join(words) or "fitted"


def _source(at: _Context) -> str:
    where = at.records.source or "step records"
    return f"fitted to {where}: {at.samples.rows:,} rows, {len(at.samples):,} steps"


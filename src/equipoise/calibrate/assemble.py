"""From a fit and its replicates to a `FitResult`: everything that is said about it is worked out here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from equipoise.calibrate.bootstrap import Bootstrap
from equipoise.calibrate.bottleneck import BottleneckFit, Problem
from equipoise.calibrate.choose import Choice
from equipoise.calibrate.clean import Cleaned, merged
from equipoise.calibrate.covered import coverage
from equipoise.calibrate.exchange import exchange_rate
from equipoise.calibrate.holdout import extrapolation, held_out_errors, mape_by_regime
from equipoise.calibrate.identify import Unidentified, typical_loads, weak
from equipoise.calibrate.records import Drop, StepRecords
from equipoise.calibrate.regions import load_regions, weighted_mean
from equipoise.calibrate.result import Convergence, FitResult, Points, ValueInterval
from equipoise.calibrate.robust import Loss
from equipoise.calibrate.samples import Samples
from equipoise.cost.step_cost import StepCost
from equipoise.types import Floats

__all__ = ["Evidence", "Found", "assemble"]

HOLD_OUT_STEPS: Final = 20_000
"""Steps a hold-out looks at."""
PLOT_POINTS: Final = 4000
BUMP: Final = 0.02
"""Excess of evenly loaded ranks, at the worst batch, from which a batch table gets a warning."""

UNLOGGED: Final = "context lengths are not logged; what they cost is part of the other prices"
UNLOGGED_PROBE: Final = "log the sum of context lengths of every rank (ForwardPassMetrics has it)"


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The fit on all steps, with the columns that the data can tell.

    Parameters
    ----------
    problem : Problem
    fit : BottleneckFit
    gone : tuple of Unidentified
        The others.
    lost : tuple of str
        Which of the prices of a request and of context went with them.
    """

    problem: Problem
    fit: BottleneckFit
    gone: tuple[Unidentified, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What a fit has gathered on its way."""

    records: StepRecords
    cleaned: Cleaned
    samples: Samples
    pauses: Drop | None
    choice: Choice
    found: Found
    errors: Bootstrap
    loss: Loss
    barrier: Literal["layer", "step"]


def assemble(at: Evidence, name: str, seed: int) -> FitResult:
    """Hold out, extrapolate, judge what is identified, and put it all together.

    Parameters
    ----------
    at : Evidence
    name : str
        Name of the cost.
    seed : int
        Of the bootstrap, for the record.
    """
    samples, found, errors = at.samples, at.found, at.errors
    form, theta = found.problem.form, found.fit.coefficients
    low, high = errors.simultaneous(theta)
    extra = samples.extra_a_request
    thin = samples.thin(HOLD_OUT_STEPS)
    regions = load_regions(thin)
    held_out = held_out_errors(thin, form, regions, theta, loss=at.loss)
    beyond = extrapolation(samples.thin(HOLD_OUT_STEPS), at.cleaned.outside, form, theta, loss=at.loss)
    cost = form.cost(theta, name, extra_queries_per_request=extra, source=_source(at), barrier=at.barrier)
    regimes = mape_by_regime(thin, held_out)
    if not at.cleaned.contexts_are_logged:
        regimes = {name.partition(", context")[0]: error for name, error in regimes.items()}
    typical = typical_loads(found.problem, found.fit.row)
    weakly = weak(samples, form, theta, low, high, typical)
    drops = merged((*at.cleaned.dropped, *((at.pauses,) if at.pauses else ())))
    result = FitResult(
        cost=cost,
        intervals={n: (float(a), float(b)) for n, a, b in zip(form.names, low, high, strict=True)},
        coefficients={n: float(v) for n, v in zip(form.names, theta, strict=True)},
        heldout_mape=weighted_mean(held_out, thin.weight),
        heldout_mape_by_regime=regimes,
        heldout_regions=regions.describe(),
        in_sample_mape=float(
            np.average(np.abs(found.fit.predicted / samples.time_us - 1), weights=samples.weight)
        ),
        exchange_rate=_rate(found, errors, extra),
        fixed_share=_fixed_share(theta, errors, typical),
        rows=samples.rows,
        steps=len(samples),
        ranks=int(np.diff(samples.starts).max()),
        dropped=drops,
        notes=(*at.cleaned.notes, *_notes(at, extra, cost)),
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
        unidentified=tuple(_reason(u, at.cleaned) for u in (*found.gone, *weakly)),
        lost=found.lost,
        contexts_are_logged=at.cleaned.contexts_are_logged,
        levels=_levels(at, regions.kind, bool(beyond)),
        points=_points(samples, found.fit),
        group={k: v for k, v in at.records.labels.items() if v is not None},
        range=_range(samples),
        prefill=at.cleaned.prefill,
        source=at.records.source,
        format=at.records.format,
    )
    return result.with_metadata()


def _rate(found: Found, errors: Bootstrap, extra: float) -> ValueInterval:
    if found.lost:
        return ValueInterval(float("nan"), float("nan"), float("nan"))
    form = found.problem.form
    rate = exchange_rate(form, found.fit.coefficients, extra)
    rates = np.array([exchange_rate(form, r, extra) for r in errors.replicates])
    return ValueInterval(rate, *errors.pointwise_ratio(rates, rate))


def _fixed_share(theta: Floats, errors: Bootstrap, typical: Floats) -> ValueInterval:
    """Constant over the mean predicted step: stalls that the robust loss passes over are no part of a step's price."""
    share = float(theta[0] / max(theta @ typical, 1e-300))
    shares = errors.replicates[:, 0] / np.maximum(errors.replicates @ typical, 1e-300)
    return ValueInterval(share, *errors.pointwise(shares, share))


def _reason(one: Unidentified, cleaned: Cleaned) -> Unidentified:
    """The true reason why context has no price, where contexts are not logged."""
    if cleaned.contexts_are_logged or not one.coefficient.endswith("per_100k_context"):
        return one
    return Unidentified(one.coefficient, UNLOGGED, UNLOGGED_PROBE)


def _levels(at: Evidence, kind: str, beyond: bool) -> tuple[str, ...]:
    """What was done to make sure, in words."""
    levels = ["fitted"]
    if at.found.fit.converged:
        levels.append("converged")
    levels.append("held out by load region" if kind == "load" else "held out by time")
    if len(at.choice.candidates) > 1:
        levels.append("form chosen by held-out error")
    levels.append(
        "bootstrapped over load regions"
        if at.errors.units == "regions"
        else "bootstrapped over blocks of steps"
    )
    if at.errors.refits:
        levels.append("error bars checked by full refits")
    if beyond:
        levels.append("extrapolation measured")
    return tuple(levels)


def _above_envelope(cost: StepCost) -> float:
    """How far the price of an even step lies above the ideal, at worst, over the batches that were seen; no context."""
    prices = cost.prices()
    batch = np.arange(1, prices.batch.shape[1], dtype=np.int64)
    if len(batch) == 0:
        return 0.0
    none = np.zeros_like(batch)
    return float(
        (cost.cost(batch[:, None], none[:, None]) / cost.ideal(batch[:, None], none[:, None])).max() - 1.0
    )


def _notes(at: Evidence, extra: float, cost: StepCost) -> list[str]:
    notes = []
    if extra:
        notes.append(
            f"A request is priced at the logged {1 + extra:.2f} query tokens a step (coefficient per_extra_query)."
        )
    first = max((t.batch.nodes[0] for t in at.found.problem.form.terms if t.batch.nodes), default=0)
    if first > 1:
        notes.append(
            f"The constant, and with it the fixed share, holds the price of a rank's first {first:,} requests: the "
            "batch price starts there."
        )
    bump = _above_envelope(cost)
    if bump > BUMP:
        notes.append(
            f"The batch table is not convex: under it the same requests cost up to {bump:.0%} more spread evenly than "
            "unevenly, so even loads show an excess that no router can win. --batch-shape linear or roofline avoids it."
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


def _source(at: Evidence) -> str:
    where = at.records.source or "step records"
    return f"fitted to {where}: {at.samples.rows:,} rows, {len(at.samples):,} steps"

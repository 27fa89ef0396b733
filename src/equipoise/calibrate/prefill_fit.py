"""`fit_prefill`: from the prefill steps of a log to a `PrefillCost` with error bars.

The time of a step is that of its slowest rank, so ::

    time = constant + sum over terms of max over ranks of ( per_token T + per_pair P [+ per_saturated_pair S] )

is fitted as it stands, by the fitter that decode uses (`equipoise.calibrate.bottleneck`), with T in the place of the
batch and P in the place of the context. A log of whole steps has one term; the layer classes of a model hide in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from equipoise.calibrate.bootstrap import bootstrap
from equipoise.calibrate.bottleneck import BottleneckFit, Loss, Problem, fit_bottleneck
from equipoise.calibrate.prefill_identify import Unidentified, not_identified
from equipoise.calibrate.prefill_samples import PrefillSamples, prefill_samples
from equipoise.calibrate.records import Drop, StepRecords
from equipoise.calibrate.regions import Regions, load_regions, weighted_mean
from equipoise.calibrate.shapes import BatchShape, Form, TermForm
from equipoise.cost import PrefillCost, PrefillTerm, Saturation
from equipoise.errors import CalibrationError, InputError
from equipoise.types import Floats

__all__ = ["PrefillFit", "PrefillTermForm", "fit_prefill"]

LEAST_STEPS: Final = 8
FITTED_STEPS: Final = 200_000
"""More steps than this are thinned by taking every n-th: prices do not get better, only slower."""

DROP_ORDER: Final = ("per_100k_saturated", "per_100k_context", "per_request")
"""What goes first where columns cannot be told apart: prices per token are the ones that extrapolate least badly."""


@dataclass(frozen=True, slots=True)
class PrefillTermForm:
    """Columns of one term.

    Parameters
    ----------
    name : str
    tokens, pairs : bool
        A price per prompt token, per attended pair.
    saturation_tokens : int
        A price per pair where a query reads at most this many keys (top-k, window); 0: none.
    """

    name: str = "prefill"
    tokens: bool = True
    pairs: bool = True
    saturation_tokens: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class PrefillFit:
    """A fitted prefill cost, and how far to trust it.

    Parameters
    ----------
    cost : PrefillCost
        In microseconds.
    intervals : mapping of str to (float, float)
        Simultaneous 95 % intervals of the fitted coefficients: ``constant``, ``TERM.per_token``,
        ``TERM.per_100k_pairs``, ``TERM.per_100k_saturated_N``; in microseconds.
    mape : float
        Mean absolute relative error on the fitted steps, as a fraction.
    heldout_mape : float
        The same on load regions that the fit has not seen.
    held_out : str
        What these regions are, in words.
    steps, rows : int
        Steps fitted; rows (ranks with prompt tokens) in them.
    guessed_rows : int
        Rows of several prompts, whose saturated pairs are estimates; 0 where no price saturates.
    dropped : tuple of Drop
        Rows of prefill steps left out, by reason.
    unidentified : tuple of Unidentified
    converged : bool
    """

    cost: PrefillCost
    intervals: Mapping[str, tuple[float, float]]
    mape: float
    heldout_mape: float
    held_out: str
    steps: int
    rows: int
    guessed_rows: int
    dropped: tuple[Drop, ...]
    unidentified: tuple[Unidentified, ...]
    converged: bool


class _Problem(Problem):
    """The fitter's problem, with pairs for contexts."""

    def __init__(self, samples: PrefillSamples, form: Form) -> None:
        super().__init__(samples.loads, form)
        if form.saturation_tokens:
            self.saturated = samples.saturated(form.saturation_tokens)


def fit_prefill(
    records: StepRecords,
    *,
    terms: Sequence[PrefillTermForm] = (PrefillTermForm(),),
    missing_ranks_are_idle: bool = False,
    loss: Loss = "huber",
    replicates: int = 1000,
    seed: int = 0,
) -> PrefillFit:
    """Fit the price of a prefill step to the prefill steps of a log.

    Parameters
    ----------
    records : StepRecords
        A log; steps without prompt tokens are passed over.
    terms : sequence of PrefillTermForm
        What to fit; one term for a log of whole steps. All saturations must be at the same length.
    missing_ranks_are_idle : bool
        Keep steps that lack ranks, as if those had had nothing to do.
    loss : {"huber", "tukey", "squares"}
        What relative residuals count.
    replicates : int
        Bootstrap replicates for the intervals.
    seed : int

    Raises
    ------
    CalibrationError
        Too few usable prefill steps; the message says where they went.
    InputError
        Terms that cannot be fitted.
    """
    form = _form(terms)
    samples, dropped = prefill_samples(records, missing_ranks_are_idle=missing_ranks_are_idle)
    if len(samples) < max(LEAST_STEPS, form.columns + 1):
        raise _too_few(records, len(samples), dropped)
    if len(samples) > FITTED_STEPS:
        every = -(-len(samples) // FITTED_STEPS)
        samples = samples.take(np.arange(len(samples)) % every == 0)
    problem, fit, unidentified = _identified(samples, form, loss)
    regions = load_regions(samples.loads)
    errors = _held_out(samples, fit, regions, loss)
    boot = bootstrap(
        problem, fit, regions if samples.loads.is_grid else None, loss=loss, replicates=replicates, seed=seed
    )
    low, high = boot.simultaneous(fit.coefficients)
    names = [_public(n) for n in fit.form.names]
    weight = samples.loads.weight
    return PrefillFit(
        cost=_cost(fit, terms, records),
        intervals={n: (float(a), float(b)) for n, a, b in zip(names, low, high, strict=True)},
        mape=weighted_mean(np.abs(fit.predicted / samples.loads.time_us - 1), weight),
        heldout_mape=weighted_mean(errors, weight),
        held_out=_describe(regions),
        steps=len(samples),
        rows=samples.loads.rows,
        guessed_rows=int((samples.prompts > 1).sum()) if form.saturation_tokens else 0,
        dropped=dropped,
        unidentified=tuple(replace(u, name=_public(u.name)) for u in unidentified),
        converged=fit.converged,
    )


def _form(terms: Sequence[PrefillTermForm]) -> Form:
    if not terms or len({t.name for t in terms}) < len(terms):
        raise InputError("no term, or two of one name", where="terms", fix="name each term differently")
    if any("." in t.name for t in terms):
        raise InputError("a dot in the name of a term", where="terms", fix="use another name")
    lengths = {t.saturation_tokens for t in terms if t.saturation_tokens}
    if len(lengths) > 1 or any(n < 0 for n in lengths):
        fix = "give all saturating terms one length, in tokens"
        raise InputError(f"saturation lengths {sorted(lengths)}", where="terms", fix=fix)
    shapes = tuple(
        TermForm(t.name, BatchShape("linear" if t.tokens else "none"), t.pairs, t.saturation_tokens)
        for t in terms
    )
    if not all(t.columns for t in shapes):
        raise InputError("a term without a price", where="terms", fix="give it tokens, pairs or a saturation")
    return Form(shapes)


def _identified(
    samples: PrefillSamples, form: Form, loss: Loss
) -> tuple[_Problem, BottleneckFit, tuple[Unidentified, ...]]:
    """Fit, and fit again without the columns that cannot be told from others."""
    named: dict[str, Unidentified] = {}
    while True:
        problem = _Problem(samples, form)
        fit = _best(problem, loss)
        found, collinear = not_identified(problem, fit)
        for one in found:
            named.setdefault(one.name, one)
        gone = next(
            (n for kind in DROP_ORDER for n in reversed(collinear) if n.rpartition(".")[2].startswith(kind)),
            None,
        )
        if gone is None or form.columns <= 2:
            return problem, fit, tuple(named.values())
        named[gone] = replace(named[gone], dropped=True)
        form = form.without(gone)


def _best(problem: _Problem, loss: Loss) -> BottleneckFit:
    """The best of a few starts: all time goes to tokens, to pairs, to both, before the first assignment."""
    samples = problem.samples
    tokens, pairs = float(samples.batch.mean()), float(samples.context.mean())
    time_us = float(samples.time_us.mean())
    fits = []
    for share in (0.0, 0.5, 1.0) if not samples.one_rank else (0.5,):
        # Which rank is slowest depends on the ratio alone.
        prices = {
            "per_request": (1 - share) * time_us / tokens,
            "per_100k_context": share * time_us / pairs * 1e5,
        }
        kinds = [n.rpartition(".")[2] for n in problem.form.names]
        start = np.array([prices.get(kind, 0.0) for kind in kinds])
        fits.append(
            fit_bottleneck(samples, problem.form, start=start, loss=loss, max_iterations=100, problem=problem)
        )
    return min(fits, key=lambda f: f.loss)


def _held_out(samples: PrefillSamples, fit: BottleneckFit, regions: Regions, loss: Loss) -> Floats:
    """Relative error of every step, predicted by a fit that has not seen the step's load region."""
    errors = np.full(len(samples), np.nan)
    for region in range(regions.count):
        out = regions.of_step == region
        if not out.any() or out.all():
            continue
        seen, unseen = _Problem(samples.take(~out), fit.form), _Problem(samples.take(out), fit.form)
        again = fit_bottleneck(
            seen.samples, fit.form, start=fit.coefficients, loss=loss, tolerance=1e-4, problem=seen
        )
        _, predicted = unseen.assign(again.coefficients)
        errors[out] = np.abs(predicted / unseen.samples.time_us - 1)
    return errors


def _cost(fit: BottleneckFit, terms: Sequence[PrefillTermForm], records: StepRecords) -> PrefillCost:
    fitted = {form.name: i for i, form in enumerate(fit.form.terms)}
    priced = []
    for term in terms:
        if term.name not in fitted:
            priced.append(PrefillTerm(term.name))
            continue
        batch, pair, saturated, _ = fit.form.parts(fit.coefficients, fitted[term.name])
        bounds = (Saturation(term.saturation_tokens, saturated),) if saturated else ()
        priced.append(PrefillTerm(term.name, float(batch.sum()), pair, bounds))
    source = f"fitted to {len(fit.predicted):,} prefill steps"
    return PrefillCost(
        tuple(priced),
        constant=float(fit.coefficients[0]),
        unit="us",
        source=f"{source} of {records.source}" if records.source else source,
    )


def _public(name: str) -> str:
    """A coefficient in the words of `PrefillCost`."""
    return name.replace(".per_request", ".per_token").replace(".per_100k_context", ".per_100k_pairs")


def _describe(regions: Regions) -> str:
    if regions.kind == "time":
        return f"{regions.count} stretches of time (the load varies too little for regions)"
    return f"{regions.count} cells of the (tokens, pairs) plane, {regions.octaves:g} octaves wide"


def _too_few(records: StepRecords, steps: int, dropped: tuple[Drop, ...]) -> CalibrationError:
    went = "".join(f"; {d.rows:,} rows: {d.reason}" for d in dropped)
    fixes = {
        "decode beside prefill": "log a prefill instance, or a stretch without running requests",
        "attended pairs are not known": "log the cached tokens and the number of prompts of each step",
        "ranks are missing": "log all ranks, or say that missing ranks are idle",
        "first step after a pause": "log a loaded engine",
    }
    worst = max(dropped, key=lambda d: d.rows).reason if dropped else ""
    fix = fixes.get(worst, "give a log with more steps that compute prompts")
    return CalibrationError(f"{steps} usable prefill steps{went}", where=records.source or None, fix=fix)

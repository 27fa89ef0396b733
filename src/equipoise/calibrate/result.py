"""What a calibration found: the cost, how sure it is, and what it could not tell; as JSON and as ``fit.toml``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from equipoise.calibrate.choose import Candidate
from equipoise.calibrate.covered import Coverage
from equipoise.calibrate.holdout import Extrapolation
from equipoise.calibrate.identify import Unidentified
from equipoise.calibrate.records import Drop, StepRecords
from equipoise.cost import StepCost, save, to_dict
from equipoise.types import Floats

__all__ = ["SCHEMA", "Convergence", "FitResult", "Points", "ValueInterval", "fits_summary"]

SCHEMA: Final = "equipoise.fit/1"


class ValueInterval(NamedTuple):
    """A number with its 95 % interval; NaN: not known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Convergence:
    """How the iteration ended.

    Parameters
    ----------
    iterations : int
        Passes over all steps.
    converged : bool
    moved : float
        Fraction of steps whose slowest rank changed in the last pass.
    starts : int
    noise : float
        Robust standard deviation of the relative residuals.
    """

    iterations: int
    converged: bool
    moved: float
    starts: int
    noise: float


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Some steps, evenly spread, for plots.

    Parameters
    ----------
    observed_us, predicted_us : float64[n]
    batch, context_tokens : float64[n]
        Means over the ranks.
    """

    observed_us: Floats
    predicted_us: Floats
    batch: Floats
    context_tokens: Floats

    @property
    def residual(self) -> Floats:
        """Observed over predicted, less 1."""
        return self.observed_us / self.predicted_us - 1


@dataclass(frozen=True, slots=True, eq=False)
class FitResult:
    """A fitted step cost with what stands behind it.

    Parameters
    ----------
    cost : StepCost
        In microseconds. Its ``metadata["fit"]`` is `provenance`.
    coefficients : mapping of str to float
        By name: ``constant``, ``decode.per_request``, ``attention.per_100k_context``, ...; microseconds.
    intervals : mapping of str to (float, float)
        95 % intervals that hold for all coefficients at once.
    heldout_mape : float
        Mean absolute relative error on left-out regions, as a fraction.
    heldout_mape_by_regime : mapping of str to float
    heldout_regions : str
        What was left out, in words.
    in_sample_mape : float
    exchange_rate : ValueInterval
        Context tokens that cost as much as one more request; infinite where context is free, NaN where one of the two
        prices is not known (`lost` says which).
    fixed_share : ValueInterval
        Constant over the mean predicted step time.
    rows, steps, ranks : int
        What was fitted.
    dropped : tuple of Drop
    notes : tuple of str
    convergence : Convergence
    bootstrap : mapping
        How the intervals were made.
    candidates : tuple of Candidate
        Forms that were tried.
    coverage : Coverage
    extrapolation : tuple of Extrapolation
    unidentified : tuple of Unidentified
    lost : tuple of str
        Of "request" and "context", what has no price of its own that these data could tell.
    contexts_are_logged : bool
    levels : tuple of str
        Levels of proof reached, in words.
    points : Points
    group : mapping
        Labels of the source: system, framework, model, layer ...
    range : mapping of str to int
        Loads that were fitted.
    prefill : StepRecords
        Steps with prompt tokens, untouched, for the prefill fit.
    source, format : str
    """

    cost: StepCost
    coefficients: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    heldout_mape: float
    heldout_mape_by_regime: Mapping[str, float]
    heldout_regions: str
    in_sample_mape: float
    exchange_rate: ValueInterval
    fixed_share: ValueInterval
    rows: int
    steps: int
    ranks: int
    dropped: tuple[Drop, ...]
    notes: tuple[str, ...]
    convergence: Convergence
    bootstrap: Mapping[str, Any]
    candidates: tuple[Candidate, ...]
    coverage: Coverage
    extrapolation: tuple[Extrapolation, ...]
    unidentified: tuple[Unidentified, ...]
    lost: tuple[str, ...]
    contexts_are_logged: bool
    levels: tuple[str, ...]
    points: Points
    group: Mapping[str, Any]
    range: Mapping[str, int]
    prefill: StepRecords
    source: str
    format: str

    @property
    def form(self) -> str:
        """The form taken, in words."""
        return next((c.label for c in self.candidates if c.chosen), "")

    @property
    def exchange_rate_is(self) -> Literal["known", "infinite", "unknown"]:
        """Whether there is an exchange rate: it is infinite where context is free."""
        rate = self.exchange_rate.value
        if math.isnan(rate):
            return "unknown"
        return "known" if math.isfinite(rate) else "infinite"

    def provenance(self) -> dict[str, Any]:
        """All but the cost, as plain data; numbers that are not known are left out."""
        values = {
            "group": dict(self.group),
            "source": self.source,
            "format": self.format,
            "form": self.form,
            "coefficients": dict(self.coefficients),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "heldout_mape": self.heldout_mape,
            "heldout_mape_by_regime": dict(self.heldout_mape_by_regime),
            "heldout_regions": self.heldout_regions,
            "in_sample_mape": self.in_sample_mape,
            "request_in_context_tokens": _interval(self.exchange_rate),
            "request_in_context_tokens_is": self.exchange_rate_is,
            "fixed_share": _interval(self.fixed_share),
            "rows": self.rows,
            "steps": self.steps,
            "ranks": self.ranks,
            "range": dict(self.range),
            "dropped": {d.reason: d.rows for d in self.dropped},
            "notes": list(self.notes),
            "levels": list(self.levels),
            "convergence": {
                "iterations": self.convergence.iterations,
                "converged": self.convergence.converged,
                "moved": self.convergence.moved,
                "starts": self.convergence.starts,
                "noise": self.convergence.noise,
            },
            "bootstrap": dict(self.bootstrap),
            "candidates": [
                {"form": c.label, "heldout_mape": c.mape, "coefficients": c.coefficients, "chosen": c.chosen}
                for c in self.candidates
            ],
            "extrapolation": [
                {"beyond": e.beyond, "mape": e.mape, "steps": e.steps} for e in self.extrapolation
            ],
            "unidentified": [
                {"coefficient": u.coefficient, "reason": u.reason, "probe": u.probe}
                for u in self.unidentified
            ],
        }
        return values

    def to_dict(self) -> dict[str, Any]:
        """One element of ``fits`` in the JSON of ``equipoise cost fit`` (schema ``equipoise.fit/1``)."""
        return {
            **self.provenance(),
            "cost": to_dict(self.cost),
            "coverage": self.coverage.to_dict(),
            "dropped_where": {d.reason: d.first for d in self.dropped if d.first},
        }

    def with_metadata(self) -> FitResult:
        """The same, the cost carrying the provenance into every file it is saved to."""
        return replace(self, cost=replace(self.cost, metadata={"fit": _known(self.provenance())}))

    def save(self, path: str | Path) -> None:
        """Write ``fit.toml``: a step cost that `equipoise.cost.load` takes, with the provenance in its ``[fit]``.

        Raises
        ------
        CostError
            The file cannot be written.
        """
        save(self.cost, path)


def fits_summary(results: Sequence[FitResult]) -> dict[str, Any]:
    """The JSON of ``equipoise cost fit`` (schema ``equipoise.fit/1``)."""
    return {"schema": SCHEMA, "fits": [r.to_dict() for r in results]}


def _interval(interval: ValueInterval) -> dict[str, float | None]:
    return {
        name: float(v) if math.isfinite(v) else None
        for name, v in zip(interval._fields, interval, strict=True)
    }


def _known(values: Any) -> Any:
    """Without what TOML cannot hold: null."""
    if isinstance(values, dict):
        return {k: _known(v) for k, v in values.items() if v is not None}
    if isinstance(values, list | tuple):
        return [_known(v) for v in values if v is not None]
    return values

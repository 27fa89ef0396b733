"""`Calibration`: a fitted decode cost, completed by its prefill cost and by the knobs that follow from it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from equipoise.calibrate.decode_fit import own_lengths
from equipoise.calibrate.knobs import BLOCK_TOKENS, BestZ, Knobs, knobs
from equipoise.calibrate.prefill_fit import PrefillFit, PrefillTermForm, fit_prefill
from equipoise.calibrate.records import StepRecords
from equipoise.calibrate.result import SCHEMA, FitResult
from equipoise.cost import StepCost, save, to_dict
from equipoise.cost.prefill_files import prefill_to_dict
from equipoise.errors import CalibrationError

if TYPE_CHECKING:
    from equipoise.models.shape import ModelShape

__all__ = ["Calibration", "complete", "schema", "summarize"]

CLEARLY: Final = 0.95
"""A saturating prefill price must bring the held-out error down to this share."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Everything that `equipoise cost fit` has to say of one group.

    Parameters
    ----------
    result : FitResult
        Of the decode steps.
    knobs : Knobs
    prefill : PrefillFit, optional
    prefill_missing : str
        Why there is no prefill cost; empty where there is one, or where the source has no prefill steps.
    z : BestZ, optional
        None where no replay was asked for.
    """

    result: FitResult
    knobs: Knobs
    prefill: PrefillFit | None = None
    prefill_missing: str = ""
    z: BestZ | None = None

    @property
    def cost(self) -> StepCost:
        """Decode and prefill in one cost, all that is known of the fit in its ``metadata["fit"]``."""
        cost = self.result.cost
        about = dict(cost.metadata.get("fit", {}))
        about["knobs"] = self._knobs()
        if self.prefill is not None:
            about["prefill"] = prefill_provenance(self.prefill)
            cost = replace(cost, prefill=self.prefill.cost)
        return replace(cost, metadata={"fit": _known(about)})

    def to_dict(self) -> dict[str, Any]:
        """One element of ``fits`` in the JSON of ``equipoise cost fit``."""
        prefill = None
        if self.prefill is not None:
            prefill = {"cost": prefill_to_dict(self.prefill.cost), **prefill_provenance(self.prefill)}
        values = {**self.result.to_dict(), "prefill": prefill, "knobs": self._knobs()}
        return {**_finite(values), "cost": to_dict(self.cost)}

    def save(self, path: str | Path) -> None:
        """Write ``fit.toml``, whole or not at all.

        Raises
        ------
        CostError
            The file cannot be written.
        """
        save(self.cost, path)

    def _knobs(self) -> dict[str, Any]:
        return {**self.knobs.to_dict(), "dualpath_z": None if self.z is None else self.z.to_dict()}


def complete(
    result: FitResult,
    *,
    block_tokens: int = BLOCK_TOKENS,
    model: str | ModelShape | None = None,
    missing_ranks_are_idle: bool = False,
    seed: int = 0,
) -> Calibration:
    """Complete a decode fit: fit the prefill steps that it left out, and work out the knobs.

    Parameters
    ----------
    result : FitResult
    block_tokens : int
        Tokens of a KV block of the engine.
    model : str or ModelShape, optional
        The model that ran: its top-k and window lengths are tried as bounds of what a prompt token attends to.
    missing_ranks_are_idle : bool
        As for `equipoise.calibrate.fit`.
    seed : int
        Of the bootstrap.
    """
    found, why = None, ""
    if len(result.prefill):
        try:
            lengths = own_lengths(model) if model is not None else ()
            found = _best_prefill(result.prefill, lengths, missing_ranks_are_idle, seed)
        except CalibrationError as error:
            why = f"{error.what}; {error.fix}" if error.fix else error.what
    return Calibration(result, knobs(result, block_tokens), found, why)


def _best_prefill(
    records: StepRecords, lengths: Sequence[int], missing_ranks_are_idle: bool, seed: int
) -> PrefillFit:
    """The plain fit, or one with a saturation that predicts left-out loads clearly better and can all be told."""
    best = fit_prefill(records, missing_ranks_are_idle=missing_ranks_are_idle, seed=seed)
    for length in lengths:
        terms = (PrefillTermForm(saturation_tokens=length),)
        try:
            one = fit_prefill(records, terms=terms, missing_ranks_are_idle=missing_ranks_are_idle, seed=seed)
        except CalibrationError:
            continue
        if not one.unidentified and one.heldout_mape < CLEARLY * best.heldout_mape:
            best = one
    return best


def prefill_provenance(found: PrefillFit) -> dict[str, Any]:
    """How a prefill cost was fitted, as plain data."""
    return {
        "intervals": {name: list(ends) for name, ends in found.intervals.items()},
        "in_sample_mape": found.mape,
        "heldout_mape": found.heldout_mape,
        "heldout_regions": found.held_out,
        "steps": found.steps,
        "rows": found.rows,
        "dropped": {d.reason: d.rows for d in found.dropped},
        "converged": found.converged,
        "unidentified": [
            {"coefficient": u.name, "reason": u.reason, "probe": u.probe} for u in found.unidentified
        ],
    }


def summarize(
    fits: Sequence[Calibration], failed: Sequence[tuple[Mapping[str, Any], str]] = ()
) -> dict[str, Any]:
    """The JSON of ``equipoise cost fit``, as its `schema` has it.

    Parameters
    ----------
    fits : sequence of Calibration
    failed : sequence of (mapping, str)
        Labels of groups that could not be fitted, and why.
    """
    return {
        "schema": SCHEMA,
        "fits": [f.to_dict() for f in fits],
        "failed": [{"group": dict(group), "reason": reason} for group, reason in failed],
    }


@cache
def schema() -> dict[str, Any]:
    """JSON schema of that JSON."""
    text = (files("equipoise.calibrate") / "schemas" / "fit-1.json").read_text("utf-8")
    return dict(json.loads(text))


def _known(values: Any) -> Any:
    """Without what is not known, for TOML has no null."""
    if isinstance(values, Mapping):
        return {k: _known(v) for k, v in values.items() if not _missing(v)}
    if isinstance(values, list | tuple):
        return [_known(v) for v in values if not _missing(v)]
    return values


def _finite(values: Any) -> Any:
    """With null for what is not known, for JSON has no NaN."""
    if isinstance(values, Mapping):
        return {k: _finite(v) for k, v in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(v) for v in values]
    return None if _missing(values) else values


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))

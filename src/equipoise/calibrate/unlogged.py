"""Logs that cannot tell what a request or what context costs: refused with the probe, or fitted without that price."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from equipoise.calibrate.records import StepRecords
from equipoise.calibrate.result import FitResult
from equipoise.calibrate.shapes import CONSTANT
from equipoise.errors import CalibrationError

__all__ = ["lacks_contexts", "refuse_partial", "say_unlogged", "without_contexts"]

REASON = "context lengths are not logged; what they cost is part of the other prices"
PROBE = "log the sum of context lengths of every rank (ForwardPassMetrics has it)"


def lacks_contexts(records: StepRecords) -> bool:
    """Whether no decoding row says how long its contexts are."""
    decoding = records.batch > 0
    return bool(decoding.any() and (records.context_tokens[decoding] < 0).all())


def without_contexts(records: StepRecords) -> StepRecords:
    """The same with contexts of 0 tokens: the fit then finds that their price cannot be told."""
    return replace(records, context_tokens=np.zeros_like(records.context_tokens))


def say_unlogged(result: FitResult) -> FitResult:
    """Name the true reason why context has no price, and drop words about contexts that nobody knows."""
    missing = tuple(
        replace(u, reason=REASON, probe=PROBE) if "context" in u.coefficient else u
        for u in result.unidentified
    )
    by_batch: dict[str, float] = {}
    for name, error in result.heldout_mape_by_regime.items():
        by_batch[name.partition(", context")[0]] = error
    return replace(result, unidentified=missing, heldout_mape_by_regime=by_batch).with_metadata()


def refuse_partial(result: FitResult) -> None:
    """Refuse a fit in which a request or context has no price: a router that believed it would see half of the load.

    Raises
    ------
    CalibrationError
        The message says what to run so that both can be told.
    """
    fitted = [name for name in result.coefficients if name != CONSTANT]
    untold = {u.coefficient: u for u in result.unidentified}
    nothing = math.isnan(result.exchange_rate.value) and all(name in untold for name in fitted)
    request = any(".per_request" in name or ".batch_rise" in name for name in fitted)
    context = any(name.endswith(".per_100k_context") for name in fitted)
    if request and context and not nothing:
        return
    kinds = (".per_request", ".batch_rise") if context or nothing else (".per_100k_context",)
    one = next((u for name, u in untold.items() if any(k in name for k in kinds)), None)
    what = "context" if kinds[0] == ".per_100k_context" else "a request"
    raise CalibrationError(
        f"what {what} costs cannot be told" + (f": {one.reason}" if one else ""),
        where=result.source or None,
        fix=(f"{one.probe}, or " if one else "") + "accept a cost without that price with --partial",
    )

"""A fit in which a request or context has no price: a router that believed it would see half of the load."""

from __future__ import annotations

from equipoise.calibrate.exchange import CONTEXT, REQUEST
from equipoise.calibrate.result import FitResult
from equipoise.errors import CalibrationError

__all__ = ["refuse_partial"]


def refuse_partial(result: FitResult) -> None:
    """Refuse a fit that cannot tell what a request or what context costs, with the probe that would tell.

    Context lengths that are not logged do not count: who reads such a log has said so.

    Raises
    ------
    CalibrationError
        The message says what to run.
    """
    lost = [price for price in result.lost if result.contexts_are_logged or price != CONTEXT]
    if not lost:
        return
    price = REQUEST if REQUEST in lost else CONTEXT
    kinds = (
        (".per_100k_context",) if price == CONTEXT else (".per_request", ".batch_rise", ".per_extra_query")
    )
    one = next((u for u in result.unidentified if any(k in u.coefficient for k in kinds)), None)
    raise CalibrationError(
        f"what {'a request' if price == REQUEST else price} costs cannot be told"
        + (f": {one.reason}" if one else ""),
        where=result.source or None,
        fix=(f"{one.probe}, or " if one else "") + "accept a cost without that price with --partial",
    )

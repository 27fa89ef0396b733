"""The exchange rate of a form: what a request and what context cost, and whether columns taken out left that open.

Both prices are linear in the coefficients. A column d that is a combination of others, ``d = sum s_k k``, can go: its
price then sits in theirs. A sum of prices with factors c is still known where ``c_d = sum s_k c_k``, which is how the
price of a request survives when of two columns per request only the sum can be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from equipoise.calibrate.shapes import PER_UNIT, Form
from equipoise.types import Floats

__all__ = ["CONTEXT", "PRICES", "REQUEST", "exchange_rate", "factors", "left_open"]

REQUEST: Final = "request"
CONTEXT: Final = "context"
PRICES: Final = (REQUEST, CONTEXT)

SAME: Final = 1e-3
"""Relative difference below which a sum of prices is the same sum."""


def factors(form: Form, extra_queries_per_request: float) -> Mapping[str, Floats]:
    """For the price of a request (past every saturation length) and of 100k context tokens: a factor a coefficient."""
    request, context = np.zeros(form.columns), np.zeros(form.columns)
    for term, at in zip(form.terms, form.offsets(), strict=True):
        batch = term.batch.columns
        if batch:
            request[at : at + batch] = [term.batch.slope(one) for one in np.eye(batch)]
        at += batch
        if term.context:
            context[at] = 1.0
            at += 1
        if term.saturation_tokens:
            request[at] = term.saturation_tokens / PER_UNIT
            at += 1
        if term.queries:
            request[at] = extra_queries_per_request
    return {REQUEST: request, CONTEXT: context}


def exchange_rate(form: Form, theta: Floats, extra_queries_per_request: float) -> float:
    """Context tokens that cost as much as one more request; inf where context is free, NaN where both are.

    As `StepCost.request_in_context_tokens`; the request is one past every saturation length.
    """
    factor = factors(form, extra_queries_per_request)
    request, context = float(factor[REQUEST] @ theta), float(factor[CONTEXT] @ theta)
    if context > 0:
        return request / context * PER_UNIT
    return float("inf") if request > 0 else float("nan")


def left_open(factor: Mapping[str, Floats], column: int, share: Mapping[int, float]) -> frozenset[str]:
    """Which of the two prices is no longer known when a column goes that is a combination of others.

    Parameters
    ----------
    factor : mapping
        As `factors` gives it.
    column : int
        The column that goes.
    share : mapping of int to float
        Of each other column, how much of it the column is made of; none: the column is 0 everywhere.
    """
    lost = set()
    for name in PRICES:
        own = factor[name][column]
        others = [s * factor[name][k] for k, s in share.items()]
        size = abs(own) + sum(map(abs, others))
        if abs(own - sum(others)) > SAME * size:
            lost.add(name)
    return frozenset(lost)

"""What prefill steps cannot tell apart: named, with the reason and the load that would tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from equipoise.calibrate.bootstrap import sandwich
from equipoise.calibrate.bottleneck import BottleneckFit, Problem
from equipoise.calibrate.shapes import CONSTANT
from equipoise.types import Floats

__all__ = ["Unidentified", "not_identified"]

COLLINEAR: Final = 1e-5
"""Share of a column's square that the other columns leave over, below which it has no direction of its own."""

LARGEST_DOUBT: Final = 0.1
"""Standard error of what a coefficient adds to a step, as a share of the step's time, above which it is a guess."""

ALIKE: Final = 0.02
"""Relative spread below which a load counts as the same in every step."""


@dataclass(frozen=True, slots=True)
class Unidentified:
    """A coefficient that the data do not determine.

    Parameters
    ----------
    name : str
    reason : str
    probe : str
        What to run so that it is determined.
    dropped : bool
        Left out of the fit, its price 0: it could not be told from the others at all.
    """

    name: str
    reason: str
    probe: str
    dropped: bool = False


def not_identified(problem: Problem, fit: BottleneckFit) -> tuple[tuple[Unidentified, ...], tuple[str, ...]]:
    """Coefficients that cannot be told from others, or only with a large error.

    Returns
    -------
    found : tuple of Unidentified
    collinear : tuple of str
        Names, in the fitter's words, of those that have no direction of their own.
    """
    names = problem.form.names
    weight = problem.samples.weight / problem.samples.time_us**2
    gram, _ = problem.normal_equations(fit.row, weight)
    left = _left_over(gram)
    doubt = np.sqrt(
        np.maximum(np.diag(sandwich(problem, fit)), 0) * np.diag(gram) / problem.samples.weight.sum()
    )
    collinear = tuple(n for n, share in zip(names, left, strict=True) if share < COLLINEAR)
    found = [
        _explained(problem, fit, name)
        for name, share, error in zip(names, left, doubt, strict=True)
        if share < COLLINEAR or error > LARGEST_DOUBT
    ]
    return tuple(found), collinear


def _left_over(gram: Floats) -> Floats:
    """Share of each column's square that a combination of the others does not reach; 0 for a column of zeros."""
    length = np.sqrt(np.diag(gram))
    G = gram / np.outer(np.where(length > 0, length, 1.0), np.where(length > 0, length, 1.0))
    left = np.zeros(len(G))
    for j in np.flatnonzero(length > 0):
        others = np.delete(np.arange(len(G)), j)
        b = G[others, j]
        left[j] = 1 - b @ np.linalg.pinv(G[np.ix_(others, others)], rcond=1e-12, hermitian=True) @ b
    return np.maximum(left, 0.0)


def _explained(problem: Problem, fit: BottleneckFit, name: str) -> Unidentified:
    """Find out what makes a coefficient look like another."""
    terms, samples = problem.form.terms, problem.samples
    t = next((i for i, term in enumerate(terms) if name in term.names()), 0)
    rows = fit.row[t]
    tokens, pairs = samples.batch[rows].astype(np.float64), samples.context[rows]
    keys = pairs / tokens
    length = terms[t].saturation_tokens
    bounded = problem.saturated[rows] if length else pairs
    kind = name.rpartition(".")[2]
    same_tokens, same_keys = _spread(tokens) < ALIKE, _spread(keys) < ALIKE
    if kind in (CONSTANT, "per_request") and same_tokens:
        size = float(tokens.mean())
        reason = f"every step computes about {size:,.0f} prompt tokens on its slowest rank"
        return Unidentified(name, reason, f"steps of at most {max(size / 4, 1):,.0f} prompt tokens a rank")
    if kind in ("per_request", "per_100k_context") and same_keys:
        mean = float(keys.mean())
        reason = f"every prompt token attends to about {mean:,.0f} keys, so tokens and pairs grow together"
        return Unidentified(
            name, reason, f"chunks behind a cached prefix of {8 * mean:,.0f} tokens beside chunks behind none"
        )
    if length and kind != CONSTANT and _spread(bounded - pairs, pairs) < ALIKE:
        reason = f"hardly a query has more than {length:,} keys, so the bound takes nothing off"
        return Unidentified(name, reason, f"chunks behind a cached prefix of {4 * length:,} tokens")
    if (
        length
        and kind in ("per_request", f"per_100k_saturated_{length}")
        and _spread(bounded / tokens) < ALIKE
    ):
        reason = f"nearly every query has more than {length:,} keys, so bounded pairs grow with the tokens"
        return Unidentified(
            name, reason, f"prompts of at most {max(length // 2, 1):,} tokens from their start"
        )
    if len(terms) > 1 and (fit.row == fit.row[0]).all():
        reason = "the same rank is slowest in all terms of every step"
        return Unidentified(
            name, reason, "a step with one long prompt on a rank and many short ones on another"
        )
    probe = "short chunks behind long cached prefixes, and long chunks behind none"
    return Unidentified(name, "it moves together with the other loads, or is small beside the noise", probe)


def _spread(values: Floats, of: Floats | None = None) -> float:
    """Standard deviation, or root mean square of a difference, over the mean."""
    if of is not None:
        return float(np.sqrt((values**2).mean()) / max(float(of.mean()), 1e-300))
    return float(values.std() / max(float(values.mean()), 1e-300))

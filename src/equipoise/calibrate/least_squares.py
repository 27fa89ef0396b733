"""Non-negative least squares from normal equations, the form in which blocks of steps add up."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from equipoise.types import Floats

__all__ = ["nonnegative", "nonnegative_many", "scales"]

RIDGE = 1e-12
"""Relative; keeps a singular design solvable. What it decides is named as not identified elsewhere."""


def scales(gram: Floats) -> Floats:
    """Length of each column; 1 for a column of zeros."""
    length = np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))
    return np.asarray(np.where(length > 0, length, 1.0))


def nonnegative(gram: Floats, moment: Floats) -> Floats:
    """Minimise x' gram x / 2 - moment' x over x >= 0.

    Parameters
    ----------
    gram : float64[p, p]
        X'WX.
    moment : float64[p]
        X'Wy.
    """
    length = scales(gram)
    G = gram / np.outer(length, length)
    h = moment / length
    G = G + RIDGE * np.eye(len(h))
    try:
        x = np.linalg.solve(G, h)
        if (x >= 0).all():
            return np.asarray(x / length)
        lower = np.linalg.cholesky(G)
        root, target = lower.T, np.linalg.solve(lower, h)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(G)
        kept = values > 1e-14 * values[-1]
        root = np.sqrt(values[kept])[:, None] * vectors[:, kept].T
        target = (vectors[:, kept].T @ h) / np.sqrt(values[kept])
    x, _ = nnls(root, target, maxiter=50 * len(h))
    return np.asarray(x / length)


def nonnegative_many(grams: Floats, moments: Floats) -> Floats:
    """`nonnegative` for many problems at once; only those that need the bound are solved one by one.

    Parameters
    ----------
    grams : float64[n, p, p]
    moments : float64[n, p]
    """
    length = scales(grams)
    G = grams / (length[:, :, None] * length[:, None, :]) + RIDGE * np.eye(grams.shape[-1])
    try:
        x = np.linalg.solve(G, (moments / length)[:, :, None])[:, :, 0] / length
    except np.linalg.LinAlgError:
        x = np.full(moments.shape, -1.0)
    for i in np.flatnonzero(~(x >= 0).all(axis=1)):
        x[i] = nonnegative(grams[i], moments[i])
    return np.asarray(x)

"""Distributions of a preset file as quantile functions: a uniform number in, a length or a time out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from equipoise.types import Floats, Ints

__all__ = ["Distribution", "distribution", "tokens"]

GRID = 1 << 16
"""Cells of probability for means and for length-biased draws."""


@dataclass(frozen=True)
class Distribution:
    """A quantile function, with the two things a queue needs of it.

    Parameters
    ----------
    quantile : callable
        float64[...] of probabilities in (0, 1) to values. For a mixture it need not rise: each part has an interval.
    """

    quantile: Callable[[Floats], Floats]

    def __call__(self, u: Floats) -> Floats:
        """Values at probabilities ``u``."""
        return self.quantile(u)

    @cached_property
    def mean(self) -> float:
        """Expected value, by the midpoint rule on `GRID` cells."""
        return float(self._grid_values.mean())

    def length_biased(self, u: Floats) -> Floats:
        """Draws weighted by their own value: what a look at a random moment finds (inspection paradox)."""
        return self._grid_values[np.searchsorted(self._grid_shares, u)]

    @cached_property
    def _grid_values(self) -> Floats:
        return self.quantile((np.arange(GRID) + 0.5) / GRID)

    @cached_property
    def _grid_shares(self) -> Floats:
        shares = np.cumsum(self._grid_values)
        shares /= shares[-1]
        shares[-1] = 1.0
        return shares


def tokens(lengths: Floats) -> Ints:
    """Lengths as whole tokens, at least 1."""
    whole: NDArray[np.int64] = np.maximum(np.rint(lengths), 1).astype(np.int64)
    return whole


def distribution(table: Mapping[str, Any]) -> Distribution:
    """Build a distribution from its table in a preset file.

    - ``{kind = "lognormal", mu, sigma}``: exp(normal(mu, sigma)). With ``tail_from`` and ``tail_alpha`` the part above
      ``tail_from`` follows a Pareto law of that exponent instead. ``high`` clips.
    - ``{kind = "normal", mean, sd, low, high}``: cut to [low, high] (values outside are drawn again).
    - ``{kind = "uniform", low, high}``, ``{kind = "constant", value}``.
    - ``{kind = "mixture", parts = [...]}``: each part has a ``share``; the shares sum to 1.
    """
    return Distribution(_KINDS[table["kind"]](table))


def _lognormal(table: Mapping[str, Any]) -> Callable[[Floats], Floats]:
    mu, sigma, high = table["mu"], table["sigma"], table.get("high", np.inf)
    if "tail_from" not in table:
        return lambda u: np.minimum(np.exp(mu + sigma * ndtri(u)), high)
    start, alpha = table["tail_from"], table["tail_alpha"]
    above = float(ndtr((mu - np.log(start)) / sigma))  # share of the body beyond the start of the tail

    def quantile(u: Floats) -> Floats:
        x = np.exp(mu + sigma * ndtri(u))
        tail = x > start
        x[tail] = start * (above / (1.0 - u[tail])) ** (1.0 / alpha)
        clipped: Floats = np.minimum(x, high)
        return clipped

    return quantile


def _normal(table: Mapping[str, Any]) -> Callable[[Floats], Floats]:
    mean, sd = table["mean"], table["sd"]
    low, high = (float(ndtr((table[end] - mean) / sd)) for end in ("low", "high"))
    return lambda u: mean + sd * ndtri(low + u * (high - low))


def _uniform(table: Mapping[str, Any]) -> Callable[[Floats], Floats]:
    low, high = table["low"], table["high"]
    return lambda u: low + u * (high - low)


def _constant(table: Mapping[str, Any]) -> Callable[[Floats], Floats]:
    return lambda u: np.full(np.shape(u), float(table["value"]))


def _mixture(table: Mapping[str, Any]) -> Callable[[Floats], Floats]:
    parts = [distribution(part) for part in table["parts"]]
    ends = np.cumsum([part["share"] for part in table["parts"]])
    if abs(ends[-1] - 1) > 1e-9:
        raise ValueError(f"the shares of a mixture sum to {ends[-1]}")
    begins = np.r_[0.0, ends[:-1]]

    def quantile(u: Floats) -> Floats:
        which = np.minimum(np.searchsorted(ends, u), len(parts) - 1)
        values = np.empty(np.shape(u))
        for i, part in enumerate(parts):
            mine = which == i
            # inside its interval, u is uniform again; the clip keeps rounding out of 0 and 1
            inner = (u[mine] - begins[i]) / (ends[i] - begins[i])
            values[mine] = part(np.clip(inner, 2.0**-54, 1 - 2.0**-53))
        return values

    return quantile


_KINDS: dict[str, Callable[[Mapping[str, Any]], Callable[[Floats], Floats]]] = {
    "lognormal": _lognormal,
    "normal": _normal,
    "uniform": _uniform,
    "constant": _constant,
    "mixture": _mixture,
}

"""Attended (query, key) pairs of a prompt's chunk, counted exactly.

The token at position p of a prompt (from 1) attends to p keys, its own among them. A chunk of t tokens behind an
offset of o earlier ones holds the positions o + 1 ... o + t. Of work that stops growing at L keys (top-k, window) a
position pays min(p, L). With ``F(n) = sum over p = 1 ... n of min(p, L)``::

    F(n) = m (m + 1) / 2 + (n - m) L      m = min(n, L)
    pairs of the chunk = F(o + t) - F(o)                  no bound: t o + t (t + 1) / 2
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from equipoise.errors import CostError
from equipoise.types import Ints

__all__ = ["MAX_POSITION", "counts", "pairs", "saturated_pairs"]

MAX_POSITION: Final = 2**31 - 1
"""Last position of a prompt that is counted: n (n + 1) then stays below 2**62, and fits int64."""


def counts(name: str, values: ArrayLike, high: int = MAX_POSITION) -> Ints:
    """Whole numbers from 0 to `high` as int64.

    Raises
    ------
    CostError
        Anything else, floats with a fraction among them.
    """
    try:
        given = np.asarray(values)
    except ValueError:  # rows of different lengths
        raise CostError(f"{name} is ragged", fix="give an array; pad chunks with 0 tokens") from None
    if given.dtype == bool or not np.issubdtype(given.dtype, np.number) or given.dtype.kind == "c":
        raise CostError(f"{name} is of type {given.dtype}", fix="give whole numbers")
    # Comparisons also catch NaN, and floats beyond int64, before the cast.
    if given.size and not ((given >= 0) & (given <= high)).all():
        bad = given[~((given >= 0) & (given <= high))].flat[0]
        raise CostError(f"{name} = {bad}", fix=f"must be from 0 to {high}")
    whole = given.astype(np.int64)
    if given.dtype.kind == "f" and not (whole == given).all():
        raise CostError(f"{name} = {given[whole != given].flat[0]}", fix="must be a whole number")
    return whole


def _span(offset: ArrayLike, tokens: ArrayLike) -> tuple[Ints, Ints]:
    """First position minus one and last position of each chunk."""
    first, size = counts("offset", offset), counts("tokens", tokens)
    try:
        last = first + size  # both below 2**31: their sum is exact
    except ValueError:
        what = f"offset has shape {first.shape} and tokens {size.shape}"
        raise CostError(what, fix="the shapes must broadcast") from None
    if last.size and last.max() > MAX_POSITION:
        raise CostError(f"offset + tokens = {last.max()}", fix=f"must be at most {MAX_POSITION}")
    return first, last


def pairs(offset: ArrayLike, tokens: ArrayLike) -> Ints:
    """Attended pairs of chunks: ``tokens * offset + tokens * (tokens + 1) / 2``.

    Parameters
    ----------
    offset, tokens : int64[...]
        Tokens of the prompt before the chunk (cached or done), and in it. They broadcast.

    Returns
    -------
    int64[...]
        Exact: ``offset + tokens`` may be up to 2**31 - 1.

    Raises
    ------
    CostError
        Negative or fractional counts, or a position beyond 2**31 - 1.

    Examples
    --------
    >>> int(pairs(0, 4)), int(pairs(4, 2)), int(pairs(0, 6))
    (10, 11, 21)
    """
    first, last = _span(offset, tokens)
    return np.asarray(last * (last + 1) // 2 - first * (first + 1) // 2)


def saturated_pairs(offset: ArrayLike, tokens: ArrayLike, length: ArrayLike) -> Ints:
    """Attended pairs of chunks where a query reads at most `length` keys: sum of min(position, length).

    Parameters
    ----------
    offset, tokens : int64[...]
        As in `pairs`.
    length : int64[...]
        Saturation lengths in tokens; they broadcast.

    Raises
    ------
    CostError
        As `pairs`; also a `length` below 0 or beyond 2**31 - 1.

    Examples
    --------
    >>> [int(saturated_pairs(o, 3, 4)) for o in (0, 2, 4)]  # 1 + 2 + 3, 3 + 4 + 4, 4 + 4 + 4
    [6, 11, 12]
    """
    first, last = _span(offset, tokens)
    bound = counts("length", length)
    try:
        return np.asarray(_reads_to(last, bound) - _reads_to(first, bound))
    except ValueError:
        what = f"length has shape {bound.shape} and the chunks {last.shape}"
        raise CostError(what, fix="the shapes must broadcast") from None


def _reads_to(position: Ints, bound: Ints) -> Ints:
    within = np.minimum(position, bound)
    return np.asarray(within * (within + 1) // 2 + (position - within) * bound)

"""Requests by class: by length, by turn, or by labels of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import InputError
from equipoise.fleet.metrics import RequestMetrics, measure, need_requests

if TYPE_CHECKING:
    from equipoise.fleet.result import FleetResult

__all__ = ["BOUNDS", "By", "by_class", "classes"]

By = Literal["context", "output", "turn"]
BOUNDS: Mapping[str, tuple[int, ...]] = {
    "context": (8_000, 32_000, 128_000),
    "output": (256, 1_024, 4_096),
}
"""Where classes by length begin, in tokens, unless said otherwise."""


def by_class(
    result: FleetResult, by: By | ArrayLike, bounds: Sequence[int] | None = None
) -> dict[str, RequestMetrics]:
    """Measure class by class.

    Parameters
    ----------
    result : FleetResult
    by : {"context", "output", "turn"} or array of labels
        ``context``, ``output``: by length, in tokens. ``turn``: first turns and later ones. An array: one label a
        request, in the order of the trace.
    bounds : sequence of int, optional
        Lengths at which a class begins, beside 0; `BOUNDS` by default.

    Returns
    -------
    dict
        By label, in order of length, or of the labels. A class without a counted request is there, with nothing in it.

    Raises
    ------
    InputError
        Requests were not kept; a word that is none of these; bounds that do not rise; labels of another number.
    """
    need_requests(result)
    position, names = classes(result, by, bounds)
    return {name: measure(result, position == i) for i, name in enumerate(names)}


def classes(
    result: FleetResult, by: By | ArrayLike, bounds: Sequence[int] | None = None
) -> tuple[NDArray[np.int64], list[str]]:
    """Class of each request, as a position in the names of the classes."""
    if isinstance(by, str):
        if by not in get_args(By):
            raise InputError(
                f"by = {by!r}", fix=f"use one of {', '.join(get_args(By))}, or give a label for each request"
            )
        if by == "turn":
            return np.minimum(result.turn, 1).astype(np.int64), ["first turn", "later turns"]
        edges = [int(b) for b in (BOUNDS[by] if bounds is None else bounds)]
        if not edges or edges[0] < 1 or any(b <= a for a, b in pairwise(edges)):
            raise InputError(f"bounds = {edges}", fix="give lengths above 0 that rise")
        lengths = result.context_tokens if by == "context" else result.output_tokens
        return np.searchsorted(edges, lengths, side="right").astype(np.int64), _spans(edges)
    labels = np.asarray(by)
    if labels.shape != (len(result.context_tokens),):
        raise InputError(
            f"labels of shape {labels.shape}",
            fix=f"give one for each of {len(result.context_tokens)} requests",
        )
    if labels.dtype == object:
        labels = labels.astype(str)  # labels of several types have no order
    names, position = np.unique(labels, return_inverse=True)
    return position, [str(n) for n in names]


def _spans(edges: list[int]) -> list[str]:
    words = [f"{e // 1000}k" if e % 1000 == 0 else str(e) for e in edges]
    return [f"{a}-{b}" for a, b in zip(["0", *words], words, strict=False)] + [f"{words[-1]}+"]

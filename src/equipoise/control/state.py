"""What the allocator sees of the ranks: contexts and survivals of one step, with the step's number on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise.errors import InputError
from equipoise.types import Ints

__all__ = ["MOST_DRAFTS", "RankDrafts", "Snapshot", "Survivals"]

MOST_DRAFTS = 64
"""Draft positions a request may have."""

MOST_CONTEXT = 2**31 - 1
MOST_REQUESTS = 2**20

Survivals = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RankDrafts:
    """The requests of one rank, as they stood at one step.

    Parameters
    ----------
    context_tokens : int64[requests]
        Context of each, in tokens.
    survival : float32[requests, drafts]
        Probability that the drafts 1 ... j are all accepted; never rising along a row.
    step : int
        The step whose drafts these survivals were computed for.
    """

    context_tokens: ArrayLike
    survival: ArrayLike
    step: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All ranks of an instance as they stood at one step, one request a row, rank after rank.

    Parameters
    ----------
    context_tokens : int64[requests]
        Context of each, in tokens.
    survival : float32[requests, drafts]
        Probability that the drafts 1 ... j of a request are all accepted; never rising along a row.
    first : int64[ranks + 1]
        Rank ``r`` has the rows ``first[r]`` to ``first[r + 1] - 1``.
    step : int
        The step it was taken at.

    Raises
    ------
    InputError
        Shapes that do not match, counts or probabilities out of bounds, a survival that rises.
    """

    context_tokens: Ints
    survival: Survivals
    first: Ints
    step: int = 0

    def __post_init__(self) -> None:
        context = _whole("context_tokens", self.context_tokens, 0, MOST_CONTEXT)
        first = _whole("first", self.first, 0, MOST_REQUESTS)
        survival = _survivals(self.survival)
        if context.ndim != 1 or survival.ndim != 2 or len(survival) != len(context):
            raise InputError(
                f"context_tokens has shape {context.shape} and survival {survival.shape}",
                fix="they must be [requests] and [requests, drafts]",
            )
        if first.ndim != 1 or len(first) < 2 or first[0] != 0 or first[-1] != len(context):
            raise InputError(
                f"first = {first.tolist()[:8]} for {len(context)} requests",
                fix="it must begin at 0, end at the number of requests, and have one entry more than ranks",
            )
        if (np.diff(first) < 0).any():
            raise InputError("first falls", fix="give the first row of each rank, in order")
        if survival.shape[1] > MOST_DRAFTS:
            raise InputError(f"{survival.shape[1]} drafts", fix=f"at most {MOST_DRAFTS}")
        object.__setattr__(self, "context_tokens", context)
        object.__setattr__(self, "survival", survival)
        object.__setattr__(self, "first", first)
        check_step("step", self.step)

    @property
    def ranks(self) -> int:
        """Ranks of the instance."""
        return len(self.first) - 1

    @property
    def drafts(self) -> int:
        """Draft positions of a request."""
        return int(self.survival.shape[1])

    @classmethod
    def of(cls, ranks: Sequence[RankDrafts]) -> Snapshot:
        """Put the ranks of an instance together.

        Raises
        ------
        InputError
            No rank, ranks of different steps or numbers of drafts, or what `Snapshot` refuses.
        """
        if not ranks:
            raise InputError("no rank", fix="give at least one")
        steps = {rank.step for rank in ranks}
        if len(steps) > 1:
            raise InputError(
                f"ranks of the steps {', '.join(map(str, sorted(steps)))}",
                fix="all must be of one step: take the latest that every rank has",
            )
        contexts = [_whole("context_tokens", rank.context_tokens, 0, MOST_CONTEXT) for rank in ranks]
        survivals = [_rows(rank.survival, len(c)) for rank, c in zip(ranks, contexts, strict=True)]
        width = max(s.shape[1] for s in survivals)
        for i, (s, c) in enumerate(zip(survivals, contexts, strict=True)):
            if len(c) and s.shape[1] != width:
                raise InputError(
                    f"rank {i} has {s.shape[1]} drafts, another {width}", fix="pad with survivals of 0"
                )
        survivals = [s if len(s) else np.zeros((0, width), dtype=np.float32) for s in survivals]
        first = np.concatenate([[0], np.cumsum([len(c) for c in contexts])]).astype(np.int64)
        return cls(np.concatenate(contexts), np.concatenate(survivals), first, ranks[0].step)

    def rank(self, rank: int) -> RankDrafts:
        """One rank's own part."""
        rows = slice(int(self.first[rank]), int(self.first[rank + 1]))
        return RankDrafts(self.context_tokens[rows], self.survival[rows], self.step)


def check_step(name: str, value: Any) -> int:
    """A step's number."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**62:
        raise InputError(f"{name} = {value!r}", fix="must be a whole number from 0")
    return int(value)


def _whole(name: str, values: Any, low: int, high: int) -> Ints:
    # What a well-behaved engine hands over costs two comparisons; everything else is looked at closely.
    plain = type(values) is np.ndarray and values.dtype == np.int64 and values.flags.c_contiguous
    if plain and (not values.size or (values.min() >= low and values.max() <= high)):
        return values
    try:
        given = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} is ragged", fix="give an array") from None
    if given.size == 0:
        return np.zeros(given.shape, dtype=np.int64)
    if given.dtype.kind not in "iuf":
        raise InputError(f"{name} is of type {given.dtype}", fix="give whole numbers")
    bad = ~((given >= low) & (given <= high) & (given == np.floor(given)))
    if bad.any():
        raise InputError(f"{name} = {given[bad].flat[0]}", fix=f"must be a whole number from {low} to {high}")
    return np.ascontiguousarray(given, dtype=np.int64)


def _survivals(values: Any) -> Survivals:
    try:
        given = np.asarray(values)
    except ValueError:
        raise InputError("survival is ragged", fix="give an array; pad with survivals of 0") from None
    if given.size and given.dtype.kind not in "iuf":
        raise InputError(f"survival is of type {given.dtype}", fix="give probabilities")
    return np.ascontiguousarray(given, dtype=np.float32)


def _rows(values: Any, requests: int) -> Survivals:
    given = _survivals(values)
    if requests == 0:
        return given.reshape(0, given.shape[1] if given.ndim == 2 else 0)
    if given.ndim != 2 or len(given) != requests:
        raise InputError(
            f"survival has shape {given.shape} for {requests} requests", fix="it must be [requests, drafts]"
        )
    return given

"""Prefill chunks: how many prompt tokens each rank takes, so that all take equally long.

A chunk of t tokens behind o earlier ones costs ``per_token * t + per_pair * (t o + t (t + 1) / 2)``
(`equipoise.cost.pairs`), so equal chunks of unequal prompts take unequal times. A rank takes its prompts in order,
whole ones while they fit, then the part that still does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise.cost.attended import MAX_POSITION, counts
from equipoise.cost.prefill import PrefillCost, PrefillPrices
from equipoise.cost.prefill_evaluate import chunk_work
from equipoise.errors import InputError
from equipoise.types import Floats, Ints

__all__ = ["ChunkPlan", "Prompts", "chunks_for_budget", "chunks_for_time"]


@dataclass(frozen=True, slots=True)
class Prompts:
    """What waits on one rank, in the order it is taken.

    Parameters
    ----------
    offset_tokens : int64[prompts]
        Tokens of each prompt that are cached or done.
    length_tokens : int64[prompts]
        Tokens of it that are still to do.
    """

    offset_tokens: ArrayLike
    length_tokens: ArrayLike


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Chunks of one step.

    Parameters
    ----------
    chunks : list of int64[prompts]
        Tokens taken of each prompt, rank by rank.
    work : float64[ranks]
        Each rank's own time for them, the step's constant left out.
    """

    chunks: list[Ints]
    work: Floats

    @property
    def tokens(self) -> Ints:
        """int64[ranks], tokens of each rank."""
        return np.array([int(c.sum()) for c in self.chunks], dtype=np.int64)


def chunks_for_time(
    ranks: Sequence[Prompts],
    price: PrefillCost,
    target: float,
    most_tokens: int | None = None,
    multiple: int = 1,
) -> ChunkPlan:
    """As many tokens as fit into a time, on every rank.

    Parameters
    ----------
    ranks : sequence of Prompts
    price : PrefillCost
    target : float
        Time each rank may take, in the price's unit, the step's constant left out.
    most_tokens : int, optional
        Tokens a rank may take.
    multiple : int
        A part of a prompt is a multiple of so many tokens (a KV page); the end of a prompt may be any.

    Returns
    -------
    ChunkPlan
        No rank above the target, and none that could take `multiple` more tokens.

    Raises
    ------
    InputError
        A target that is negative or no number, senseless prompts or bounds.
    """
    if not target >= 0:
        raise InputError(f"target = {target}", fix="must be 0 or more")
    queues, prices = [_queue(p, r) for r, p in enumerate(ranks)], price.prices()
    most = _bound("most_tokens", most_tokens, 0)
    chunks = [_take(prices, queue, target, most, _bound("multiple", multiple, 1)) for queue in queues]
    return _plan(prices, queues, chunks)


def chunks_for_budget(
    ranks: Sequence[Prompts],
    price: PrefillCost,
    budget_tokens: int,
    most_tokens: int | None = None,
) -> ChunkPlan:
    """So many tokens in all, spread so that the slowest rank is as fast as can be.

    The common time is found by halving; what it leaves of the budget goes, token by token, to whoever is then fastest.

    Parameters
    ----------
    ranks : sequence of Prompts
    price : PrefillCost
    budget_tokens : int
        Tokens of all ranks together; fewer if fewer wait.
    most_tokens : int, optional
        Tokens a rank may take.

    Returns
    -------
    ChunkPlan
    """
    budget = _bound("budget_tokens", budget_tokens, 0)
    most = _bound("most_tokens", most_tokens, 0)
    queues, prices = [_queue(p, r) for r, p in enumerate(ranks)], price.prices()
    if not queues:
        return ChunkPlan([], np.zeros(0))

    def at(time: float) -> list[Ints]:
        return [_take(prices, queue, time, most, 1) for queue in queues]

    def total(chunks: list[Ints]) -> int:
        return sum(int(c.sum()) for c in chunks)

    everything = at(np.inf)
    if total(everything) <= budget:
        return _plan(prices, queues, everything)
    low, high = 0.0, float(_plan(prices, queues, everything).work.max())
    for _ in range(200):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if total(at(middle)) <= budget else (low, middle)
    chunks = at(low)
    # At `high` the total is above the budget and no rank is slower: the missing tokens are among those.
    for r, more in enumerate(at(high)):
        missing = budget - total(chunks)
        for i in range(len(more)):
            step = min(missing, int(more[i] - chunks[r][i]))
            chunks[r][i] += step
            missing -= step
    return _plan(prices, queues, chunks)


Queue = tuple[Ints, Ints]


def _queue(prompts: Prompts, rank: int) -> Queue:
    offset = counts(f"offset_tokens of rank {rank}", prompts.offset_tokens)
    length = counts(f"length_tokens of rank {rank}", prompts.length_tokens)
    if offset.ndim != 1 or offset.shape != length.shape:
        raise InputError(
            f"rank {rank}: offset_tokens has shape {offset.shape} and length_tokens {length.shape}",
            fix="both must be [prompts]",
        )
    if len(offset) and int((offset + length).max()) > MAX_POSITION:
        raise InputError(f"rank {rank}: a prompt ends behind token {MAX_POSITION}", fix="shorten it")
    return offset, length


def _bound(name: str, value: int | None, low: int) -> int:
    if value is None:
        return 2**62
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value < 2**62:
        raise InputError(f"{name} = {value!r}", fix=f"must be a whole number from {low}")
    return int(value)


def _time(prices: PrefillPrices, offset: int, tokens: int) -> float:
    return sum(float(chunk_work(prices, t, offset, tokens)) for t in range(len(prices.token)))


def _take(prices: PrefillPrices, queue: Queue, target: float, most: int, multiple: int) -> Ints:
    """One rank's chunks within a time: exact to a token, by halving."""
    taken = np.zeros(len(queue[0]), dtype=np.int64)
    spent = 0.0
    for i, (offset, length) in enumerate(zip(queue[0].tolist(), queue[1].tolist(), strict=True)):
        if min(length, most) == length and spent + _time(prices, offset, length) <= target:
            taken[i] = length
        else:
            low, high = 0, min(length, most) // multiple
            while low < high:
                middle = (low + high + 1) // 2
                if spent + _time(prices, offset, middle * multiple) <= target:
                    low = middle
                else:
                    high = middle - 1
            taken[i] = low * multiple
        most -= int(taken[i])
        spent += _time(prices, offset, int(taken[i]))
        if taken[i] < length:
            break
    return taken


def _plan(prices: PrefillPrices, queues: list[Queue], chunks: list[Ints]) -> ChunkPlan:
    work = [
        sum(_time(prices, int(o), int(c)) for o, c in zip(queue[0], mine, strict=True) if c)
        for queue, mine in zip(queues, chunks, strict=True)
    ]
    return ChunkPlan(chunks, np.array(work, dtype=np.float64))

"""Filling a box: the requests of a round, heaviest first, each to the fullest rank that stays within two limits.

A box is a cap on the batch of a rank and a limit on its weight. Best fit by decreasing weight is the classic rule for
packing bins: small requests close gaps that nothing else fits, and ranks with much room stay open for large ones.
"""

from __future__ import annotations

from typing import NamedTuple

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, RANK_BITS, RANK_MASK, STAY
from equipoise.types import Ints, Ints2D, Prices, Requests

__all__ = ["Asked", "Load", "copy_load", "empty", "fill", "fullest", "lightest_below", "take"]


class Load(NamedTuple):
    """What each rank holds, and what still fits; weights are below 2**47 (`RANK_BITS`)."""

    batch: Ints
    context_tokens: Ints
    saturated_tokens: Ints2D
    free_tokens: Ints
    free_slots: Ints
    weight: Ints


class Asked(NamedTuple):
    """The requests of a round."""

    order: Ints
    """Positions, in the order in which they are placed."""
    weight: Ints
    patient: Ints
    """1 where a request may wait on if it does not fit into the box."""


@jitable
def copy_load(load: Load) -> Load:
    """The same, in arrays of its own."""
    return Load(
        load.batch.copy(),
        load.context_tokens.copy(),
        load.saturated_tokens.copy(),
        load.free_tokens.copy(),
        load.free_slots.copy(),
        load.weight.copy(),
    )


@jitable
def fullest(load: Load, cap: int, most: int, reserve_tokens: int) -> int:
    """The heaviest rank of at most so much weight, with room and a batch below the cap; -1: none; ties: the lowest."""
    best = -1
    for r in range(len(load.batch)):
        inside = (load.free_tokens[r] >= reserve_tokens) & (load.batch[r] < cap) & (load.weight[r] <= most)
        best = max(best, (load.weight[r] << RANK_BITS) + RANK_MASK - r if inside else -1)
    return STAY if best == -1 else RANK_MASK - (best & RANK_MASK)


@jitable
def lightest(load: Load, cap: int, reserve_tokens: int) -> int:
    """The lightest rank with room and a batch below the cap; -1: none; ties: the lowest."""
    best = NO_LIMIT
    for r in range(len(load.batch)):
        inside = (load.free_tokens[r] >= reserve_tokens) & (load.batch[r] < cap)
        best = min(best, (load.weight[r] << RANK_BITS) + r if inside else NO_LIMIT)
    return STAY if best == NO_LIMIT else best & RANK_MASK


@jitable
def lightest_below(load: Load, cap: int, reserve_tokens: int) -> int:
    """The lightest rank below the cap, else the lightest of all that has room; -1: none."""
    rank = lightest(load, cap, reserve_tokens)
    return lightest(load, NO_LIMIT, reserve_tokens) if rank == STAY else rank


@jitable
def take(load: Load, prices: Prices, rank: int, tokens: int, sign: int) -> None:
    """Count a request in what a rank's step costs (1), or out of it again (-1)."""
    load.batch[rank] += sign
    load.context_tokens[rank] += sign * tokens
    for s in range(len(prices.saturation_tokens)):
        load.saturated_tokens[rank, s] += sign * min(tokens, prices.saturation_tokens[s])


@jitable
def fill(
    load: Load, asked: Asked, requests: Requests, prices: Prices, cap: int, limit: int, chosen: Ints
) -> int:
    """Write a rank or -1 for every request into `chosen`, count it in, and say how many did not fit into the box.

    One that does not fit and is not patient goes to the lightest rank below the cap, else to the lightest of all.
    """
    beyond = 0
    for i in asked.order:
        weight, reserve_tokens = asked.weight[i], requests.reserve_tokens[i]
        rank = fullest(load, cap, limit - weight, reserve_tokens)
        if rank == STAY and not asked.patient[i]:
            beyond += 1
            rank = lightest_below(load, cap, reserve_tokens)
        chosen[i] = rank
        if rank == STAY:
            continue
        take(load, prices, rank, requests.context_tokens[i], 1)
        load.weight[rank] += weight
        load.free_slots[rank] -= 1
        load.free_tokens[rank] -= reserve_tokens
        if load.free_slots[rank] <= 0:
            load.free_tokens[rank] = -1
    return beyond


@jitable
def empty(load: Load, before: Load, chosen: Ints) -> None:
    """Undo a `fill`."""
    for rank in chosen:
        if rank == STAY:
            continue
        load.batch[rank] = before.batch[rank]
        load.context_tokens[rank] = before.context_tokens[rank]
        load.weight[rank] = before.weight[rank]
        load.free_slots[rank] = before.free_slots[rank]
        load.free_tokens[rank] = before.free_tokens[rank]
        for s in range(load.saturated_tokens.shape[1]):
            load.saturated_tokens[rank, s] = before.saturated_tokens[rank, s]

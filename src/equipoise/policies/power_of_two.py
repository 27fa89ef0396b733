"""``power_of_two``: draw two ranks that fit, take the one with fewer requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise._jit import jitable
from equipoise.policies.api import STAY, PolicySpec, fits, one_by_one
from equipoise.policies.random_numbers import STATE_SIZE, below, seed_state
from equipoise.types import Floats, Memory, Prices, Ranks, Requests


@jitable
def nth_fitting(ranks: Ranks, tokens: int, n: int) -> int:
    """The n-th rank, from 0, among those where the request fits."""
    for r in range(len(ranks.batch)):
        if fits(ranks, r, tokens):
            if n == 0:
                return r
            n -= 1
    return STAY


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Smaller batch of two different candidates; a tie goes to the one drawn first."""
    tokens = requests.context_tokens[i]
    candidates = 0
    for r in range(len(ranks.batch)):
        candidates += fits(ranks, r, tokens)
    if candidates == 0:
        return STAY
    a = below(memory.ints, candidates)
    if candidates == 1:
        return nth_fitting(ranks, tokens, a)
    b = below(memory.ints, candidates - 1)
    b += b >= a
    first, second = nth_fitting(ranks, tokens, a), nth_fitting(ranks, tokens, b)
    return second if ranks.batch[second] < ranks.batch[first] else first


def start(memory: Memory, params: Mapping[str, Any], seed: int) -> None:
    """Seed the stream."""
    seed_state(memory.ints, seed)


SPEC = PolicySpec(
    name="power_of_two",
    place=one_by_one(pick),
    summary="the smaller batch of two ranks drawn at random",
    source="Mitzenmacher 2001, the power of two choices; offered by several gateways",
    aliases=("p2c",),
    memory_size=lambda params: (STATE_SIZE, 0),
    start=start,
)

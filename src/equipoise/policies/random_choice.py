"""``random``: any rank that fits, each as likely as the other."""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.policies.api import STAY, PolicySpec, fits, one_by_one
from equipoise.policies.random_numbers import below, memory_size, start
from equipoise.types import Floats, Memory, Prices, Ranks, Requests

__all__ = ["count_fitting", "nth_fitting"]


@jitable
def count_fitting(ranks: Ranks, reserve_tokens: int) -> int:
    """How many ranks the request fits on."""
    count = 0
    for r in range(len(ranks.batch)):
        count += fits(ranks, r, reserve_tokens)
    return count


@jitable
def nth_fitting(ranks: Ranks, reserve_tokens: int, n: int) -> int:
    """The n-th rank, from 0, among those the request fits on."""
    for r in range(len(ranks.batch)):
        if fits(ranks, r, reserve_tokens):
            if n == 0:
                return r
            n -= 1
    return STAY


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Draw one of the ranks that fit."""
    candidates = count_fitting(ranks, requests.reserve_tokens[i])
    if candidates == 0:
        return STAY
    return nth_fitting(ranks, requests.reserve_tokens[i], below(memory.ints, candidates))


SPEC = PolicySpec(
    name="random",
    place=one_by_one(pick),
    summary="any rank that fits, uniformly",
    source="baseline",
    memory_size=memory_size,
    start=start,
)

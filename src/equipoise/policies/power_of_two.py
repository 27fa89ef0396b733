"""``power_of_two``: draw two ranks that fit, take the one with fewer requests (Mitzenmacher 2001)."""

from __future__ import annotations

from equipoise.policies.api import STAY, PolicySpec, one_by_one
from equipoise.policies.random_choice import count_fitting, nth_fitting
from equipoise.policies.random_numbers import below, memory_size, start
from equipoise.types import Floats, Memory, Prices, Ranks, Requests


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Smaller batch of two different candidates; a tie goes to the one drawn first."""
    room = requests.reserve_tokens[i]
    candidates = count_fitting(ranks, room)
    if candidates == 0:
        return STAY
    a = below(memory.ints, candidates)
    if candidates == 1:
        return nth_fitting(ranks, room, a)
    b = below(memory.ints, candidates - 1)
    b += b >= a
    first, second = nth_fitting(ranks, room, a), nth_fitting(ranks, room, b)
    return second if ranks.batch[second] < ranks.batch[first] else first


SPEC = PolicySpec(
    name="power_of_two",
    place=one_by_one(pick),
    summary="the smaller batch of two ranks drawn at random",
    source="Mitzenmacher 2001, the power of two choices; offered by several gateways",
    aliases=("p2c",),
    memory_size=memory_size,
    start=start,
)

"""``round_robin``: the next rank in turn that fits."""

from __future__ import annotations

from equipoise.policies.api import STAY, PolicySpec, fits, one_by_one
from equipoise.types import Floats, Memory, Prices, Ranks, Requests

NEXT = 0


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Go round from the rank after the last one used."""
    n = len(ranks.batch)
    for k in range(n):
        r = (memory.ints[NEXT] + k) % n
        if fits(ranks, r, requests.reserve_tokens[i]):
            memory.ints[NEXT] = (r + 1) % n
            return r
    return STAY


SPEC = PolicySpec(
    name="round_robin",
    place=one_by_one(pick),
    summary="the next rank in turn that fits",
    source="baseline; default of many gateways",
    aliases=("rr",),
    memory_size=lambda context: (1, 0),
)

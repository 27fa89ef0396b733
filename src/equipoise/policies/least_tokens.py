"""``least_tokens``: the rank with the fewest resident context tokens."""

from __future__ import annotations

from equipoise.policies.api import PolicySpec, fewest_tokens, one_by_one
from equipoise.types import Floats, Memory, Prices, Ranks, Requests


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Argmin C."""
    return fewest_tokens(ranks, requests.reserve_tokens[i])


SPEC = PolicySpec(
    name="least_tokens",
    place=one_by_one(pick),
    summary="the rank with the fewest resident context tokens",
    source="source article, policy B; SGLang total_tokens; join-the-shortest-queue by KV tokens",
    aliases=("B", "total_tokens"),
)

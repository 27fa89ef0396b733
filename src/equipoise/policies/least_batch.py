"""``least_batch``: the rank with the fewest running requests."""

from __future__ import annotations

from equipoise.policies.api import NO_LIMIT, PolicySpec, fewest_requests, one_by_one
from equipoise.types import Floats, Memory, Prices, Ranks, Requests


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Argmin B."""
    return fewest_requests(ranks, requests.reserve_tokens[i], NO_LIMIT)


SPEC = PolicySpec(
    name="least_batch",
    place=one_by_one(pick),
    summary="the rank with the fewest running requests",
    source="source article, policy A; SGLang total_requests; join-the-shortest-queue by count",
    aliases=("A", "total_requests"),
)

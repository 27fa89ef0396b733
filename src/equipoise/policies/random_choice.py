"""``random``: any rank that fits, each as likely as the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.policies.api import STAY, PolicySpec, fits, one_by_one
from equipoise.policies.random_numbers import STATE_SIZE, below, seed_state
from equipoise.types import Floats, Memory, Prices, Ranks, Requests


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Draw the k-th of the ranks that fit."""
    tokens = requests.context_tokens[i]
    candidates = 0
    for r in range(len(ranks.batch)):
        candidates += fits(ranks, r, tokens)
    if candidates == 0:
        return STAY
    k = below(memory.ints, candidates)
    for r in range(len(ranks.batch)):
        if fits(ranks, r, tokens):
            if k == 0:
                return r
            k -= 1
    return STAY


def start(memory: Memory, params: Mapping[str, Any], seed: int) -> None:
    """Seed the stream."""
    seed_state(memory.ints, seed)


SPEC = PolicySpec(
    name="random",
    place=one_by_one(pick),
    summary="any rank that fits, uniformly",
    source="baseline",
    memory_size=lambda params: (STATE_SIZE, 0),
    start=start,
)

"""A plan as a policy: it puts every request where the plan says, so that the replay itself prices it."""

from __future__ import annotations

import numpy as np

from equipoise.policies import Policy
from equipoise.policies.api import (
    NO_LIMIT,
    STAY,
    PolicyContext,
    PolicySpec,
    book,
    fewest_requests,
    fits,
    placement,
)
from equipoise.replay import ReplayResult
from equipoise.study.oracle.problem import Plan
from equipoise.types import Ints, Memory

__all__ = ["NAME", "delays_of", "policy_of"]

NAME = "oracle"
"""Of the policy in results."""


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """Where and when the plan says; where that rank is full after all, the one with the fewest requests."""
    for i in range(len(out)):
        out[i] = STAY
        q, tokens = requests.request[i], requests.reserve_tokens[i]
        if requests.waited_steps[i] < memory.ints[2 * q + 1]:
            continue
        rank = memory.ints[2 * q]
        if rank == STAY or not fits(ranks, rank, tokens):
            rank = fewest_requests(ranks, tokens, NO_LIMIT)
        if rank != STAY:
            out[i] = rank
            book(ranks, rank, requests, i, prices)


def policy_of(plan: Plan) -> Policy:
    """The policy that plays a plan; it belongs to one trace and to a pool without groups."""

    def memory_size(context: PolicyContext) -> tuple[int, int]:
        return 2 * len(plan.rank), 0

    def start(memory: Memory, context: PolicyContext) -> None:
        memory.ints[0::2] = plan.rank
        memory.ints[1::2] = plan.delay

    spec = PolicySpec(
        name=NAME,
        place=place,
        summary="an assignment made with all output lengths and arrivals known",
        source="this package (docs/explain/bounds.md)",
        memory_size=memory_size,
        start=start,
    )
    return Policy(spec, {})


def delays_of(result: ReplayResult, start: Ints, largest: int) -> Ints:
    """Steps each request waited from its first offer to its first step: what its policy held back, or had no room for.

    Parameters
    ----------
    result : ReplayResult
        Of one instance; with several, the clocks differ and nothing is said (zeros).
    start : int64[requests]
        First steps, -1: none.
    largest : int
        Tokens of the largest request that is not rejected.
    """
    delay = np.zeros(len(start), np.int64)
    ran = start >= 0
    if result.pool.instances > 1 or not ran.any():
        return delay
    if result.mode == "timed":
        offered = np.searchsorted(result.series[:, 0], result.arrival_s)
        delay[ran] = np.maximum(start[ran] - offered[ran], 0)
        return delay
    ends = np.sort(start[ran] + result.output_tokens[ran])
    accepted = np.flatnonzero(result.context_tokens <= largest)
    nth = np.arange(len(accepted)) - int(result.concurrency or 0)
    offered = np.zeros(len(start), np.int64)
    late = (nth >= 0) & (nth < len(ends))
    offered[accepted[late]] = ends[nth[late]]
    delay[ran] = np.maximum(start[ran] - offered[ran], 0)
    return delay

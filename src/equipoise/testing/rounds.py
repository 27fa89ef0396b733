"""Placement rounds: the ranks and requests a policy is called with, consistent as an engine would show them."""

from __future__ import annotations

import numpy as np

from equipoise.cost.step_cost import Saturation, StepCost, Term
from equipoise.policies.registry import Policy
from equipoise.policies.views import empty_ranks, waiting_requests
from equipoise.replay.layout import UNLIMITED_TOKENS
from equipoise.testing.needs import st
from equipoise.testing.strategies import generators, lengths
from equipoise.types import Memory, Prices, Ranks, Requests

__all__ = ["Round", "make_round", "rounds", "tieless_rounds"]

COSTS = (
    StepCost("linear", (Term("all", per_100k_context=500.0),)),
    StepCost(
        "sparse",
        (
            Term("full", 0.7, per_100k_context=90.0, saturations=(Saturation(9, 2e3), Saturation(40, 5e3))),
            Term("shared", 0.3, batch_table=(0.0, 1.0, 1.0, 3.0, 3.0, 5.0)),
        ),
        constant=4.0,
    ),
    StepCost("one barrier", (Term("a", batch_floor=4), Term("b", per_100k_context=2e3)), barrier="step"),
)


class Round:
    """One call of a policy, with the limits the engine knows.

    Parameters
    ----------
    ranks : Ranks
    requests : Requests
    prices : Prices
    """

    def __init__(self, ranks: Ranks, requests: Requests, prices: Prices) -> None:
        self.ranks, self.requests, self.prices = ranks, requests, prices

    def __repr__(self) -> str:
        r, q = self.ranks, self.requests
        return (
            f"Round(batch={r.batch.tolist()}, context_tokens={r.context_tokens.tolist()}, "
            f"free_tokens={r.free_tokens.tolist()}, free_slots={r.free_slots.tolist()}, "
            f"requests={q.context_tokens.tolist()})"
        )

    @property
    def size(self) -> tuple[int, int]:
        """Ranks and requests."""
        return len(self.ranks.batch), len(self.requests.context_tokens)

    def memory(self, policy: Policy, seed: int = 0) -> Memory:
        """A fresh memory for a policy that is to see these ranks."""
        instances = len(set(self.ranks.instance.tolist()))
        return policy.new_memory(seed, self.prices, len(self.ranks.batch), instances=instances)


def make_round(
    running: list[list[int]],
    waiting: list[int],
    cost: StepCost,
    *,
    kv_capacity_tokens: int | None = None,
    max_batch: int | None = None,
    ranks_per_instance: int = 4,
    block_tokens: int = 1,
) -> Round:
    """Build a round from the context lengths of what runs on each rank and of what waits, in tokens.

    With blocks, what waits takes its context rounded up to whole ones.
    """
    prices = cost.prices()
    lengths = prices.saturation_tokens
    batch = np.array([len(contexts) for contexts in running], dtype=np.int64)
    context = np.array([sum(contexts) for contexts in running], dtype=np.int64)
    saturated = np.array(
        [[sum(min(c, int(length)) for c in contexts) for length in lengths] for contexts in running],
        dtype=np.int64,
    ).reshape(len(running), len(lengths))
    slots = (1 << 40 if max_batch is None else max_batch) - batch
    free = (UNLIMITED_TOKENS if kv_capacity_tokens is None else kv_capacity_tokens) - context
    ranks = empty_ranks(len(running), ranks_per_instance, len(lengths), 0, 0)._replace(
        batch=batch,
        context_tokens=context,
        free_tokens=np.where(slots > 0, free, -1),
        free_slots=slots,
        saturated_tokens=saturated,
    )
    requests = waiting_requests(len(waiting))
    requests.context_tokens[:] = waiting
    requests.reserve_tokens[:] = -(-requests.context_tokens // block_tokens) * block_tokens
    return Round(ranks, requests, prices)


def rounds(*, max_ranks: int = 8, max_requests: int = 8) -> st.SearchStrategy[Round]:
    """Rounds with idle, loaded and full ranks, ties among them, requests that fit everywhere, somewhere or nowhere."""

    def build(
        ranks: int,
        requests: int,
        rng: np.random.Generator,
        capacity: int | None,
        max_batch: int | None,
        block_tokens: int,
    ) -> Round:
        running = [lengths(rng, int(rng.integers(0, 7)), 80).tolist() for _ in range(ranks)]
        waiting = lengths(rng, requests, 80).tolist()
        cost = COSTS[int(rng.integers(len(COSTS)))]
        return make_round(
            running,
            waiting,
            cost,
            kv_capacity_tokens=capacity,
            max_batch=max_batch,
            block_tokens=block_tokens,
        )

    return st.builds(
        build,
        st.integers(1, max_ranks),
        st.integers(1, max_requests),
        generators(),
        capacity=st.one_of(st.none(), st.integers(1, 300)),
        max_batch=st.one_of(st.none(), st.integers(1, 12)),
        block_tokens=st.sampled_from([1, 16]),
    )


def tieless_rounds(*, max_ranks: int = 6, max_requests: int = 6) -> st.SearchStrategy[Round]:
    """Rounds in which no two ranks ever tie, in batch or in tokens, whatever is placed where.

    Batches lie further apart than there are requests. Token counts differ modulo 64, and requests are multiples of 64.
    """

    def build(ranks: int, requests: int, rng: np.random.Generator, tight: bool) -> Round:
        waiting = (64 * rng.integers(1, 40, requests)).tolist()
        batches = (requests + 1) * rng.permutation(ranks) + 1
        tokens = 64 * (batches + rng.integers(0, 80, ranks)) + rng.permutation(64)[:ranks]
        running = [
            [t - (b - 1), *[1] * (b - 1)] for b, t in zip(batches.tolist(), tokens.tolist(), strict=True)
        ]
        cost = COSTS[int(rng.integers(len(COSTS)))]
        capacity = int(tokens.max()) + int(rng.integers(-2000, 2000)) if tight else None
        return make_round(running, waiting, cost, kv_capacity_tokens=capacity)

    return st.builds(
        build, st.integers(1, max_ranks), st.integers(1, max_requests), generators(), tight=st.booleans()
    )

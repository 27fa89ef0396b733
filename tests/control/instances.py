"""Instances for the tests of control."""

from __future__ import annotations

import numpy as np

from equipoise.control import Snapshot, VerifyPrice
from equipoise.cost import load


def instance(rng: np.random.Generator, ranks: int, requests: int, drafts: int, step: int = 0) -> Snapshot:
    """Ranks of up to so many requests each; exactly so many where there is one rank."""
    sizes = [requests] if ranks == 1 else rng.integers(0, requests + 1, ranks).tolist()
    n = sum(sizes)
    chance = np.clip(rng.beta(5, 2, (n, 1)) + rng.normal(0, 0.1, (n, drafts)), 0.01, 0.99)
    context = rng.lognormal(np.log(rng.choice([2e3, 5e4, 3e5])), 1.0, n).astype(np.int64)
    survival = np.cumprod(chance, axis=1).astype(np.float32)
    return Snapshot(context, survival, np.concatenate([[0], np.cumsum(sizes)]), step)


def prices(rng: np.random.Generator) -> VerifyPrice:
    cost = load(str(rng.choice(["v1", "v2", "h200"])))
    unit = 1.0 if cost.unit == "request" else 170.0
    return VerifyPrice(
        cost,
        graph_sizes=[(), (1, 2, 4, 8, 12, 16, 20), (8, 64, 256, 512)][rng.integers(3)],
        query_reads=float(rng.choice([0.0, 0.5, 1.0])),
        ep_per_query=float(rng.choice([0.0, 0.3])) * unit,
        ep_free_queries=float(rng.choice([0.0, 3.0, 40.0])),
    )


def random_case(rng: np.random.Generator, ranks: int | None = None) -> tuple[Snapshot, VerifyPrice]:
    """Few enough plans to try them all: at most 70,000."""
    ranks = int(rng.integers(1, 4)) if ranks is None else ranks
    while True:
        drafts = int(rng.integers(1, 5))
        snapshot = instance(rng, ranks, int(rng.integers(1, 6)), drafts)
        n = len(snapshot.context_tokens)
        if n and (drafts + 1) ** n <= 70_000:
            return snapshot, prices(rng)

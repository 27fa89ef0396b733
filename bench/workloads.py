"""The workload of the speed bars: agentic-sized requests, drawn quickly and without sessions."""

from __future__ import annotations

import numpy as np

from equipoise.traces import Trace


def agentic_sized(requests: int, seed: int = 1) -> Trace:
    """Lognormal contexts (mean 110k tokens) and outputs (mean 390 tokens, at most 18,000), all there at once."""
    rng = np.random.default_rng(seed)
    context = np.clip(rng.lognormal(11.3, 0.8, requests), 1, 1e6).astype(np.int64)
    output = np.clip(rng.lognormal(5.57, 0.9, requests), 1, 18_000).astype(np.int64)
    return Trace.from_columns("agentic-sized", np.zeros(requests), context, output)

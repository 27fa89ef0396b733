"""``smg_least_load``: the least time to drain, plus a barrier that rises as the KV cache fills.

Policy ``least_load`` of the Shepherd Model Gateway, ``model_gateway/src/policies/least_load.rs``, in seconds:

    (tokens queued in the worker + tokens sent since its last report) / throughput + pressure * k / (1 - k)

with k the share of the KV cache in use, at most 0.999, and ``pressure`` 0.15 s. Lowest wins, of equals the first.

Here every round is a report: what was sent is what this round has placed. *Left out*: the queue inside a worker,
which is empty when a rank starts what it is given at its next step, and the age of the reports (10 s in the
gateway). The live generation rate of a rank is not shown to a policy; the gateway's own stand-in for workers that
report none takes its place, 2,000 tokens/s for all. The capacity behind k is context plus free tokens, so a growth
reserve counts as used; without a capacity k is next to nothing, and orders the ranks by their tokens.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.api import STAY, Parameter, PolicySpec, book, fits, placement

PRESSURE, THROUGHPUT = 0, 1
MOST_USED = 0.999


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    n = len(ranks.batch)
    barrier_s = np.zeros(n)
    for r in range(n):
        capacity = ranks.context_tokens[r] + max(ranks.free_tokens[r], 0)
        if capacity > 0:
            k = min(ranks.context_tokens[r] / capacity, MOST_USED)
            barrier_s[r] = params[PRESSURE] * k / (1.0 - k)
    sent_tokens = np.zeros(n, np.int64)
    blocked = False
    for i in range(len(out)):
        best, least = STAY, np.inf
        if not blocked:
            for r in range(n):
                score_s = sent_tokens[r] / params[THROUGHPUT] + barrier_s[r]
                if score_s < least and fits(ranks, r, requests.reserve_tokens[i]):
                    best, least = r, score_s
        out[i] = best
        if best == STAY:
            blocked = True
        else:
            book(ranks, best, requests, i, prices)
            sent_tokens[best] += requests.context_tokens[i]


SPEC = PolicySpec(
    name="smg_least_load",
    place=place,
    summary="least time to drain what was just sent, plus pressure times k / (1 - k) for a KV cache k full",
    source="Shepherd Model Gateway (lightseekorg/smg), model_gateway/src/policies/least_load.rs",
    parameters=(
        Parameter("pressure_s", 0.15, "weight of the KV barrier, in seconds", low=0.0, high=1e6),
        Parameter("throughput", 2000.0, "tokens/s at which a rank drains", low=1e-3, high=1e12),
    ),
    aliases=("smg",),
)

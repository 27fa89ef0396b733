"""``vllm_033``: the internal data-parallel balancer of vLLM 0.33, by requests, with a penalty for queues on full ranks.

``vllm/v1/engine/core_client.py``, class ``DPLBAsyncMPClient`` (pull requests 47420 and 49204). Per request, over the
engines in rank order from a start that moves on by one with every request:

    score = max(clients * own requests in flight, waiting + running)
    score += 6 * waiting * max(0, KV use - 0.5)        if anything waits there

The first engine with the lowest score gets the request, and its ``waiting`` is raised until the next statistics come.

Here there is one client, whose requests in flight are the batch, so the first line is the batch. *Left out*: the queue
inside an engine. A rank starts what it is given at its next step, so what ``waiting`` counts is what the router has
sent since the rank last reported: `unseen_requests` and the choices of this round. KV use is context over capacity, as
last reported (a growth reserve counts as used); without a capacity it is nothing, and so is the penalty. *Left out*
too: the age of the statistics, up to 100 ms.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.api import STAY, PolicySpec, book, fits, placement

START = 0  # position in memory.ints: where the next scan starts
PENALTY, FREE_OF_PENALTY = 6.0, 0.5


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    n = len(ranks.batch)
    waiting = ranks.unseen_requests.copy()
    penalty = np.zeros(n)
    for r in range(n):
        capacity = ranks.context_tokens[r] + max(ranks.free_tokens[r], 0)
        if capacity > 0:
            penalty[r] = PENALTY * max(0.0, ranks.context_tokens[r] / capacity - FREE_OF_PENALTY)
    blocked = False
    for i in range(len(out)):
        best, least = STAY, np.inf
        if not blocked:
            for k in range(memory.ints[START], memory.ints[START] + n):
                r = k if k < n else k - n
                score = ranks.batch[r] + waiting[r] * penalty[r]
                if score < least and fits(ranks, r, requests.reserve_tokens[i]):
                    best, least = r, score
        out[i] = best
        if best == STAY:
            blocked = True
        else:
            book(ranks, best, requests, i, prices)
            waiting[best] += 1
            memory.ints[START] = (memory.ints[START] + 1) % n


SPEC = PolicySpec(
    name="vllm_033",
    place=place,
    summary="fewest requests, those just sent counted up to three times more as the KV cache fills; ties rotate",
    source="vLLM 0.33, vllm/v1/engine/core_client.py, DPLBAsyncMPClient (pull requests 47420, 49204)",
    aliases=("vllm",),
    memory_size=lambda context: (1, 0),
)

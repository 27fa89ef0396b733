"""``trtllm_adp``: longest prompt first, each to the rank with the fewest prompt tokens that is below its fair share.

The default router of TensorRT-LLM for attention data parallelism, 1.3 release candidates, class
``DefaultADPRouter`` in ``tensorrt_llm/_torch/pyexecutor/scheduler/adp_router.py``. Per iteration:

1. Fetch from the queue, oldest first, as many requests as there are free slots.
2. share = ceil((running + fetched) / ranks), or the largest batch of a rank if that is more.
3. Requests by prompt length, longest first; each to the rank with the fewest tokens (of equals the fewest requests)
   among those that run fewer than ``share``.

The tokens of a rank are the *original prompts* of its requests: generated tokens are not counted. The policy keeps
that sum itself, from what it placed and what has ended. *Left out*: requests pinned to a rank, which are placed
first, and the prefix cache of the KV-aware variant. The code has no filter by tokens; here a request that fits on
no rank below its share stays queued, and the fetch also stops at the first request that the pool has no room for.
"""

from __future__ import annotations

from equipoise.policies.api import NO_LIMIT, STAY, PolicySpec, book, fits, learning, placement
from equipoise.policies.fetch import fetch, longest_first
from equipoise.policies.prompts import forget, memory_size, settle


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    n, held = len(ranks.batch), memory.ints
    settle(held, ranks)
    out[:] = STAY
    fetched = fetch(ranks, requests)
    running, share = 0, 0
    for r in range(n):
        running += ranks.batch[r]
        share = max(share, ranks.batch[r])
    share = max(share, (running + fetched + n - 1) // n)
    for i in longest_first(requests, fetched):
        best, tokens, batch = STAY, NO_LIMIT, NO_LIMIT
        for r in range(n):
            b = ranks.batch[r]
            lighter = held[r] < tokens or (held[r] == tokens and b < batch)
            if lighter and b < share and fits(ranks, r, requests.reserve_tokens[i]):
                best, tokens, batch = r, held[r], b
        out[i] = best
        if best != STAY:
            book(ranks, best, requests, i, prices)
            held[best] += requests.context_tokens[i]


@learning
def finished(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """A prompt leaves its rank."""
    forget(memory, rank, context_tokens)


SPEC = PolicySpec(
    name="trtllm_adp",
    place=place,
    summary="longest first, each to the fewest prompt tokens among the ranks below an even share of requests",
    source="TensorRT-LLM 1.3 rc, scheduler/adp_router.py, DefaultADPRouter",
    aliases=("trtllm",),
    memory_size=memory_size,
    finished=finished,
)

"""``dynamo_kv``: the fewest KV blocks plus a price a running request.

The cost of NVIDIA Dynamo 1.6's KV router for a decode rank, ``lib/kv-router/src/scheduling/selector.rs``:

    decode blocks of the rank, the request's own included + weight * its active requests

The weight (``--router-decode-active-request-weight``, pull request 12158, 0 unless set) is in blocks: the one shipped
rule with a linear price of both batch and context. Lowest cost wins (``router_temperature`` 0).

Blocks are counted in whole ones, a request at a time. The router does not count the blocks of generated tokens unless
told to (``router_track_output_blocks``): it knows a request by its prompt, and so does this policy, which keeps the sum
itself from what it placed and what has ended. ``track_output_blocks=true`` counts the tokens resident on the rank.

*Left out*: the prefill term and the credit for cached prefixes. Dynamo's own decode leg is chosen without both when
prefill runs elsewhere. Ties, which its hash map leaves to chance, go to the lowest index.
"""

from __future__ import annotations

import numpy as np

from equipoise.policies.api import STAY, Parameter, PolicySpec, book, fits, learning, placement
from equipoise.policies.prompts import forget, memory_size, settle

WEIGHT, BLOCK_SIZE, TRACK_OUTPUT = 0, 1, 2


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    size, weight, track_output = int(params[BLOCK_SIZE]), params[WEIGHT], params[TRACK_OUTPUT] != 0.0
    held = memory.ints
    settle(held, ranks)
    blocked = False
    for i in range(len(out)):
        tokens = requests.context_tokens[i]
        own = (tokens + size - 1) // size
        best, least = STAY, np.inf
        if not blocked:
            for r in range(len(ranks.batch)):
                if track_output:
                    blocks = (ranks.context_tokens[r] + tokens + size - 1) // size
                else:
                    blocks = held[r] + own
                cost = blocks + weight * ranks.batch[r]
                if cost < least and fits(ranks, r, requests.reserve_tokens[i]):
                    best, least = r, cost
        out[i] = best
        if best == STAY:
            blocked = True
        else:
            book(ranks, best, requests, i, prices)
            held[best] += own


@learning
def finished(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """The blocks of a prompt leave their rank."""
    size = int(params[BLOCK_SIZE])
    forget(memory, rank, (context_tokens + size - 1) // size)


SPEC = PolicySpec(
    name="dynamo_kv",
    place=place,
    summary="fewest KV blocks plus weight times running requests",
    source="NVIDIA Dynamo 1.6, lib/kv-router/src/scheduling/selector.rs (pull request 12158)",
    parameters=(
        Parameter(
            "weight", 0.0, "blocks that one running request counts for; Dynamo's default is 0", low=0.0
        ),
        Parameter("block_size", 16, "tokens of a KV block", low=1, high=1_000_000, integer=True),
        Parameter(
            "track_output_blocks",
            False,
            "count resident tokens instead of prompts; Dynamo's default is false",
        ),
    ),
    aliases=("dynamo",),
    memory_size=memory_size,
    finished=finished,
)

"""``sglang_total_tokens``: the fewest tokens, of equals the fewest requests.

``--load-balance-method total_tokens`` of SGLang 0.5.23, ``python/sglang/srt/managers/data_parallel_controller.py``: the
rank with the smallest (tokens, requests), compared in that order. A dispatch adds the prompt's length (pull request
22614) and one request to the controller's picture until the rank reports again.

A rank's tokens are those in its KV cache plus those of the requests queued on it: here what is placed and not yet
started counts as resident. *Left out*: the prefix cache, which lets two requests share tokens, and the age of the
reports (every 15 decode iterations). The controller has no capacity filter; here the common one runs first.
"""

from __future__ import annotations

from equipoise.policies.api import NO_LIMIT, STAY, PolicySpec, fits, one_by_one
from equipoise.types import Floats, Memory, Prices, Ranks, Requests


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Argmin of (C, B)."""
    best, tokens, batch = STAY, NO_LIMIT, NO_LIMIT
    for r in range(len(ranks.batch)):
        c, b = ranks.context_tokens[r], ranks.batch[r]
        if (c < tokens or (c == tokens and b < batch)) and fits(ranks, r, requests.reserve_tokens[i]):
            best, tokens, batch = r, c, b
    return best


SPEC = PolicySpec(
    name="sglang_total_tokens",
    place=one_by_one(pick),
    summary="the fewest context tokens, of equals the fewest requests",
    source="SGLang 0.5.23, data_parallel_controller.py, total_tokens (pull requests 7379, 22614)",
    aliases=("sglang",),
)

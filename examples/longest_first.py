"""A policy with a parameter: `dualpath`, the longest request of a round first.

See docs/howto/policy-laboratory.md; ``equipoise compare --policy ./examples/longest_first.py:SPEC --policy dualpath``.
"""

import numpy as np

from equipoise.policies.api import (
    STAY,
    Parameter,
    PolicySpec,
    book,
    fewest_requests,
    fewest_tokens,
    placement,
)


@placement
def place(ranks, requests, prices, params, memory, out):
    """The longest first: the smallest batch among ranks within the limit, otherwise the fewest tokens."""
    limit = int(params[0] * (ranks.context_tokens.sum() + requests.context_tokens.sum()) / len(ranks.batch))
    for i in np.argsort(-requests.context_tokens, kind="mergesort"):
        room, length = requests.reserve_tokens[i], requests.context_tokens[i]
        out[i] = fewest_requests(ranks, room, limit - length)
        if out[i] == STAY:
            out[i] = fewest_tokens(ranks, room)
        if out[i] != STAY:
            book(ranks, out[i], requests, i, prices)


SPEC = PolicySpec(
    name="longest_first",
    place=place,
    summary="dualpath, the longest request of a round first",
    source="an example",
    parameters=(Parameter("z", 1.05, "threshold over the mean tokens of a rank", low=0.0, high=100.0),),
)

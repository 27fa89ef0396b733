"""A policy of one's own: the rank whose step share grows least.

Compare it with ``equipoise compare --policy ./examples/own_policy.py:pick --policy dualpath``.
"""

from equipoise.cost.evaluate import rank_work
from equipoise.policies.api import STAY, fits


def pick(ranks, requests, i, prices, params, memory):
    """Cheapest rank after the request has joined it, over all terms of the step cost."""
    tokens = requests.context_tokens[i]
    best, least = STAY, 1e300
    for r in range(len(ranks.batch)):
        if fits(ranks, r, requests.reserve_tokens[i]):
            price = 0.0
            for t in range(len(prices.context)):
                price += rank_work(
                    prices, t, ranks.batch[r] + 1, ranks.context_tokens[r] + tokens, ranks.saturated_tokens, r
                )
            if price < least:
                best, least = r, price
    return best

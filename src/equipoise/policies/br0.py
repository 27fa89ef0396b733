"""``br0``: fill ranks up to the largest load, fine what goes beyond it as often as there are ranks.

BalanceRoute's BR-0 (arXiv 2605.06113). A set of requests of S tokens on a rank that lacks m tokens to the largest
load is worth

    F(S) = S - G * max(0, S - m)          G: ranks

since every token beyond makes G ranks wait. The two stages that use it are in `equipoise.policies.balance_route`. It
needs no prediction, and knows no price of a request: load is tokens.

Readings where the text leaves room: slots are ample while the pool has more than seven free, the threshold of the
code its authors released for BF-IO; in the second stage the lightest rank comes first. Without ``max_batch`` slots
are always ample, and the most free slots are the smallest batch. *Left out*: the back-pressure of the authors'
proxy.
"""

from __future__ import annotations

from equipoise.policies.api import Parameter, PolicySpec, placement
from equipoise.policies.balance_route import balance_route
from equipoise.policies.overflow import now

PENALTY = 0


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    penalty = params[PENALTY] if params[PENALTY] > 0.0 else float(len(ranks.batch))
    balance_route(ranks, requests, prices, now(ranks, penalty), out)


SPEC = PolicySpec(
    name="br0",
    place=place,
    summary="the emptiest rank takes the request that best fills it up to the largest load; overflow is fined",
    source="BalanceRoute BR-0, arXiv 2605.06113",
    parameters=(
        Parameter(
            "penalty", 0.0, "fine for a token beyond the largest load; 0: the number of ranks", 0.0, 1e6
        ),
    ),
)

"""``brh``: BR-0 with foresight: loads up to H steps ahead, requests expected to end when those before them did.

BalanceRoute's BR-H (arXiv 2605.06113) with the empirical predictor. A request that has run for so long is expected to
run for another

    c = (1 - p) * H + p * m               p: share of the known lengths beyond its age that end within H steps
                                          m: mean steps those have left

steps. It adds its context, growing by a token a step, to the load of its rank at steps h < c. With m_h what a rank
lacks to the largest load at step h, a set of requests of S tokens is worth

    F(S) = sum over h = 0 ... H of gamma^h * (S - penalty * max(0, S - m_h))

and the two stages of `equipoise.policies.balance_route` use that. ``horizon=0`` is `br0`.

The lengths are the last 1,024 that have ended; until one has, nothing is expected to end. gamma is not known to us
for the paper's runs: 0.86 is that of the BF-IO code, by the same authors. *Left out*: the paper's better predictor,
which knows a prompt it has seen before (a policy is shown no prompts), and its oracle. A round costs
O(requests running on the ranks that have stepped + ranks * H), a request O(ranks).
"""

from __future__ import annotations

from equipoise.policies.api import Parameter, PolicySpec, placement
from equipoise.policies.balance_route import balance_route
from equipoise.policies.foresight import finished, look_ahead, memory_with_rows, note, start

HORIZON, GAMMA, PENALTY = 0, 1, 2


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    penalty = params[PENALTY] if params[PENALTY] > 0.0 else float(len(ranks.batch))
    outlook = look_ahead(ranks, memory, int(params[HORIZON]), params[GAMMA], penalty, 1)
    balance_route(ranks, requests, prices, outlook, out)
    note(ranks, requests, memory, out)


SPEC = PolicySpec(
    name="brh",
    place=place,
    summary="br0 on the loads of the next steps, requests ending as the lengths seen so far suggest",
    source="BalanceRoute BR-H with the empirical survival predictor, arXiv 2605.06113",
    parameters=(
        Parameter("horizon", 80, "H: steps looked ahead; the paper uses 80", low=0, high=255, integer=True),
        Parameter("gamma", 0.86, "weight of a step relative to the one before", low=0.0, high=1.0),
        Parameter(
            "penalty", 0.0, "fine for a token beyond the largest load; 0: the number of ranks", 0.0, 1e6
        ),
    ),
    memory_size=lambda context: memory_with_rows(context, int(context.params["horizon"]) + 1),
    start=start,
    finished=finished,
)

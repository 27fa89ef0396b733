"""What the ranks are likely to hold by now, where the picture is old or others place requests too.

A rank holds what the policy has there itself (`equipoise.policies.own_requests`), which it knows to the token, and what
others have there, as of the last report. Every router that sees a rank look empty will send its next request there, so
the older a picture of the others is, the less may be built on it: of what sets a rank's others apart from their mean, a
share exp(-u) is believed, u the number of requests the policy itself has sent out, on average, in the age of the
report. That is the chance that it has sent none; the others, whose number is known from how their batches rise, will
have sent no fewer. What is left when nothing is believed is a policy that levels its own requests. If all do, no one
has to know anything of anyone.

Reports that are up to date still lack what is placed at the same moment. Where ranks that were chosen are seen to be
chosen by others as well, more than twice as often as the average rank, requests of others are imagined beside the own
ones: as many as others send for one of ours, of recent sizes, placed by the same rule and then thrown away.

Where no ends are told, or aborts are not, what the policy takes to be running exceeds what is reported. Then the report
counts, with what was sent since, and requests of others are imagined for as many steps as it is old.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.own_requests import HISTORY, REPORTED, Own, context_now, sent_tokens
from equipoise.types import Floats, Ints, Ints2D, Prices, Ranks

__all__ = ["FLOATS", "correct"]

ROSE, SENT, STEPS, HITS, CHANCE, SAMPLED = 0, 1, 2, 3, 4, 5
"""Positions: requests of others seen to come, own ones, steps (fading sums); own ranks hit, and by chance; clock."""
FLOATS = 6
FADING, FADING_HITS = 0.95, 0.99
FEW = 0.05
"""Requests of others for one own: fewer are no others."""
TOLERANCE = 0.02
"""Share of what is reported by which the own requests may exceed it."""


@jitable
def others(own: Own, ranks: Ranks, batch: Ints, context: Ints) -> bool:
    """Fill in what others had on each rank as of its report; whether what is known of the own requests can be true."""
    surplus, reported = 0, 0
    for r in range(len(batch)):
        own_batch, own_context, unseen = own.batch[r], context_now(own, r), 0
        if own.header[REPORTED]:
            at = (own.clock[own.instance[r]] - min(ranks.report_age_steps[r], HISTORY - 1)) % HISTORY
            own_batch, own_context = own.past_batch[at, r], own.past_context[at, r]
            unseen = ranks.unseen_requests[r]
        batch[r] = ranks.batch[r] - unseen - own_batch
        context[r] = ranks.context_tokens[r] - sent_tokens(own, r, unseen) - own_context
        surplus -= batch[r]
        reported += ranks.batch[r]
    return surplus <= TOLERANCE * reported + 1.0


@jitable
def learn(own: Own, ranks: Ranks, batch: Ints, floats: Floats) -> None:
    """Compare what others had with what they had in an earlier report: how many came, and how many where ours went."""
    report = own.clock[own.instance[0]] - ranks.report_age_steps[0]
    steps = report - int(floats[SAMPLED])
    if steps <= ranks.report_age_steps[0]:
        return
    if floats[SAMPLED] > 0.0:
        rose, hits, marked, sent = 0, 0, 0, 0
        for r in range(len(batch)):
            more = max(batch[r] - own.others_batch[r], 0)
            rose += more
            if own.sent_since[r] > 0:
                hits += more
                marked += 1
                sent += own.sent_since[r]
        for k in (ROSE, SENT, STEPS):
            floats[k] *= FADING
        for k in (HITS, CHANCE):
            floats[k] *= FADING_HITS
        floats[ROSE] += rose
        floats[SENT] += sent
        floats[STEPS] += steps
        floats[HITS] += hits
        floats[CHANCE] += rose * marked / len(batch)
    floats[SAMPLED] = report
    own.others_batch[:] = batch
    own.sent_since[:] = 0


@jitable
def correct(
    own: Own, ranks: Ranks, prices: Prices, floats: Floats, batch: Ints, context: Ints, saturated: Ints2D
) -> float:
    """Fill in what each rank is likely to hold now; how many requests of others to imagine for each own one.

    Parameters
    ----------
    own : Own
    ranks : Ranks
        The picture.
    prices : Prices
    floats : float64[FLOATS]
        What has been learnt of others.
    batch, context : int64[ranks]
    saturated : int64[ranks, saturations]
        Comes as shown; changes in proportion to the context.
    """
    n = len(batch)
    plausible = others(own, ranks, batch, context)
    learn(own, ranks, batch, floats)
    rate = floats[ROSE] / floats[SENT] if floats[SENT] > 0.0 else 0.0
    pace = floats[SENT] / floats[STEPS] if floats[STEPS] > 0.0 else 0.0
    doubt = plausible and rate > FEW
    mean_batch, mean_context = batch.sum() / n, context.sum() / n
    age, belief, least = -1, 1.0, 1.0
    for r in range(n):
        others_batch, others_context = batch[r], context[r] + ranks.report_age_steps[r] * batch[r]
        if doubt:
            if ranks.report_age_steps[r] != age:
                age = ranks.report_age_steps[r]
                belief = np.exp(-pace * age)
                least = min(least, belief)
            more = mean_batch + belief * (batch[r] - mean_batch)
            others_batch = int(np.floor(more + 0.5))
            tokens = mean_context + belief * (context[r] - mean_context) + ranks.report_age_steps[r] * more
            others_context = int(np.floor(tokens + 0.5))
        batch[r] = max(own.batch[r] + others_batch, 0)
        context[r] = max(context_now(own, r) + others_context, 0)
    for s in range(len(prices.saturation_tokens)):
        for r in range(n):
            shown = ranks.context_tokens[r]
            if context[r] != shown:
                most = min(context[r], batch[r] * prices.saturation_tokens[s])
                if shown > 0:
                    most = min(most, int(saturated[r, s] * (context[r] / shown)))
                saturated[r, s] = most
    herding = 0.5 * (floats[HITS] + 1.0) / (floats[CHANCE] + 1.0) - 1.0
    boundaries = 1 if plausible else 1 + ranks.report_age_steps.max()
    return rate * least * boundaries * min(max(herding, 0.0), 1.0)

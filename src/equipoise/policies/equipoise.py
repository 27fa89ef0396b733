"""``equipoise``: all waiting requests at once into the box whose step is cheapest, each to the fullest rank it fits on.

See docs/explain/policy.md for why. At a step boundary:

1. Take the oldest waiting requests that slots and memory of all ranks together have room for. Where the picture of the
   ranks is old, or others place requests too, it is corrected first (`equipoise.policies.picture`).
2. A rank has a batch and a *weight*, the price of what it holds in the terms of the step cost that see context
   (`equipoise.policies.weights`). The weight of a rank may go up to the mean, with the taken requests in it, plus
   E[w^2] / (2 E[w]), w the weight of a request as it comes: what, by renewal theory, a request reaches beyond a line
   drawn anywhere.
3. For a cap on the batch of the even share, one more, two more, and none: heaviest request first, each to the heaviest
   rank that stays within both limits; what fits on none goes to the lightest rank below the cap. The first cap under
   which everything fits ends the search; of those tried the one with the cheapest step is taken, the lower of equals.
   Where weight is all that matters there is no cap, and one try.
4. With ``hold_steps`` above 1, requests offered fewer times than that may stay where they do not fit into the first
   box: that is tried too, a request that stays being charged its share of an even step.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import borrowed, jitable
from equipoise.policies.api import (
    STAY,
    Parameter,
    PolicyContext,
    PolicySpec,
    book,
    learning,
    placement,
)
from equipoise.policies.box import Load
from equipoise.policies.box_search import MEANS, choose
from equipoise.policies.fetch import fetch
from equipoise.policies.own_requests import (
    OFFERED,
    RECENT,
    Own,
    begin,
    forget,
    own_of,
    remember,
    size,
    stream_at,
    tick,
)
from equipoise.policies.picture import FLOATS, correct
from equipoise.policies.random_numbers import STATE_SIZE, below, seed_state
from equipoise.policies.views import waiting_requests
from equipoise.types import Ints, Memory, Requests

HOLD_STEPS = 0
PACE, WEIGHTS = MEANS, MEANS + 1
"""Positions in memory.floats behind what `choose` learns: new requests a round; then what is learnt of others."""
PACE_ROUNDS = 16
"""Rounds over which the mean is taken."""
MOST_IMAGINED = 256


@jitable
def new_and_patient(requests: Requests, count: int, hold_steps: int, idle: bool) -> tuple[Ints, Ints]:
    """Of each request: whether it is offered for the first time, and whether it may wait on."""
    new, patient = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for i in range(count):
        new[i] = requests.waited_steps[i] == 0
        patient[i] = not idle and requests.waited_steps[i] < hold_steps - 1
    return new, patient


@jitable
def take_note(own: Own, requests: Requests, new: Ints) -> None:
    """Keep the contexts of the last requests offered."""
    for i in range(len(new)):
        if new[i]:
            own.recent[own.header[OFFERED] % RECENT] = requests.context_tokens[i]
            own.header[OFFERED] += 1


@jitable
def with_imagined(own: Own, requests: Requests, count: int, imagined: int, stream: Ints) -> Requests:
    """The first requests, and behind them imagined ones of recent sizes."""
    more = waiting_requests(count + imagined)
    more.context_tokens[:count] = requests.context_tokens[:count]
    more.reserve_tokens[:count] = requests.reserve_tokens[:count]
    for i in range(count, count + imagined):
        more.context_tokens[i] = own.recent[below(stream, min(own.header[OFFERED], RECENT))]
    return more


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    ranks, requests, prices, memory = borrowed(ranks), borrowed(requests), borrowed(prices), borrowed(memory)
    out[:] = STAY
    own, n = own_of(memory.ints), len(ranks.batch)
    tick(own, ranks)
    load = Load(
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        ranks.saturated_tokens.copy(),
        ranks.free_tokens,
        ranks.free_slots,
        np.empty(n, np.int64),
    )
    learnt = memory.floats[WEIGHTS:]
    others = correct(own, ranks, prices, learnt, load.batch, load.context_tokens, load.saturated_tokens)
    count = fetch(ranks, requests)
    if count == 0:
        return
    new, patient = new_and_patient(requests, count, int(params[HOLD_STEPS]), ranks.batch.max() == 0)
    take_note(own, requests, new)
    fresh = new.sum()
    memory.floats[PACE] += (fresh - memory.floats[PACE]) / PACE_ROUNDS
    imagined = min(int(others * memory.floats[PACE]), MOST_IMAGINED) if own.header[OFFERED] > 0 else 0
    if imagined == 0:
        choose(load, requests, prices, new, patient, memory.floats, out[:count])
    else:
        among = with_imagined(own, requests, count, imagined, memory.ints[stream_at(own) :])
        both = np.zeros((2, count + imagined), np.int64)
        both[0, :count], both[1, :count] = new, patient
        chosen = np.full(count + imagined, STAY)
        choose(load, among, prices, both[0], both[1], memory.floats, chosen)
        out[:count] = chosen[:count]
    for i in range(count):
        if out[i] != STAY:
            remember(own, ranks, requests, i, out[i])
            book(ranks, out[i], requests, i, prices)


@learning
def finished(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """A request that has ended is no longer among the own ones."""
    forget(own_of(memory.ints), request, rank, context_tokens, output_tokens)


def memory_size(context: PolicyContext) -> tuple[int, int]:
    """The own requests, a random stream; weights, what is known of others."""
    return size(context.ranks) + STATE_SIZE, WEIGHTS + FLOATS


def start(memory: Memory, context: PolicyContext) -> None:
    """Note the shape, seed the stream."""
    begin(memory.ints, context.ranks)
    seed_state(memory.ints[size(context.ranks) :], context.seed)


SPEC = PolicySpec(
    name="equipoise",
    place=place,
    summary="all that wait together, heaviest first, each to the fullest rank within two limits the step cost sets",
    source="this package (docs/explain/policy.md)",
    parameters=(
        Parameter(
            "hold_steps",
            1,
            "step boundaries at which a request may be offered before it has to go where it does not fit well",
            low=1,
            high=64,
            integer=True,
        ),
    ),
    memory_size=memory_size,
    start=start,
    finished=finished,
)

"""``fast_phi``: the rank where the request is expected to overflow the largest load least, over its whole life.

Fast-Phi of DP-BalanceRouter (J. Li, "The EP barrier tax", May 2026). Placed on rank g, a request of context s that
still runs h steps later with probability S(h) is expected to cost

    sum over h of S(h) * max(0, s + h - m_g(h))

where m_g(h) is what the expected load of g lacks to the largest expected load at step h. A running request of age a
counts in the load of step h with (its context then) * S(a + h) / S(a). The sum is taken at five points, 0 and the
quantiles 1/5 ... 4/5 of the answer lengths, by the trapezoid rule. The least cost wins.

S is the survival function of the last 1,024 answers; until one has ended, only the present counts. A placed request
joins the expected loads with its own S(h). Readings where the text leaves room: the points, and that of equal costs
(most ranks have none while the request fits below the largest load) the one with the fewest tokens wins: the authors
found the same tie-break necessary for BR-0. A round costs O(running requests), a request O(ranks).
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY, Parameter, PolicySpec, book, fits, placement
from equipoise.policies.foresight import finished, history_of, memory_size, note, start
from equipoise.policies.running import running_of, tick
from equipoise.policies.survival import CELLS, cell_width, lengths_seen, survivors
from equipoise.types import Floats, Floats2D, Ints, Memory, Ranks

POINTS = 0


@jitable
def quantile_points(lengths: Ints, points: int) -> Ints:
    """Step 0 and the quantiles k / points of the lengths, k = 1 ...; step 0 alone where no length is known."""
    if len(lengths) == 0:
        return np.zeros(1, np.int64)
    at = np.zeros(points, np.int64)
    for k in range(1, points):
        at[k] = lengths[k * len(lengths) // points]
    return at


@jitable
def trapezoid(at: Ints) -> Floats:
    """Weights of the trapezoid rule; a single point counts once."""
    weight = np.zeros(len(at))
    if len(at) == 1:
        weight[0] = 1.0
    for k in range(len(at) - 1):
        weight[k] += (at[k + 1] - at[k]) / 2.0
        weight[k + 1] += (at[k + 1] - at[k]) / 2.0
    return weight


@jitable
def expected_loads(ranks: Ranks, memory: Memory, lengths: Ints, at: Ints) -> Floats2D:
    """float64[ranks, points]: tokens expected on each rank; what the policy did not place is taken to stay."""
    table = running_of(memory.ints)
    tick(table, ranks)
    width = cell_width(lengths)
    share = np.empty((len(at), CELLS))
    for k in range(len(at)):
        survivors(lengths, at[k], share[k])
    load = np.empty((len(ranks.batch), len(at)))
    for r in range(len(ranks.batch)):
        others_tokens, others = ranks.context_tokens[r], ranks.batch[r] - table.entries[r]
        for j in range(table.entries[r]):
            others_tokens -= table.context[r, j] + max(table.clock[r] - table.start[r, j], 0)
        for k in range(len(at)):
            load[r, k] = others_tokens + others * at[k]
        for j in range(table.entries[r]):
            age = max(table.clock[r] - table.start[r, j], 0)
            cell = min(age // width, CELLS - 1)
            for k in range(len(at)):
                load[r, k] += share[k, cell] * (table.context[r, j] + age + at[k])
    return load


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    lengths = lengths_seen(history_of(memory.ints))
    at = quantile_points(lengths, int(params[POINTS]))
    load = expected_loads(ranks, memory, lengths, at)
    fresh = np.empty((len(at), CELLS))  # its first cell: age 0
    alive, factor, envelope = np.empty(len(at)), trapezoid(at), np.zeros(len(at))
    for k in range(len(at)):
        survivors(lengths, at[k], fresh[k])
        alive[k] = fresh[k, 0]
        for r in range(len(ranks.batch)):
            envelope[k] = max(envelope[k], load[r, k])
    blocked = False
    for i in range(len(out)):
        tokens = requests.context_tokens[i]
        best, least, fewest = STAY, np.inf, NO_LIMIT
        if not blocked:
            for r in range(len(ranks.batch)):
                if not fits(ranks, r, requests.reserve_tokens[i]):
                    continue
                cost = 0.0
                for k in range(len(at)):
                    beyond = tokens + at[k] - (envelope[k] - load[r, k])
                    cost += factor[k] * alive[k] * max(beyond, 0.0)
                if cost < least or (cost == least and ranks.context_tokens[r] < fewest):
                    best, least, fewest = r, cost, ranks.context_tokens[r]
        out[i] = best
        if best == STAY:
            blocked = True
        else:
            book(ranks, best, requests, i, prices)
            for k in range(len(at)):
                load[best, k] += alive[k] * (tokens + at[k])
                envelope[k] = max(envelope[k], load[best, k])
    note(ranks, requests, memory, out)


SPEC = PolicySpec(
    name="fast_phi",
    place=place,
    summary="least expected overflow over the largest load, weighted by the chance that the request still runs",
    source="DP-BalanceRouter, Fast-Phi (J. Li, May 2026), github.com/JasonJiaxiangLi/DP-BalanceRouter",
    parameters=(
        Parameter("points", 5, "steps at which the loads are compared", low=1, high=64, integer=True),
    ),
    memory_size=memory_size,
    start=start,
    finished=finished,
)

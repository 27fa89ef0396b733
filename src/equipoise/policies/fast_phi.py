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
found the same tie-break necessary for BR-0. A round costs
O(requests running on the ranks that have stepped), a request O(ranks).
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY, Parameter, PolicySpec, book, fits, placement
from equipoise.policies.foresight import (
    ANEW,
    finished,
    history_of,
    memory_with_rows,
    note,
    rows_of,
    shown_of,
    start,
)
from equipoise.policies.running import Running, running_of, tick
from equipoise.policies.survival import CELLS, cell_width, lengths_known, renew, survivors
from equipoise.types import Floats, Floats2D, Ints, Ranks

POINTS = 0


@jitable
def quantile_points(lengths: Ints, points: int) -> Ints:
    """Step 0 and the quantiles k / points of the lengths, k = 1 ...; step 0 again and again where none is known."""
    at = np.zeros(points, np.int64)
    if len(lengths) > 0:
        for k in range(1, points):
            at[k] = lengths[k * len(lengths) // points]
    return at


@jitable
def trapezoid(at: Ints) -> Floats:
    """Weights of the trapezoid rule; where all points are one, that one counts."""
    weight = np.zeros(len(at))
    if at[-1] == 0:
        weight[0] = 1.0
    for k in range(len(at) - 1):
        weight[k] += (at[k + 1] - at[k]) / 2.0
        weight[k + 1] += (at[k + 1] - at[k]) / 2.0
    return weight


@jitable
def expect(table: Running, r: int, ranks: Ranks, share: Floats2D, width: int, at: Ints, row: Floats) -> None:
    """Make the row of a rank: tokens expected at each point. What the policy did not place is taken to stay."""
    others_tokens, others = ranks.context_tokens[r], ranks.batch[r] - table.entries[r]
    row[:] = 0.0
    for j in range(table.entries[r]):
        age = max(table.clock[r] - table.start[r, j], 0)
        cell, tokens = min(age // width, CELLS - 1), table.context[r, j] + age
        others_tokens -= tokens
        for k in range(len(at)):
            row[k] += share[k, cell] * (tokens + at[k])
    for k in range(len(at)):
        row[k] += others_tokens + others * at[k]


@placement
def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
    """See the module."""
    n, table, history = len(ranks.batch), running_of(memory.ints), history_of(memory.ints)
    shown, load = shown_of(memory.ints, n), rows_of(memory.floats, n, int(params[POINTS]))
    tick(table, ranks)
    if renew(history):
        shown[:] = ANEW
    lengths = lengths_known(history)
    at = quantile_points(lengths, int(params[POINTS]))
    share, envelope, width = np.empty((len(at), CELLS)), np.zeros(len(at)), cell_width(lengths)
    for k in range(len(at)):
        survivors(lengths, at[k], share[k])
    for r in range(n):
        if shown[r] != ranks.context_tokens[r]:
            expect(table, r, ranks, share, width, at, load[r])
            shown[r] = ranks.context_tokens[r]
        for k in range(len(at)):
            envelope[k] = max(envelope[k], load[r, k])
    factor = trapezoid(at)  # times S(h), the share of fresh requests that live so long
    for k in range(len(at)):
        factor[k] *= share[k, 0]
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
                    cost += factor[k] * max(beyond, 0.0)
                if cost < least or (cost == least and ranks.context_tokens[r] < fewest):
                    best, least, fewest = r, cost, ranks.context_tokens[r]
        out[i] = best
        if best == STAY:
            blocked = True
        else:
            book(ranks, best, requests, i, prices)
            for k in range(len(at)):
                load[best, k] += share[k, 0] * (tokens + at[k])
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
    memory_size=lambda context: memory_with_rows(context, int(context.params["points"])),
    start=start,
    finished=finished,
)

"""Which box a round is packed into: the limits a step cost sets, and caps on the batch, tried one after the other.

Rules 2 to 4 of `equipoise.policies.equipoise`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import NO_LIMIT, STAY
from equipoise.policies.box import Asked, Load, copy_load, empty, fill, fullest, lightest_below, take
from equipoise.policies.weights import (
    batch_prices,
    level_price,
    rank_weights,
    request_price,
    request_weights,
)
from equipoise.types import Floats, Ints, Prices, Requests

__all__ = ["MEANS", "Box", "choose", "choose_for_many", "choose_for_one", "outline"]

SEEN, MEAN, SQUARE = 0, 1, 2
"""Positions in `floats`: requests seen, means of their weight and its square."""
MEANS = 3
LATELY = 1024
"""Requests over which means are taken."""
CAPS = 3
"""Caps tried before none."""
FINE = 1 << 46
"""The heaviest a rank can be, as a whole number: weights are compared together with a rank's number."""


@jitable
def take_in(floats: Floats, weight: Floats, new: Ints) -> None:
    """Take the weight of the contexts of new requests into the means."""
    for i in range(len(weight)):
        if new[i]:
            floats[SEEN] += 1.0
            share = max(1.0 / floats[SEEN], 1.0 / LATELY)
            floats[MEAN] += share * (weight[i] - floats[MEAN])
            floats[SQUARE] += share * (weight[i] * weight[i] - floats[SQUARE])


@jitable
def by_weight_alone(prices: Prices, batch: int, floats: Floats) -> bool:
    """Whether requests are to weigh what they cost, context or not, and no cap is needed: see `weights`."""
    with_context, without, terms = batch_prices(prices, batch)
    spread = batch * (floats[SQUARE] - floats[MEAN] * floats[MEAN])
    return terms == 1 and with_context >= without and 4.0 * spread >= with_context * with_context


@jitable
def whole_numbers(weight: Floats, unit: float, whole: Ints) -> None:
    """Weights in units so small that none but zero is lost."""
    for k in range(len(weight)):
        whole[k] = int(weight[k] / unit)


class Box(NamedTuple):
    """What a round is packed into."""

    even: float
    """Batch of a rank if all were even."""
    alone: bool
    """Whether weight is all that matters."""
    limit: int
    """Of the weight of a rank."""


@jitable
def outline(
    load: Load, requests: Requests, prices: Prices, new: Ints, floats: Floats, weight: Ints, tops: Floats
) -> Box:
    """Rule 2: the box; fill in the weights of ranks and requests, and the largest price of each term."""
    n, count = len(load.batch), len(weight)
    even = (load.batch.sum() + count) / n
    heavy, heavier = np.zeros(n), np.zeros(count)
    request_weights(prices, requests.context_tokens, heavier)
    take_in(floats, heavier, new)
    alone = by_weight_alone(prices, int(even), floats)
    fixed = batch_prices(prices, int(even))[0] if alone else 0.0
    heavier += fixed
    rank_weights(prices, load, alone, heavy, tops)
    mean = floats[MEAN] + fixed
    square = floats[SQUARE] + fixed * (2.0 * floats[MEAN] + fixed)
    together = heavier.sum()
    most = (heavy.sum() + together) / n + (square / (2.0 * mean) if mean > 0.0 else 0.0)
    unit = max(heavy.max() + together, most) / FINE
    if unit == 0.0:
        unit = 1.0
    whole_numbers(heavy, unit, load.weight)
    whole_numbers(heavier, unit, weight)
    return Box(even, alone, int(most / unit))


@jitable
def cap_at(level: int, box: Box) -> int:
    """The cap on the batch at a level; level -1 is that of the first box, with requests that may wait."""
    return int(np.ceil(box.even)) + max(level, 0) if level < CAPS and not box.alone else NO_LIMIT


@jitable
def choose(
    load: Load, requests: Requests, prices: Prices, new: Ints, patient: Ints, floats: Floats, choice: Ints
) -> None:
    """Write a rank or -1 for each of the first requests into `choice`: rules 2 to 4. Only weights of `load` change."""
    weight, tops = np.empty(len(choice), np.int64), np.zeros(len(prices.context))
    box = outline(load, requests, prices, new, floats, weight, tops)
    if len(choice) == 1:
        choose_for_one(load, requests, prices, weight, patient, box, tops, choice)
    else:
        choose_for_many(load, requests, prices, weight, patient, box, tops, choice)


@jitable
def choose_for_many(
    load: Load,
    requests: Requests,
    prices: Prices,
    weight: Ints,
    patient: Ints,
    box: Box,
    tops: Floats,
    choice: Ints,
) -> None:
    """Fill one box after the other with all requests."""
    n, count = len(load.batch), len(choice)
    order, nobody = np.argsort(-weight, kind="mergesort"), np.zeros(count, np.int64)
    filled, chosen, cheapest = copy_load(load), np.empty(count, np.int64), np.inf
    for level in range(-1 if patient.max() == 1 else 0, CAPS + 1):
        cap = cap_at(level, box)
        asked = Asked(order, weight, patient if level < 0 else nobody)
        beyond = fill(filled, asked, requests, prices, cap, box.limit, chosen)
        price = level_price(prices, filled, chosen, tops)
        waits = 0
        for i in range(count):
            if chosen[i] == STAY and patient[i]:
                waits += 1
                price += request_price(prices, int(box.even), requests.context_tokens[i]) / n
        if price < cheapest:
            cheapest = price
            choice[:] = chosen
        if (beyond == 0 and waits == 0) or (cap == NO_LIMIT and level >= 0):
            break
        empty(filled, load, chosen)


@jitable
def choose_for_one(
    load: Load,
    requests: Requests,
    prices: Prices,
    weight: Ints,
    patient: Ints,
    box: Box,
    tops: Floats,
    choice: Ints,
) -> None:
    """The same for a single request, as in most rounds of a router: nothing to sort, one rank to put back."""
    tokens, reserve_tokens = requests.context_tokens[0], requests.reserve_tokens[0]
    best, cheapest = STAY, np.inf
    for level in range(-1 if patient[0] else 0, CAPS + 1):
        cap = cap_at(level, box)
        rank = fullest(load, cap, box.limit - weight[0], reserve_tokens)
        inside = rank != STAY
        if not inside and level >= 0:
            rank = lightest_below(load, cap, reserve_tokens)
        choice[0] = rank
        if rank != STAY:
            take(load, prices, rank, tokens, 1)
        price = level_price(prices, load, choice, tops)
        if rank != STAY:
            take(load, prices, rank, tokens, -1)
        elif patient[0]:
            price += request_price(prices, int(box.even), tokens) / len(load.batch)
        if price < cheapest:
            best, cheapest = rank, price
        if inside or (cap == NO_LIMIT and level >= 0):
            break
    choice[0] = best

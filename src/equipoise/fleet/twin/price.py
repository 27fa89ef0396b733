"""What a step costs, part by part, in the slow twin: from the requests that decode and the prompts' pieces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from equipoise.cost.evaluate import rank_work, step_price
from equipoise.cost.prefill_evaluate import chunk_work
from equipoise.fleet.twin.state import Fleet, Instance, Request
from equipoise.types import Ints

__all__ = ["Piece", "StepPrice", "price_step", "slowest"]

Piece = tuple[int, int]
"""Tokens of the prompt before it, and its own."""


@dataclass(slots=True)
class StepPrice:
    """A step's price and loads."""

    parts: list[float]
    """In the order of `PARTS`, up to SWAP: they add up to the cost."""
    attention_ideal: float
    cost: float
    ideal: float
    work: float
    batch: Ints
    context: Ints
    saturated: Ints
    tokens: int
    """Tokens the step will yield."""
    queries: int


def slowest(values: list[float]) -> float:
    """The largest, at least 0."""
    return max(0.0, *values)


def left_to_right(values: list[float]) -> float:
    """Sum in order; Python's own `sum` of floats is compensated from 3.12 on."""
    total = values[0]
    for value in values[1:]:
        total += value
    return total


def price_step(fleet: Fleet, instance: Instance, pieces: list[list[Piece]], swapped: int) -> StepPrice:
    """Price the step an instance starts.

    Parameters
    ----------
    fleet : Fleet
    instance : Instance
        ``growth`` of its rows says which decode.
    pieces : list of list of Piece
        What each rank computes of prompts.
    swapped : int
        Tokens swapped in or out.
    """
    prices, extras, width = fleet.prices, fleet.extras, fleet.width
    decoding = [[q for q in rank.rows if q.growth > 0] for rank in instance.ranks]
    lengths = np.asarray(prices.saturation_tokens).tolist()

    batch = np.array([len(rows) for rows in decoding], dtype=np.int64)
    context = np.array([sum(q.size for q in rows) for rows in decoding], dtype=np.int64)
    saturated = np.zeros((width, len(lengths)), dtype=np.int64)
    queries, reads, short_reads = batch.copy(), context.copy(), saturated.copy()
    for r, rows in enumerate(decoding):
        saturated[r] = [sum(min(q.size, n) for q in rows) for n in lengths]
        queries[r] = sum(1 + fleet.drafts(q) for q in rows)
        reads[r] = context[r] + _further_reads(fleet, rows, None)
        short_reads[r] = [saturated[r, s] + _further_reads(fleet, rows, n) for s, n in enumerate(lengths)]
    total_queries = int(queries.sum())
    totals = total_queries, int(reads.sum()), short_reads.sum(axis=0)
    mean = total_queries / width
    attention, ideal, work = (float(x) for x in step_price(prices, queries, reads, short_reads, *totals))

    paid, padding = int(queries.max()), 0.0
    if len(extras.graph_sizes):
        paid = _captured(fleet, paid)
        queries = np.full(width, paid, dtype=np.int64)
        padded = step_price(prices, queries, reads, short_reads, paid * width, *totals[1:])
        padding = float(padded[0]) - attention

    spread = 0.0
    if extras.uneven:
        terms = range(len(prices.context))
        own = [
            [rank_work(prices, t, queries[r], reads[r], short_reads, r) for t in terms] for r in range(width)
        ]
        factors = [rank.slowness for rank in instance.ranks]
        spread = _barriers(float(prices.constant), own, factors, prices.barrier_step) - (attention + padding)

    ffn = extras.ffn_per_mean * mean + extras.ffn_per_max * paid
    ffn_ideal = (extras.ffn_per_mean + extras.ffn_per_max) * mean
    skew = skew_ideal = 0.0
    if len(extras.skew):
        factor = float(extras.skew[(instance.steps + instance.number * 9973) & 0xFFFF])
        skew, skew_ideal = ffn * (factor - 1), ffn_ideal * (factor - 1)
    comm = extras.comm_fixed + extras.comm_per_mean * mean + extras.comm_per_max * paid
    comm_ideal = (extras.comm_per_mean + extras.comm_per_max) * mean
    mixed, mixed_ideal = _mixed(fleet, instance, pieces)
    swap = swapped * fleet.life.swap_s_per_token / fleet.settings.seconds_per_unit

    parts = [attention, padding, spread, extras.overhead, ffn, skew, comm, mixed, swap]
    beyond = [extras.overhead, ffn_ideal, skew_ideal, extras.comm_fixed, comm_ideal, mixed_ideal]
    return StepPrice(
        parts,
        attention_ideal=ideal,
        cost=left_to_right(parts),
        ideal=left_to_right([ideal, *beyond]),
        work=left_to_right([work, *beyond]),
        batch=batch,
        context=context,
        saturated=saturated,
        tokens=sum(q.growth for rows in decoding for q in rows),
        queries=total_queries,
    )


def _further_reads(fleet: Fleet, rows: list[Request], length: int | None) -> int:
    """Context tokens that the query tokens beyond each request's first read again."""
    drafted = sum(fleet.drafts(q) * (q.size if length is None else min(q.size, length)) for q in rows)
    return math.floor(fleet.extras.query_reads * drafted)


def _captured(fleet: Fleet, batch: int) -> int:
    """Batch of the smallest graph that holds so many; the batch itself above the last."""
    if batch == 0:
        return 0
    return min((int(g) for g in fleet.extras.graph_sizes if g >= batch), default=batch)


def _barriers(start: float, own: list[list[float]], factors: list[float], one: int) -> float:
    """Price of work by rank and term, at each rank's speed: one barrier, or one a term."""
    if one:
        return start + slowest(
            [factor * left_to_right([0.0, *terms]) for factor, terms in zip(factors, own, strict=True)]
        )
    for t in range(len(own[0])):
        start += slowest([factor * terms[t] for factor, terms in zip(factors, own, strict=True)])
    return start


def _mixed(fleet: Fleet, instance: Instance, pieces: list[list[Piece]]) -> tuple[float, float]:
    """Price of the prompts' pieces in a step, and its ideal."""
    if not any(pieces):
        return 0.0, 0.0
    prices = fleet.prefill_prices
    own = [
        [left_to_right([0.0, *(chunk_work(prices, t, *piece) for piece in mine)]) for t in range(len(prices.token))]
        for mine in pieces
    ]  # fmt: skip
    start = max(0.0, float(prices.constant - fleet.prices.constant))
    ideal = start
    for t in range(len(prices.token)):
        ideal += left_to_right([0.0, *(terms[t] for terms in own)]) / fleet.width
    return _barriers(start, own, [rank.slowness for rank in instance.ranks], prices.barrier_step), ideal

"""Who decides how many drafts are verified: the rules that a simulation compares."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from equipoise.control.loads import rank_sums
from equipoise.control.price import VerifyPrice
from equipoise.control.rank_argmax import best_within, own_times, profiled_times, rank_argmax
from equipoise.control.state import Snapshot
from equipoise.control.verify import allocate
from equipoise.control.wait_slope import GRAPH_INTERVAL, WaitSlope
from equipoise.errors import InputError, nearest
from equipoise.types import Ints

__all__ = ["ACTUATORS", "STRATEGIES", "Named", "Strategy", "parse_strategy", "strategy"]

STRATEGIES = {
    "none": "no draft is verified",
    "fixed": "the same number of drafts for every request: fixed,K",
    "argmax": "every rank for itself, by a start-up profile of token counts (DSpark, vLLM)",
    "argmax_own": "every rank for itself, by its own true time with its own contexts",
    "argmax_waits": "every rank for itself, by a profile corrected with measured steps, waiting included (DeepInfer)",
    "padded": "argmax by a profile of graphs, and all ranks run the largest one's graph (SGLang)",
    "padded_filled": "the same, but what would be padding verifies drafts",
    "equipoise": "ours: all ranks together",
}

ACTUATORS = {
    "pauses": "requests of the slowest rank sit out a few steps",
    "freezes": "ranks that are behind take no new requests for a while: those wait",
    "detours": "the same, but new requests are placed elsewhere",
}


class Named(NamedTuple):
    """A strategy's name, taken apart."""

    kind: str
    drafts: int
    """Of ``fixed``."""
    actuators: frozenset[str]


def parse_strategy(name: str) -> Named:
    """Take a strategy's name apart: ``fixed,3+pauses+freezes``.

    Raises
    ------
    InputError
        An unknown word, or a number where none belongs.
    """
    rule, *extra = name.split("+")
    kind, comma, number = rule.partition(",")
    if kind not in STRATEGIES:
        raise InputError(f"no strategy named {kind!r}", fix=nearest(kind, STRATEGIES))
    if (kind == "fixed") != bool(comma) or (comma and not (number.isdecimal() and len(number) < 4)):
        raise InputError(f"strategy {rule!r}", fix="give fixed its number of drafts (fixed,3), others none")
    for word in extra:
        if word not in ACTUATORS:
            raise InputError(f"strategy {name!r}: no means named {word!r}", fix=nearest(word, ACTUATORS))
    if {"freezes", "detours"} <= set(extra):
        raise InputError(f"strategy {name!r}", fix="freezes or detours: new requests wait, or go elsewhere")
    return Named(kind, int(number or 0), frozenset(extra))


class Strategy:
    """A rule with what it remembers; this one takes one length for all.

    Parameters
    ----------
    price : VerifyPrice
        What a step costs in the engine it runs in.
    drafts : int
        The length.
    """

    def __init__(self, price: VerifyPrice, drafts: int = 0) -> None:
        self.price, self._drafts = price, drafts

    def lengths(self, snapshot: Snapshot) -> Ints:
        """Verified drafts of each request, on what an earlier step knew."""
        return np.full(len(snapshot.context_tokens), min(self._drafts, snapshot.drafts))

    def measured(self, step_time: float) -> None:
        """Tell it how long the step took: the same for all ranks, whoever waited for whom."""


class Argmax(Strategy):
    """Every rank for itself, by a start-up profile."""

    def __init__(self, price: VerifyPrice, most_queries: int) -> None:
        super().__init__(price)
        self._profile = profiled_times(price, most_queries)

    def lengths(self, snapshot: Snapshot) -> Ints:
        return rank_argmax(snapshot, np.tile(self._profile[: _most(snapshot)], (snapshot.ranks, 1)))


class ArgmaxOwn(Strategy):
    """Every rank for itself, by its own true time."""

    def lengths(self, snapshot: Snapshot) -> Ints:
        return rank_argmax(snapshot, own_times(snapshot, self.price))


class ArgmaxWaits(Argmax):
    """DeepInfer's: the profile and a slope learnt from measured steps; budgets a step older than their use."""

    def __init__(self, price: VerifyPrice, most_queries: int) -> None:
        super().__init__(price, most_queries)
        self._slope = WaitSlope(self._profile, price.graph_sizes)
        self._budget = np.zeros(0, dtype=np.int64)
        self._queries = np.zeros(0, dtype=np.int64)

    def lengths(self, snapshot: Snapshot) -> Ints:
        most = _most(snapshot)
        slopes = self._slope.per_query(snapshot.ranks)
        times = self._profile[:most] + slopes[:, None] * self._slope.sizes[:most]
        fresh = rank_sums(1 + rank_argmax(snapshot, times), snapshot.first)
        budget = self._budget if len(self._budget) else fresh
        self._budget = fresh
        lengths = best_within(snapshot, budget - np.diff(snapshot.first))
        self._queries = rank_sums(1 + lengths, snapshot.first)
        return lengths

    def measured(self, step_time: float) -> None:
        self._slope.add(self._queries, step_time)


class Padded(Argmax):
    """SGLang's: each rank asks for what its own argmax says, and all run the graph of the largest demand."""

    def __init__(self, price: VerifyPrice, most_queries: int, *, filled: bool) -> None:
        sizes = price.graph_sizes or range(GRAPH_INTERVAL, most_queries + GRAPH_INTERVAL, GRAPH_INTERVAL)
        super().__init__(replace(price, graph_sizes=tuple(sizes)[:4096]), most_queries)
        self._filled = filled

    def lengths(self, snapshot: Snapshot) -> Ints:
        lengths = super().lengths(snapshot)
        if not self._filled or not len(lengths):
            return lengths
        most = int(rank_sums(1 + lengths, snapshot.first).max())
        graphs = self.price.arrays.graphs
        level = int(graphs[np.searchsorted(graphs, most)]) if most <= graphs[-1] else most
        return best_within(snapshot, level - np.diff(snapshot.first))


def _most(snapshot: Snapshot) -> int:
    """Numbers of query tokens that any rank can choose from."""
    return int(np.diff(snapshot.first).max()) * (1 + snapshot.drafts) + 1


class Equipoise(Strategy):
    """All ranks together."""

    def lengths(self, snapshot: Snapshot) -> Ints:
        plan = allocate(snapshot, self.price)
        return plan.lengths(plan.for_step)


def strategy(name: str, price: VerifyPrice, most_queries: int) -> Strategy:
    """Make a strategy.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`; ``fixed,3`` for three drafts each. Actuators in it are not its affair.
    price : VerifyPrice
    most_queries : int
        Query tokens a rank may come to.
    """
    named = parse_strategy(name)
    if named.kind in ("none", "fixed"):
        return Strategy(price, named.drafts)
    if named.kind.startswith("padded"):
        return Padded(price, most_queries, filled=named.kind == "padded_filled")
    if named.kind in ("argmax", "argmax_waits"):
        return {"argmax": Argmax, "argmax_waits": ArgmaxWaits}[named.kind](price, most_queries)
    return {"argmax_own": ArgmaxOwn, "equipoise": Equipoise}[named.kind](price)

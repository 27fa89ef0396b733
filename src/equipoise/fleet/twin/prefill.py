"""The prefill pool of the slow twin: ranks with queues of prompts, instances that step together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from equipoise.cost.prefill_evaluate import chunk_work
from equipoise.fleet.kernel.layout import COUNTS
from equipoise.fleet.twin.price import Piece, left_to_right, slowest
from equipoise.fleet.twin.state import Fleet, Request

__all__ = ["PrefillPool"]


@dataclass(eq=False, slots=True)
class _PrefillRank:
    queue: list[Request] = field(default_factory=list)
    taken: list[tuple[Request, int]] = field(default_factory=list)
    """What the step under way computes."""

    @property
    def backlog(self) -> int:
        """Tokens still to compute; those of the step under way count until it ends."""
        return sum(q.to_prefill for q in self.queue)


class PrefillPool:
    """Instances that compute prompts."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        life = fleet.life
        self.instances = [
            [_PrefillRank() for _ in range(life.prefill_ranks)] for _ in range(life.prefill_instances)
        ]
        self.end_s = [math.inf] * life.prefill_instances

    @property
    def backlog(self) -> int:
        """Tokens still to compute."""
        return sum(rank.backlog for ranks in self.instances for rank in ranks)

    def join(self, q: Request, missing: int) -> None:
        """Queue a prompt at the rank with the least to do."""
        q.to_prefill = missing
        least = min((rank for ranks in self.instances for rank in ranks), key=lambda rank: rank.backlog)
        least.queue.append(q)

    def end(self, number: int) -> list[Request]:
        """End the step of an instance: the prompts completed, rank by rank."""
        self.end_s[number] = math.inf
        completed = []
        for rank in self.instances[number]:
            for q, tokens in rank.taken:
                q.to_prefill -= tokens
                if q.to_prefill == 0:
                    rank.queue.remove(q)
                    completed.append(q)
            rank.taken = []
        return completed

    def start(self) -> None:
        """Start a step wherever an idle instance has something to compute."""
        for number, ranks in enumerate(self.instances):
            if self.end_s[number] == math.inf and any(rank.queue for rank in ranks):
                self._start(number, ranks)

    def _start(self, number: int, ranks: list[_PrefillRank]) -> None:
        fleet = self.fleet
        pieces: list[list[Piece]] = []
        for rank in ranks:
            budget, mine = fleet.life.chunk_tokens, []
            for q in rank.queue:
                tokens = min(q.to_prefill, budget)
                if tokens == 0:
                    break
                budget -= tokens
                rank.taken.append((q, tokens))
                mine.append((q.size - q.to_prefill, tokens))
            pieces.append(mine)
        fleet.counts[COUNTS.PREFILL_STEPS] += 1
        fleet.counts[COUNTS.PREFILL_TOKENS] += sum(tokens for mine in pieces for _, tokens in mine)
        self.end_s[number] = fleet.now + self._price(pieces) * fleet.settings.seconds_per_unit

    def _price(self, pieces: list[list[Piece]]) -> float:
        prices = self.fleet.prefill_prices
        terms = range(len(prices.token))
        own = [
            [left_to_right([0.0, *(chunk_work(prices, t, *piece) for piece in mine)]) for t in terms]
            for mine in pieces
        ]
        if prices.barrier_step:
            return float(prices.constant) + slowest([left_to_right([0.0, *work]) for work in own])
        price = float(prices.constant)
        for t in terms:
            price += slowest([work[t] for work in own])
        return price

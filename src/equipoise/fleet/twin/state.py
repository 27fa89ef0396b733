"""The slow twin's objects: requests, ranks, instances, and the fleet that holds them all."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np

from equipoise.cost.prefill import PrefillPrices
from equipoise.fleet.kernel.layout import (
    NOT_ENDED,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    FleetSettings,
    Life,
    Ranked,
)
from equipoise.replay.layout import Outcome, PoolLayout, Work
from equipoise.types import Floats, Ints, Prices

__all__ = ["ARRIVES", "READY", "Fleet", "Instance", "Rank", "Request", "of"]

ARRIVES, READY = 0, 1
"""What a later entry of the heap does at its time."""


@dataclass(eq=False, slots=True)
class Request:
    """One request, wherever it is; its fields are those of the rules."""

    row: int
    context: int
    output: int
    size: int
    """Context now, in tokens."""
    until: int
    """Context at which it stops."""
    cached: int
    session: int
    replica: int
    owed: int = 0
    tries: int = 0
    preemptions: int = 0
    swapped: bool = False
    status: int = NOT_ENDED
    came_s: float = math.nan
    queued_s: float = math.nan
    placed_s: float = math.nan
    start_s: float = math.nan
    first_s: float = math.nan
    ended_s: float = math.nan
    # At the router.
    offered_boundary: int = -1
    # On a rank: size at dispatch, size at admission, decode steps since, tokens to compute, growth of this step.
    rank: int = -1
    dispatched_size: int = 0
    admitted_size: int = 0
    decodes: int = 0
    lack: int = 0
    growth: int = 0
    """Tokens of the step under way; 0: it does not decode in it."""
    # In the prefill pool.
    to_prefill: int = 0


@dataclass(eq=False, slots=True)
class Rank:
    """A rank: what it runs, in order of admission, and what waits in its engine."""

    number: int
    capacity: int
    max_batch: int
    slowness: float
    up: bool = True
    closed: bool = False
    """The routers know that nothing may go there."""
    frozen: int = 0
    rows: list[Request] = field(default_factory=list)
    queue: list[Request] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Instance:
    """Ranks that share a barrier."""

    number: int
    ranks: list[Rank]
    end_s: float = math.inf
    stalled: bool = False
    """What ends at ``end_s`` is not a step but a stall."""
    steps: int = 0
    tpot_s: float = 0.0
    """Learnt time per output token, for pictures that extrapolate."""
    next_report_s: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether it runs a step, or is stalled."""
        return self.end_s != math.inf

    @property
    def up(self) -> bool:
        """Whether any rank is up."""
        return any(rank.up for rank in self.ranks)

    @property
    def ready(self) -> bool:
        """Whether it could start a step."""
        return self.up and not self.busy

    @property
    def empty(self) -> bool:
        """Whether no request is on it."""
        return not any(rank.rows or rank.queue for rank in self.ranks)


def of(column: Ints, row: int) -> int:
    """Entry of a column; one entry holds for all rows."""
    return int(column[row if len(column) > 1 else 0])


class Fleet:
    """Inputs, outputs and state of a run."""

    def __init__(
        self,
        work: Work,
        layout: PoolLayout,
        settings: FleetSettings,
        life: Life,
        ranked: Ranked,
        extras: Extras,
        draws: Draws,
        changes: Changes,
        prices: Prices,
        prefill_prices: PrefillPrices,
        params: Floats,
        memory_ints: Ints,
        memory_floats: Floats,
        outcome: Outcome,
        fleet_outcome: FleetOutcome,
    ) -> None:
        self.work, self.layout, self.settings, self.life = work, layout, settings, life
        self.ranked, self.extras, self.draws, self.changes = ranked, extras, draws, changes
        self.prices, self.prefill_prices, self.params = prices, prefill_prices, params
        self.memory_ints, self.memory_floats = memory_ints, memory_floats
        self.out, self.fleet_out = outcome, fleet_outcome
        self.ended, self.counts = outcome.ended, fleet_outcome.counts

        width = layout.ranks_per_instance
        self.ranks = [
            Rank(r, int(ranked.kv_capacity_tokens[r]), int(ranked.max_batch[r]), float(ranked.slowness[r]))
            for r in range(layout.instances * width)
        ]
        self.instances = [
            Instance(p, self.ranks[p * width : (p + 1) * width]) for p in range(layout.instances)
        ]
        self.requests = [self._request(row) for row in range(len(work.context_tokens))]
        self.now = 0.0
        self.queue: list[Request] = []
        self.later: list[tuple[float, int, int, Request]] = []
        """Heap of (time, number of insertion, ARRIVES or READY, request)."""
        self.inserted = 0
        self.released = 0
        """Rows that came by themselves."""
        self.next_change = 0
        self.boundaries = 0
        self.started = 0
        self.idle_rounds = 0
        self.counting = False

    def _request(self, row: int) -> Request:
        context, output = int(self.work.context_tokens[row]), int(self.work.output_tokens[row])
        session = of(self.work.session, row)
        return Request(
            row,
            context,
            output,
            size=context,
            until=context + min(output, of(self.life.leaves_after, row)),
            cached=of(self.life.cached_tokens, row),
            session=session,
            replica=(session if session >= 0 else row) % self.settings.replicas,
        )

    @property
    def width(self) -> int:
        """Ranks of an instance."""
        return self.layout.ranks_per_instance

    @property
    def largest(self) -> int:
        """Most tokens that any rank takes."""
        return max(rank.capacity for rank in self.ranks) - self.layout.growth_reserve_tokens

    @property
    def any_up(self) -> bool:
        """Whether any rank is up."""
        return any(rank.up for rank in self.ranks)

    @property
    def hopeless(self) -> bool:
        """Whether no rank is up, and none ever will be."""
        return not self.any_up and self.next_change == len(self.changes.time_s)

    @property
    def in_pool(self) -> int:
        """Requests on ranks, running or in an engine's queue."""
        return sum(len(rank.rows) + len(rank.queue) for rank in self.ranks)

    @property
    def rows_to_come(self) -> int:
        """Rows that still come by themselves."""
        every = len(self.requests) if self.settings.saturated else len(self.life.first_rows)
        return every - self.released

    def instance_of(self, rank: int) -> Instance:
        """Instance that a rank belongs to."""
        return self.instances[rank // self.width]

    def hold(self, tokens: int) -> int:
        """KV tokens that a context takes: whole blocks."""
        block = self.life.block_tokens
        return ((tokens + block - 1) >> self.life.block_shift) * block

    def missing(self, q: Request) -> int:
        """Tokens of its context that are not computed."""
        return max(0, q.size - (q.cached if q.tries == 0 else 0))

    def insert(self, time_s: float, kind: int, q: Request) -> None:
        """Enter something that happens later."""
        heapq.heappush(self.later, (time_s, self.inserted, kind, q))
        self.inserted += 1

    def drafts(self, q: Request) -> int:
        """Draft tokens of a request's step; 0 without speculation."""
        return (
            int(self.draws.drafts[q.row if len(self.draws.drafts) > 1 else 0])
            if len(self.draws.drafts)
            else 0
        )

    def growth(self, q: Request, decodes: int, admitted_size: int) -> int:
        """Tokens that a request's next decode step yields, so many decode steps after its admission."""
        if not len(self.draws.drafts):
            return 1
        position = (int(self.draws.phase[q.row]) + decodes + (admitted_size - q.context)) & 0xFFFF
        accepted = int(self.draws.accepted[position])
        return min(1 + min(self.drafts(q), accepted), q.until - q.size)

    def write_requests(self) -> None:
        """Write what was kept of every request, and what is left at the end."""
        out, fleet_out = self.out, self.fleet_out
        for q in self.requests:
            fleet_out.status[q.row], fleet_out.tries[q.row] = q.status, q.tries
            out.rank[q.row] = q.rank
            if not self.settings.keep_requests:
                continue
            out.start_s[q.row] = q.start_s
            fleet_out.came_s[q.row], fleet_out.queued_s[q.row] = q.came_s, q.queued_s
            fleet_out.placed_s[q.row], fleet_out.first_s[q.row] = q.placed_s, q.first_s
            fleet_out.ended_s[q.row] = q.ended_s
            fleet_out.preemptions[q.row] = q.preemptions
            if q.status != NOT_ENDED:
                fleet_out.tokens[q.row] = q.size - q.context

    def residue(self) -> int:
        """What is left on the ranks, added up."""
        lengths = np.asarray(self.prices.saturation_tokens).tolist()
        left = 0
        for rank in self.ranks:
            left += len(rank.queue)
            for q in rank.rows:
                left += 1 + q.size + self.hold(q.size) + sum(min(q.size, n) for n in lengths)
        return left

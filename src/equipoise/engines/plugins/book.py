"""`Book`: an engine's balancer in one object; a router's ledger kept by the engine's own events.

The engine must have a rank at once, so nothing waits here: what fits on no rank, or what the policy would hold back,
goes where the most room is, and waits in the engine's own queue there.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Container, Sequence
from pathlib import Path

import numpy as np

from equipoise.engines.plugins.options import Options
from equipoise.engines.plugins.peers import Peers
from equipoise.router import Arrival, Dispatch, InstanceSpec, RankReport, Router, Settings
from equipoise.router.decisions import DecisionLog
from equipoise.types import Ints

__all__ = ["Book"]

CHOSEN_BY = ("policy", "overflow", "pinned", "engine")
"""Who has chosen a rank; overflow: it fits nowhere, and went where most room is."""
LONG_S = 1e9
TICK_S = 1.0


class Book:
    """Ledger and policy of one engine, in its process.

    Parameters
    ----------
    options : Options
    ranks : int
    lock_step : bool
        Whether the ranks wait for each other at every step; if not, each is an instance of its own.
    kv_capacity_tokens, max_batch : int, optional
        Of a rank; none: not known.
    peers : Peers, optional
        Other processes that place on the same ranks.
    decisions : str, optional
        File to append the decision log to, instead of that of the options.
    log : Logger, optional
        Where to say what was placed; engines show only what goes to theirs.
    clock : callable
        Seconds that do not go back.

    Raises
    ------
    InputError
        A policy or a cost that there is not.
    """

    def __init__(
        self,
        options: Options,
        ranks: int,
        *,
        lock_step: bool = True,
        kv_capacity_tokens: int | None = None,
        max_batch: int | None = None,
        peers: Peers | None = None,
        decisions: str | None = None,
        log: logging.Logger | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from equipoise.cost import load
        from equipoise.policies import parse

        self._options, self._clock, self._peers = options, clock, peers
        self._log = log or logging.getLogger(__name__)
        self._lock_step, self._limits = lock_step, (kv_capacity_tokens, max_batch)
        self._policy, self._cost = options.policy, load(options.cost)
        self._sink = None
        decisions = options.decisions if decisions is None else decisions
        if decisions:
            file = Path(decisions).open("ab", buffering=0)  # noqa: SIM115  as long as there is a book
            weakref.finalize(self, file.close)
            self._sink = DecisionLog(file)
        for name in (options.policy, *options.shadows):
            parse(name)
        self._leases: dict[str, int] = {}
        self.counts = dict.fromkeys((*CHOSEN_BY, "ended", "aborted", "handed over"), 0)
        self._spoke_s, self._spoken = clock(), 0
        self._ticked_s = clock()
        self._begin(ranks)

    def _begin(self, ranks: int) -> None:
        capacity, batch = self._limits
        widths = [ranks] if self._lock_step else [1] * ranks
        options = self._options
        self.ranks = ranks
        self._first = [0] if self._lock_step else list(range(ranks))
        self.router = Router(
            [InstanceSpec(f"dp{i}", width, capacity, batch) for i, width in enumerate(widths)],
            self._policy,
            self._cost,
            Settings(
                counts="stream",
                reports="none",  # of the past; own events and those of peers are not
                growth_reserve_tokens=options.reserve_tokens,
                affinity_bonus=options.affinity,
                max_requests=1 << 22,
                forget_after_s=LONG_S,
                lease_ttl_s=LONG_S,  # what the engine still has is what `reconcile` is told
                leak_after_s=LONG_S,
                breaker_failures=1_000_000,
            ),
            self._clock(),
            options.seed,
            sink=self._sink,
            shadows=options.shadows,
        )

    def warm_up(self) -> None:
        """Have everything compiled before the first request."""
        spare = Book(self._options, self.ranks, lock_step=self._lock_step, decisions="", clock=self._clock)
        spare.others(np.zeros(self.ranks, np.int64), np.zeros(self.ranks, np.int64))
        spare.place("warm", 1, 1)
        spare.took("warmer", 0, 1)
        for name in ("warm", "warmer"):
            spare.tokens(name, 1)
            spare.ended(name, completed=True)
        spare.router.tick(self._clock())

    # -- requests ------------------------------------------------------------------------------------------------

    def place(
        self, request_id: str, context_tokens: int, budget_tokens: int = -1, session: str | None = None
    ) -> int | None:
        """The rank for a request; none: it is known already, or no prompt at all: let the engine choose."""
        now_s, router = self._clock(), self.router
        if self._peers is not None:
            router.others(now_s, *self._peers.read(self.ranks))
        arrival = Arrival(request_id, context_tokens, budget_tokens, session)
        actions = router.arrived(now_s, arrival)
        for action in actions:
            if isinstance(action, Dispatch) and action.request_id == request_id:
                self._leases[request_id] = action.lease
                self.counts["policy"] += 1
                self._say(now_s)
                return self._first[action.instance] + action.rank
        if not actions:  # it is queued
            router.cancelled(now_s, request_id)
        if request_id in self._leases or context_tokens <= 0:
            return None
        rank = self._roomiest(now_s)
        if rank is not None and self._adopt(now_s, request_id, rank, context_tokens):
            self.counts["overflow"] += 1
            return rank
        return None

    def took(self, request_id: str, rank: int, context_tokens: int, *, pinned: bool = False) -> None:
        """Somebody else has chosen the rank of a request: its client, or the engine's own balancer."""
        if self._adopt(self._clock(), request_id, rank, context_tokens):
            self.counts["pinned" if pinned else "engine"] += 1

    def tokens(self, request_id: str, count: int) -> None:
        """A request has generated so many tokens more."""
        lease = self._leases.get(request_id)
        if lease is not None:
            self.router.tokens(self._clock(), lease, count)

    def ended(self, request_id: str, *, completed: bool) -> None:
        """A request is no more; saying so again, or of one that is not known, does nothing."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            return
        if completed:
            self.router.finished(self._clock(), lease)
        else:
            self.router.aborted(self._clock(), lease, "cancelled")
        self.counts["ended" if completed else "aborted"] += 1

    def handed_over(self, request_id: str) -> None:
        """A request is in what its rank publishes from now on: it is not counted here any more."""
        lease = self._leases.pop(request_id, None)
        if lease is not None:
            self.router.aborted(self._clock(), lease, "cancelled")
            self.counts["handed over"] += 1

    def reconcile(self, alive: Container[str]) -> int:
        """End all leases but those of requests the engine still has; how many there were."""
        gone = [request_id for request_id in self._leases if request_id not in alive]
        for request_id in gone:
            self.ended(request_id, completed=False)
        return len(gone)

    # -- engine --------------------------------------------------------------------------------------------------

    def share(self) -> None:
        """Tell peers what is on the ranks now; to be called whenever that has changed."""
        now_s = self._clock()
        if self._peers is not None:
            self._peers.write(*self.own())
        if now_s - self._ticked_s >= TICK_S:
            self._ticked_s = now_s
            self.router.tick(now_s)

    def own(self) -> tuple[Ints, Ints]:
        """Own requests and their tokens, rank by rank."""
        ranks = self.router._tables.world.ranks
        return ranks["batch"], ranks["context"]

    def others(self, batch: Sequence[int] | Ints, context_tokens: Sequence[int] | Ints) -> None:
        """What is on the ranks beside own requests."""
        self.router.others(self._clock(), batch, context_tokens)

    def limit(self, rank: int, kv_capacity_tokens: int, max_batch: int) -> None:
        """Limits of a rank, as the engine says them."""
        instance, local = self._locate(rank)
        now_s = self._clock()
        self.router.report(
            now_s,
            RankReport(
                instance,
                local,
                running=0,
                kv_capacity_tokens=kv_capacity_tokens or None,
                max_batch=max_batch or None,
                taken_at_s=now_s,
            ),
        )

    def serve(self, rank: int, serves: bool) -> None:
        """Whether a rank takes requests."""
        instance, local = self._locate(rank)
        change = self.router.undrain if serves else self.router.drain
        change(self._clock(), instance, local if self._lock_step else None)

    def resize(self, ranks: int) -> None:
        """The engine has another number of ranks now; requests on those that are gone are forgotten."""
        first = {spec.name: at for spec, at in zip(self.router.instances, self._first, strict=True)}
        rows = [(first[str(row["instance"])] + int(row["rank"]), row) for row in self.router.snapshot()]
        self._leases.clear()
        self._begin(ranks)
        now_s = self._clock()
        for rank, row in rows:
            context, generated = int(row["context_tokens"]), int(row["output_tokens"])
            self._adopt(now_s, str(row["request_id"]), rank, context, generated)
        self._log.info("equipoise: the engine has %d ranks now", ranks)

    # -- inside --------------------------------------------------------------------------------------------------

    def _locate(self, rank: int) -> tuple[int, int]:
        return (0, rank) if self._lock_step else (rank, 0)

    def _adopt(
        self, now_s: float, request_id: str, rank: int, context_tokens: int, generated: int = 0
    ) -> bool:
        if not 0 <= rank < self.ranks:
            return False
        lease = self.router.adopt(now_s, request_id, *self._locate(rank), context_tokens, generated)
        if lease is None:
            return False
        self._leases[request_id] = lease
        return True

    def _roomiest(self, now_s: float) -> int | None:
        """The rank that serves and has the fewest tokens for its capacity, then the fewest requests."""
        view = self.router.view(now_s)
        serving = np.flatnonzero(~view.drained)
        if not len(serving):
            return None
        share = view.context_tokens / np.where(view.capacity_tokens > 0, view.capacity_tokens, 1)
        return int(serving[np.lexsort((view.batch[serving], share[serving]))[0]])

    def _say(self, now_s: float) -> None:
        if not self._options.log_s or now_s - self._spoke_s < self._options.log_s:
            return
        placed = sum(self.counts[name] for name in CHOSEN_BY)
        if placed == self._spoken:
            return
        self._spoke_s, self._spoken = now_s, placed
        batch, context = self.own()
        self._log.info(
            "equipoise: %s; now on the ranks: %d to %d requests, %d to %d tokens",
            ", ".join(f"{count} {name}" for name, count in self.counts.items() if count),
            batch.min(),
            batch.max(),
            context.min(),
            context.max(),
        )

    @property
    def leases(self) -> int:
        """Requests on the ranks."""
        return len(self._leases)

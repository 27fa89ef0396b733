"""`OwnPool`: where a policy that only looks on would have the requests that run.

It holds the same requests as the real pool, each from the moment it is dispatched to the moment it ends, with the same
tokens; only the ranks are the shadow's. What reports show of others, limits, drains and health are those of the real
pool: a pool of its own differs from it by the requests that are elsewhere, and only that difference is kept. Requests
that come and end change it at once; the tokens they have grown by are looked up every `FRESH_S`, from the ledger, so
that nothing drifts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from equipoise.policies.views import copy_ranks
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import ENTRY, LIVE, NOBODY, SET, World
from equipoise.types import Floats, Ints, Ranks

if TYPE_CHECKING:
    from equipoise.router.books import Books

__all__ = ["Living", "OwnPool"]


FRESH_S = 0.02
"""Less than a step takes: tokens come once a step."""

STATE, GENERATION, RANK, CONTEXT, TOKENS, SENT = (
    list(ENTRY.names or ()).index(name)
    for name in ("state", "generation", "rank", "context", "tokens", "dispatched_s")
)
"""Columns of the table of requests, taken as one of numbers."""


class Living:
    """The leases there are, looked up once for all shadows.

    Parameters
    ----------
    world : World
    now_s : float
    """

    def __init__(self, world: World, now_s: float) -> None:
        rows = world.entries.view(np.int64).reshape(len(world.entries), -1)  # all fields are of eight bytes
        at = np.flatnonzero((rows[:, STATE] == LIVE) & (rows[:, RANK] != NOBODY))
        found = rows.take(at, axis=0)
        self.at, self.generation, self.rank = at, found[:, GENERATION], found[:, RANK]
        self.length = found[:, CONTEXT] + found[:, TOKENS]
        lengths = world.prices.saturation_tokens
        self.saturated = np.minimum(self.length[:, None], lengths[None, :])
        if world.settings[SET.EXTRAPOLATED] and len(at):  # as `picture.growth` does for a whole rank
            sent_s = found[:, SENT].view(np.float64)
            pace_s = world.instances["pace_s"][world.view.instance[self.rank]]
            grown = np.where(pace_s > 0, (now_s - sent_s) / np.where(pace_s > 0, pace_s, 1), 0)
            self.length = self.length + np.maximum(grown, 0).astype(np.int64)


class OwnPool:
    """The ranks a shadow has chosen, and the pool as it would be."""

    def __init__(self) -> None:
        self._home = np.zeros(0, np.int64)
        self._known = np.zeros(0, np.int64)
        """One more than the generation of the entry whose rank is written down; 0: none is."""
        self._batch = self._context = np.zeros(0, np.int64)
        """What each rank has more than really; and of saturated tokens:"""
        self._saturated = np.zeros((0, 0), np.int64)
        self._looked_s = -np.inf

    def forget(self, world: World) -> None:
        """Begin anew, with every request where it really is."""
        self._known[:] = 0
        n = len(world.ranks)
        self._batch, self._context = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._saturated = np.zeros((n, len(world.prices.saturation_tokens)), np.int64)
        self._looked_s = -np.inf

    def stale(self, now_s: float) -> bool:
        """Whether the difference is to be looked up anew."""
        return now_s - self._looked_s >= FRESH_S

    def look_up(self, world: World, living: Living, now_s: float) -> None:
        """Sum up what is elsewhere."""
        n, homes = len(world.ranks), self.homes(living)
        moved = np.flatnonzero(homes != living.rank)
        to, off = homes[moved], living.rank[moved]

        def shift(weights: Ints | None = None) -> Ints:
            """What comes to each rank, less what goes; sums are whole numbers far below 2**53."""
            more = np.bincount(to, weights, n) - np.bincount(off, weights, n)
            return more.astype(np.int64)

        self._batch, self._context = shift(), shift(living.length[moved])
        for s in range(len(world.prices.saturation_tokens)):
            self._saturated[:, s] = shift(living.saturated[moved, s])
        self._looked_s = now_s

    def _count(self, world: World, to: int, off: int, tokens: int, sign: int) -> None:
        if to == off or NOBODY in (to, off):
            return
        for rank, way in ((to, sign), (off, -sign)):
            self._batch[rank] += way
            self._context[rank] += way * tokens
            for s, most in enumerate(world.prices.saturation_tokens.tolist()):
                self._saturated[rank, s] += way * min(tokens, most)

    def placed(self, world: World, e: int, generation: int, rank: int, real: int, context: int) -> None:
        """A request has been dispatched: to a rank really, to another one here."""
        self.put(e, generation, rank)
        self._count(world, rank, real, context, 1)

    def ended(self, world: World, e: int, generation: int, real: int, tokens: int) -> None:
        """A request that ran on a rank really has ended, with so many tokens."""
        self._count(world, self.home(e, generation), real, tokens, -1)

    def put(self, e: int, generation: int, rank: int) -> None:
        """Write down where an entry's request would be."""
        if e >= len(self._home):
            more = max(e + 1, 2 * len(self._home), 1024) - len(self._home)
            self._home = np.concatenate([self._home, np.zeros(more, np.int64)])
            self._known = np.concatenate([self._known, np.zeros(more, np.int64)])
        self._home[e], self._known[e] = rank, generation + 1

    def home(self, e: int, generation: int) -> int:
        """Where it would be; -1: that is not known, so it is where it really is."""
        if e < len(self._home) and self._known[e] == generation + 1:
            return int(self._home[e])
        return NOBODY

    def homes(self, living: Living) -> Ints:
        """Ranks of all leases."""
        inside = living.at < len(self._home)
        at = np.where(inside, living.at, 0)
        if len(self._home) == 0:
            return living.rank
        known = inside & (self._known[at] == living.generation + 1)
        return np.where(known, self._home[at], living.rank)

    def view(self, world: World) -> Ranks:
        """The pool as the shadow would have it: a copy of the real view with its requests moved."""
        view = copy_ranks(world.view)
        touched = (self._batch != 0) | (self._context != 0)
        if not touched.any():
            return view
        view.batch[:] += self._batch
        view.context_tokens[:] = np.maximum(view.context_tokens + self._context, 0)
        view.saturated_tokens[:] = np.maximum(view.saturated_tokens + self._saturated, 0)
        ranks, instances = world.ranks, world.instances
        shut = (ranks["drained"] != 0) | ((instances["closed"] != 0) | (instances["probes_left"] <= 0))[
            view.instance
        ]
        slots = np.where(shut, 0, np.minimum(ranks["max_batch"], ranks["cap"]) - view.batch)
        reserve = int(world.settings[SET.GROWTH_RESERVE])
        left = ranks["kv_capacity_tokens"] - reserve - view.context_tokens
        view.free_slots[:] = np.where(touched, slots, view.free_slots)
        view.free_tokens[:] = np.where(touched, np.where(slots > 0, left, -1), view.free_tokens)
        return view


def add(view: Ranks, world: World, rank: int, context: int) -> None:
    """Count a request in."""
    view.batch[rank] += 1
    view.context_tokens[rank] += context
    for s, most in enumerate(world.prices.saturation_tokens.tolist()):
        view.saturated_tokens[rank, s] += min(context, most)


def prices(router: Books, view: Ranks, instances: list[int] | None = None) -> Floats:
    """Price of the next step of instances (all of them) as they are in a view."""
    real = router._tables.world.view
    kept = (real.batch.copy(), real.context_tokens.copy(), real.saturated_tokens.copy())
    try:  # compiled code prices what is shown
        real.batch[:], real.context_tokens[:] = view.batch, view.context_tokens
        real.saturated_tokens[:] = view.saturated_tokens
        which = range(len(router.instances)) if instances is None else instances
        return np.array([calls.price(router._at, i, NOBODY, 0) for i in which])
    finally:
        real.batch[:], real.context_tokens[:], real.saturated_tokens[:] = kept

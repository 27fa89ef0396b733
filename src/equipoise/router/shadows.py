"""`Shadows`: policies that look on while another one decides, each with a pool of its own.

A shadow gets every request in the round in which the real policy places it, and is asked with its own pool: the same
requests as run really, on the ranks where it would have put them (`equipoise.router.own_pool`). Its choices so follow
from its own choices, and the price of its steps is the price its rule would have led to. What it cannot show is that
other steps would have taken other times: requests end when they really end. The decision log, replayed, has that too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.policies import Policy
from equipoise.policies.calling import functions, memories
from equipoise.policies.views import copy_ranks
from equipoise.router.asking import answer, round_of
from equipoise.router.kernel.state import INDEX_MASK, KEY_BITS, NOBODY, SET
from equipoise.router.own_pool import Living, OwnPool, add, prices
from equipoise.types import Floats, Ints, Ints2D, Memory, Ranks

if TYPE_CHECKING:
    from equipoise.router.books import Books
    from equipoise.router.tables import Told

__all__ = ["Asked", "Shadow", "ShadowView", "Shadows"]

SAMPLES_APART_S = 0.1


class Shadow(msgspec.Struct, frozen=True):
    """What another policy would have chosen.

    Parameters
    ----------
    policy : str
    instance, rank : int
        -1: it would have let the request wait; in its own pool the request is where it really is then.
    step_price : float
        Price of that instance's next step in the shadow's own pool, the request included, in units of the cost; 0
        where it would have waited.
    """

    policy: str
    instance: int
    rank: int
    step_price: float


@dataclass(frozen=True, slots=True)
class ShadowView:
    """A shadow at a moment.

    Parameters
    ----------
    policy : str
    batch, context_tokens : int64[ranks]
        B and C of its own pool, as it would be shown them.
    saturated_tokens : int64[ranks, saturations]
    step_price : float64[instances]
        Price of the next step there, in units of the cost.
    same, other, waits : int
        Requests since the start for which it chose the real rank, another one, none.
    price_sum : float
        Price of a step of the whole pool, added up over the samples.
    """

    policy: str
    batch: Ints
    context_tokens: Ints
    saturated_tokens: Ints2D
    step_price: Floats
    same: int
    other: int
    waits: int
    price_sum: float


@dataclass(slots=True)
class Asked:
    """Answers to a round, before it is known what of it is placed.

    Parameters
    ----------
    views : list of Ranks
        The shadows' own pools as the round began.
    choices : list of int64[requests]
    """

    views: list[Ranks]
    choices: list[Ints]


class Shadows:
    """Policies asked beside the one that decides.

    Parameters
    ----------
    policies : sequence of Policy
    cost : StepCost
    seed : int

    Attributes
    ----------
    errors : int
        Times that one failed, and was taken to let all wait.
    samples : int
        Moments at which the prices of the pools were added up: when requests are placed, at most ten a second.
    price_sum : float
        Price of a step of the whole real pool, added up over them.
    """

    def __init__(self, policies: Sequence[Policy], cost: StepCost, seed: int) -> None:
        self.policies, self._prices, self._seed = list(policies), cost.prices(), seed
        self._functions = [functions(policy, slow=not policy.compiled) for policy in policies]
        self._params = [policy.param_array() for policy in policies]
        self._memories: list[tuple[np.ndarray, np.ndarray]] = []
        self._pools = [OwnPool() for _ in self.policies]
        self._counts = [[0, 0, 0] for _ in self.policies]
        self._price_sums = [0.0] * len(self.policies)
        self.errors = self.samples = 0
        self.price_sum, self._sampled_s = 0.0, float("-inf")

    def begin(self, router: Books) -> None:
        """Fresh memories, for the ranks there are now; every request is where it really is."""
        world = router._tables.world
        widths = [int(w) for w in world.instances["ranks"]]
        if world.settings[SET.GROUPS]:
            sizes = (widths, [1] * len(widths))
        else:
            sizes = ([max(sum(widths), 1)], [max(len(widths), 1)])
        self._memories = [memories(p, self._prices, *sizes, seed=self._seed) for p in self.policies]
        for pool in self._pools:
            pool.forget(world)

    def ask(self, router: Books, size: int, now_s: float) -> Asked:
        """What each would choose for the round made up."""
        world = router._tables.world
        asked = Asked([], [])
        if not self.policies:
            return asked
        self._look_up(router, now_s)
        for pool, (place, _), params, memory in zip(
            self._pools, self._functions, self._params, self._memories, strict=True
        ):
            out = np.full(size, NOBODY, np.int64)
            view = pool.view(world)
            try:  # policies may spoil what they are shown
                answer(world, place, params, memory, copy_ranks(view), round_of(world, size), out)
            except Exception:
                self.errors += 1
                out[:] = NOBODY
            asked.views.append(view)
            asked.choices.append(out)
        return asked

    def placed(
        self, router: Books, asked: Asked, rows: Sequence[tuple[int, int, int, int]]
    ) -> list[list[Shadow]]:
        """Take in what became of a round.

        Parameters
        ----------
        router : Books
        asked : Asked
        rows : sequence of (int, int, int, int)
            Of each request placed: its place in the round, its key, its real rank, its prompt in tokens.

        Returns
        -------
        list of list of Shadow
            For each of them, what each shadow would have done.
        """
        world = router._tables.world
        found: list[list[Shadow]] = [[] for _ in rows]
        for policy, pool, counts, view, out in zip(
            self.policies, self._pools, self._counts, asked.views, asked.choices, strict=True
        ):
            wanted = []
            for j, key, real, context in rows:
                other = int(out[j])
                waits = not 0 <= other < len(view.batch)
                home = real if waits else other
                counts[2 if waits else int(other != real)] += 1
                pool.placed(world, key & INDEX_MASK, key >> KEY_BITS, home, real, context)
                add(view, world, home, context)
                wanted.append(NOBODY if waits else other)
            touched = sorted({router._instance_of[rank] for rank in wanted if rank != NOBODY})
            price = dict(zip(touched, prices(router, view, touched).tolist(), strict=True))
            for row, rank in zip(found, wanted, strict=True):
                if rank == NOBODY:
                    row.append(Shadow(policy.label, NOBODY, NOBODY, 0.0))
                else:
                    i = router._instance_of[rank]
                    row.append(Shadow(policy.label, i, router._local[rank], price[i]))
        return found

    def sample(self, router: Books, asked: Asked, now_s: float) -> None:
        """Add the prices up, if that is due."""
        if not self.policies or now_s < self._sampled_s + SAMPLES_APART_S:
            return
        self._sampled_s = now_s
        self.samples += 1
        self.price_sum += sum(router.step_price(i) for i in range(len(router.instances)))
        for k, view in enumerate(asked.views):
            self._price_sums[k] += float(prices(router, view).sum())

    def ended(self, router: Books, told: Told, lease: int, rank: int) -> None:
        """A request has ended, however it did; really it was on that rank."""
        world = router._tables.world
        for pool in self._pools:
            pool.ended(world, lease & INDEX_MASK, lease >> KEY_BITS, rank, told.length)

    def _look_up(self, router: Books, now_s: float) -> None:
        """Bring the pools up to date, if that is due."""
        stale = [pool for pool in self._pools if pool.stale(now_s)]
        if stale:
            living = Living(router._tables.world, now_s)
            for pool in stale:
                pool.look_up(router._tables.world, living, now_s)

    def finished(self, router: Books, told: Told, lease: int) -> None:
        """Tell those that learn, each with the rank where it had the request."""
        world = router._tables.world
        for policy, pool, (_, finished), params, (ints, floats) in zip(
            self.policies, self._pools, self._functions, self._params, self._memories, strict=True
        ):
            rank = pool.home(lease & INDEX_MASK, lease >> KEY_BITS)
            if rank == NOBODY or policy.spec.finished is None:
                continue
            g, first = 0, 0
            if world.settings[SET.GROUPS]:
                g = int(world.view.instance[rank])
                first = int(world.instances["first"][g])
            memory = Memory(ints[g], floats[g])
            finished(memory, params, told.request, rank - first, told.context_tokens, told.output_tokens)

    def look(self, router: Books, now_s: float) -> list[ShadowView]:
        """Each of them now."""
        if not self.policies:
            return []
        if not self._memories:
            self.begin(router)
        world = router._tables.world
        self._look_up(router, now_s)
        found = []
        for policy, pool, counts, total in zip(
            self.policies, self._pools, self._counts, self._price_sums, strict=True
        ):
            view = pool.view(world)
            price = prices(router, view)
            same, other, waits = counts
            loads = (view.batch, view.context_tokens, view.saturated_tokens)
            found.append(ShadowView(policy.label, *loads, price, same, other, waits, total))
        return found

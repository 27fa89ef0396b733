"""The running requests of a simulated instance, one a slot, and where the next come from.

What a request and its drafts are like depends on the seed alone and not on what a strategy did before: the n-th
request is the same in every run, and so is the luck of a slot's drafts in a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.control.acceptance import Acceptance, survivals
from equipoise.control.price import VerifyPrice
from equipoise.errors import InputError
from equipoise.policies import Policy
from equipoise.policies.views import empty_ranks, waiting_requests
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints, Ranks

__all__ = ["Instance"]

Flags = NDArray[np.bool_]
NO_LIMIT = 2**50
"""Tokens and requests that a rank has room for."""


class Instance:
    """An instance kept full: whenever a request ends, the next one takes its slot.

    Parameters
    ----------
    trace : Trace
    policy : Policy
        Places new requests.
    price : VerifyPrice
    ranks, per_rank, drafts : int
    acceptance : Acceptance
    seed : int
    """

    def __init__(
        self,
        trace: Trace,
        policy: Policy,
        price: VerifyPrice,
        ranks: int,
        per_rank: int,
        drafts: int,
        acceptance: Acceptance,
        seed: int,
    ) -> None:
        slots = ranks * per_rank
        if slots > len(trace):
            raise InputError(f"{slots} requests of a trace of {len(trace)}", fix="give a longer trace")
        self.trace, self.policy, self.ranks, self.drafts = trace, policy, ranks, drafts
        requests, self._luck, self._wrong, start = (np.random.default_rng([seed, part]) for part in range(4))
        self._acceptance, self._off = acceptance, acceptance.wrong_by(drafts)
        self._levels = acceptance.levels(requests, len(trace))
        self._drifts = acceptance.drift_sd * requests.standard_normal(len(trace))
        self.number = np.zeros(slots, dtype=np.int64)
        """Requests are numbered in the order they come."""
        self.rank, self.context, self.left = self.number - 1, self.number.copy(), self.number.copy()
        self.held = np.zeros(slots, dtype=bool)
        """Placed on a rank that takes none at present."""
        self.waited, self.there, self.ran = (self.number.copy() for _ in range(3))
        self.longest_wait_steps = 0
        self._level, self._drift = np.zeros(slots), np.zeros(slots)
        self._next = 0
        self._prices: Any = price.cost.prices()
        self._params = policy.param_array()
        self._memory: Any = policy.new_memory(int(start.integers(2**31)), self._prices, ranks)
        self.replace(np.arange(slots), np.zeros(ranks, dtype=bool), detours=False)

    @property
    def slots(self) -> int:
        """Requests that are there at a time."""
        return len(self.number)

    def draw(self) -> tuple[Floats, Ints]:
        """Go on to the next step's drafts.

        Returns
        -------
        told : float64[slots, drafts]
            Survivals as a confidence head tells them.
        passed : int64[slots, drafts]
            1 where this draft and all before it would be accepted.
        """
        a, luck = self._acceptance, self._luck
        fresh = np.sqrt(1 - a.drift_memory**2) * a.drift_sd * luck.standard_normal(self.slots)
        self._drift = a.drift_memory * self._drift + fresh
        logits = a.logits(luck, self._level, self._drift, self.drafts)
        drawn = luck.random(logits.shape)
        passed = np.cumprod(drawn < 1 / (1 + np.exp(-logits)), axis=1, dtype=np.int64)
        off = self._off.shift
        wrong = (
            off + self._off.noise_sd * self._wrong.standard_normal(logits.shape)
            if self._off.noise_sd
            else off
        )
        return survivals(logits + wrong), np.asarray(passed)

    def release(self, frozen: Flags) -> None:
        """Let in who is held on ranks that are not frozen, and count the wait of the others."""
        self.held &= frozen[self.rank]
        self.waited[self.held] += 1
        self.longest_wait_steps = max(self.longest_wait_steps, int(self.waited.max(initial=0)))

    def advance(self, running: Ints, gained: Ints) -> Ints:
        """Give the running slots their tokens; the slots whose requests have ended."""
        self.left[running] -= gained
        self.context[running] += gained
        self.there += 1
        self.ran[running] += 1
        return np.flatnonzero(self.left <= 0)

    def replace(self, slots: Ints, frozen: Flags, *, detours: bool) -> None:
        """Let new requests take these slots; the policy says on which ranks.

        Parameters
        ----------
        slots : int64[n]
        frozen : bool[ranks]
            Ranks that take none: a request placed there is held.
        detours : bool
            Whether the policy is told of them and places elsewhere.
        """
        n = len(slots)
        if n == 0:
            return
        rows = (self._next + np.arange(n)) % len(self.trace)
        self._next += n
        self.rank[slots] = -1
        view = self._view(frozen if detours else None)
        requests = waiting_requests(n)
        requests.context_tokens[:] = self.trace.context_tokens[rows]
        requests.reserve_tokens[:] = requests.context_tokens
        requests.request[:] = np.arange(self._next - n, self._next)
        chosen = np.full(n, -1, dtype=np.int64)
        self.policy.spec.place(view, requests, self._prices, self._params, self._memory, chosen)
        # what a policy holds back would leave the instance less than full: least loaded then
        loads = np.bincount(self.rank[self.rank >= 0], minlength=self.ranks)
        loads += np.bincount(chosen[chosen >= 0], minlength=self.ranks)
        for i in np.flatnonzero(chosen < 0):
            chosen[i] = np.argmin(loads + (NO_LIMIT if detours else 0) * frozen)
            loads[chosen[i]] += 1
        self.rank[slots] = chosen
        self.context[slots] = requests.context_tokens
        self.left[slots] = self.trace.output_tokens[rows]
        self.number[slots] = requests.request
        self._level[slots], self._drift[slots] = self._levels[rows], self._drifts[rows]
        self.held[slots] = frozen[chosen]
        for counter in (self.waited, self.there, self.ran):
            counter[slots] = 0

    def _view(self, full: Flags | None) -> Ranks:
        bounds = self._prices.saturation_tokens
        view = empty_ranks(self.ranks, self.ranks, len(bounds), NO_LIMIT, NO_LIMIT)
        there = self.rank >= 0
        on, context = self.rank[there], self.context[there]
        view.batch[:] = np.bincount(on, minlength=self.ranks)
        view.context_tokens[:] = np.bincount(on, context, self.ranks).astype(np.int64)
        for s, bound in enumerate(bounds):
            view.saturated_tokens[:, s] = np.bincount(on, np.minimum(context, bound), self.ranks)
        if full is not None:
            view.free_tokens[full] = -1
        return view

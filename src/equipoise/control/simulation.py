"""One instance that verifies drafts, step by step: what a strategy wins, and where the waiting goes.

The instance is kept full. A policy places each new request at a step boundary, as in `equipoise.replay`; every step the
strategy says how many drafts each request verifies, on survivals ``horizon`` steps old; drafts are accepted by the true
chances of this step; the step takes what `VerifyPrice` says.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equipoise.control.acceptance import Acceptance, survivals
from equipoise.control.evaluate import Worth, worth
from equipoise.control.pauses import Pauses
from equipoise.control.price import VerifyPrice
from equipoise.control.state import Snapshot
from equipoise.control.strategies import strategy
from equipoise.errors import InputError
from equipoise.policies import Policy
from equipoise.policies.views import empty_ranks, waiting_requests
from equipoise.traces.trace import Trace
from equipoise.types import Floats, Ints, Ranks

__all__ = ["ControlRun", "Instance", "simulate_control"]

MARGIN = 0.3
"""Survival of the best unverified draft above which a rank's waiting counts as worth turning into tokens."""


@dataclass(frozen=True, slots=True)
class ControlRun:
    """Sums over the measured steps of a run.

    Parameters
    ----------
    tokens : int
        Tokens the requests got.
    time_us : float
    steps : int
    drafts_verified, drafts_accepted : int
    bubble_share : float
        Share of the barriers' time that the average rank waited.
    slack_turned : float
        Of the waiting that each rank's own argmax would leave, the share gone under this strategy, in the same states
        and on the ranks whose best unverified draft survives more often than 0.3; NaN where no such rank waited.
    longest_pause_steps : int
    """

    tokens: int
    time_us: float
    steps: int
    drafts_verified: int
    drafts_accepted: int
    bubble_share: float
    slack_turned: float
    longest_pause_steps: int = 0

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, of the whole instance."""
        return self.tokens / self.time_us * 1e6 if self.time_us else 0.0


@dataclass(slots=True)
class Instance:
    """The running requests of an instance, one a slot, and where the next come from."""

    trace: Trace
    policy: Policy
    price: VerifyPrice
    ranks: int
    drafts: int
    acceptance: Acceptance
    rng: np.random.Generator
    rank: Ints = field(init=False)
    context: Ints = field(init=False)
    left: Ints = field(init=False)
    level: Floats = field(init=False)
    drift: Floats = field(init=False)
    number: Ints = field(init=False)
    _next: int = field(init=False, default=0)
    _prices: Any = field(init=False, default=None)
    _params: Any = field(init=False, default=None)
    _memory: Any = field(init=False, default=None)

    def fill(self, slots: int) -> None:
        """Put the first requests on the ranks."""
        if slots > len(self.trace):
            raise InputError(f"{slots} requests of a trace of {len(self.trace)}", fix="give a longer trace")
        zeros = np.zeros(slots, dtype=np.int64)
        self.rank, self.context, self.left, self.number = zeros - 1, zeros.copy(), zeros.copy(), zeros.copy()
        self.level, self.drift = np.zeros(slots), np.zeros(slots)
        self._prices = self.price.cost.prices()
        self._params = self.policy.param_array()
        self._memory = self.policy.new_memory(int(self.rng.integers(2**31)), self._prices, self.ranks)
        self.replace(np.arange(slots))

    def replace(self, slots: Ints) -> None:
        """Let new requests take these slots; the policy says on which ranks."""
        n = len(slots)
        if n == 0:
            return
        rows = (self._next + np.arange(n)) % len(self.trace)
        self._next += n
        self.rank[slots] = -1
        view = self._view()
        requests = waiting_requests(n)
        requests.context_tokens[:] = self.trace.context_tokens[rows]
        requests.reserve_tokens[:] = requests.context_tokens
        requests.request[:] = np.arange(self._next - n, self._next)
        chosen = np.full(n, -1, dtype=np.int64)
        self.policy.spec.place(view, requests, self._prices, self._params, self._memory, chosen)
        # what a policy holds back would leave the instance less than full: least loaded then
        for i in np.flatnonzero(chosen < 0):
            chosen[i] = np.argmin(np.bincount(self.rank[self.rank >= 0], minlength=self.ranks))
        self.rank[slots] = chosen
        self.context[slots] = requests.context_tokens
        self.left[slots] = self.trace.output_tokens[rows]
        self.number[slots] = requests.request
        self.level[slots] = self.acceptance.levels(self.rng, n)
        self.drift[slots] = self.acceptance.drift_sd * self.rng.standard_normal(n)

    def _view(self) -> Ranks:
        lengths = self.price.cost.prices().saturation_tokens
        view = empty_ranks(self.ranks, self.ranks, len(lengths), 2**50, 2**50)
        there = self.rank >= 0
        on, context = self.rank[there], self.context[there]
        view.batch[:] = np.bincount(on, minlength=self.ranks)
        view.context_tokens[:] = np.bincount(on, context, self.ranks).astype(np.int64)
        for s, bound in enumerate(lengths):
            view.saturated_tokens[:, s] = np.bincount(on, np.minimum(context, bound), self.ranks)
        return view


def simulate_control(
    trace: Trace,
    policy: Policy,
    price: VerifyPrice,
    name: str,
    *,
    ranks: int = 64,
    per_rank: int = 32,
    drafts: int = 5,
    horizon: int = 1,
    acceptance: Acceptance | None = None,
    steps: int = 400,
    warmup_steps: int = 200,
    pauses: Pauses | None = None,
    seed: int = 0,
) -> ControlRun:
    """Run one instance under a strategy.

    Parameters
    ----------
    trace : Trace
    policy : Policy
        Places new requests; it must be a compiled one.
    price : VerifyPrice
    name : str
        A strategy: one of `STRATEGIES`.
    ranks, per_rank : int
        Ranks of the instance, and requests running a rank on average.
    drafts : int
        Drafts of a request and step.
    horizon : int
        Steps from the survivals to the step that is decided on them, at least 1.
    acceptance : Acceptance, optional
    steps, warmup_steps : int
        Steps counted, and steps before them.
    pauses : Pauses, optional
        Requests may sit out steps.
    seed : int

    Returns
    -------
    ControlRun

    Raises
    ------
    InputError
        Numbers out of bounds, an unknown strategy, a trace shorter than the instance.
    """
    for label, value, low in (
        ("ranks", ranks, 1), ("per_rank", per_rank, 1), ("drafts", drafts, 0), ("horizon", horizon, 1),
        ("steps", steps, 1), ("warmup_steps", warmup_steps, 0),
    ):  # fmt: skip
        if not low <= value <= 1_000_000:
            raise InputError(f"{label} = {value}", fix=f"must be from {low} to 1000000")
    rng = np.random.default_rng(seed)
    acceptance = acceptance or Acceptance()
    instance = Instance(trace, policy, price, ranks, drafts, acceptance, rng)
    slots = ranks * per_rank
    instance.fill(slots)
    rule = strategy(name, price, slots * (1 + drafts))
    own = strategy("argmax_own", price, 1)
    shift, memory = acceptance.shift(drafts), acceptance.drift_memory
    mean = survivals(np.full((1, drafts), acceptance.level) - acceptance.decline * np.arange(drafts))
    told: deque[Floats] = deque(maxlen=horizon)
    tokens = verified = accepted = 0
    time_us, waited, could_wait, left_over, before = 0.0, 0.0, 0.0, 0.0, 0.0
    for step in range(-warmup_steps, steps):
        fresh = np.sqrt(1 - memory**2) * acceptance.drift_sd * rng.standard_normal(slots)
        instance.drift = memory * instance.drift + fresh
        logits = acceptance.logits(rng, instance.level, instance.drift, drafts)
        true = survivals(logits)
        known = told[0] if len(told) == horizon else np.broadcast_to(mean, true.shape)
        told.append(survivals(logits + shift))
        order = np.argsort(instance.rank, kind="stable")
        running = order if pauses is None else order[~pauses.paused(instance.number[order])]
        first = np.concatenate([[0], np.cumsum(np.bincount(instance.rank[running], minlength=ranks))])
        told_of = known[running].astype(np.float32)
        snapshot = Snapshot(instance.context[running], told_of, first, step + warmup_steps)
        lengths = rule.lengths(snapshot)
        found = worth(snapshot, price, lengths)
        rule.measured(found.price)
        drawn = rng.random((slots, drafts))
        passed = np.ones((slots, drafts + 1), dtype=np.int64)
        np.cumprod(drawn < 1 / (1 + np.exp(-logits)), axis=1, out=passed[:, 1:])
        got = passed[running][:, 1:].sum(axis=1)
        got = np.minimum(got, lengths)
        gained = np.minimum(1 + got, instance.left[running])
        if step >= 0:
            tokens += int(gained.sum())
            verified += int(lengths.sum())
            accepted += int(got.sum())
            time_us += price.us(found.price)
            waited += found.barrier - float(found.work.mean())
            could_wait += found.barrier
            if step % 8 == 0:
                b, a = _worthwhile(snapshot, price, own.lengths(snapshot), found)
                before, left_over = before + b, left_over + a
        instance.left[running] -= gained
        instance.context[running] += gained
        done = np.flatnonzero(instance.left <= 0)
        if len(told) and len(done):
            for old in told:
                old[done] = mean
        if pauses is not None:
            pauses.decide(snapshot, price, lengths, instance.number[running])
        instance.replace(done)
    return ControlRun(
        tokens, time_us, steps, verified, accepted,
        waited / could_wait if could_wait else 0.0,
        1 - left_over / before if before else float("nan"),
        0 if pauses is None else pauses.longest_pause_steps,
    )  # fmt: skip


def _worthwhile(snapshot: Snapshot, price: VerifyPrice, own: Ints, ours: Worth) -> tuple[float, float]:
    """Waiting under each rank's own argmax and under the plan, on ranks that have a draft worth verifying left."""
    alone = worth(snapshot, price, own)
    n = np.arange(len(own))
    spare = np.where(
        own < snapshot.drafts, snapshot.survival[n, np.minimum(own, snapshot.drafts - 1)], 0.0
    ) if snapshot.drafts else np.zeros(len(own))  # fmt: skip
    best = np.zeros(snapshot.ranks)
    np.maximum.at(best, np.repeat(np.arange(snapshot.ranks), np.diff(snapshot.first)), spare)
    chosen = best > MARGIN
    before = (alone.barrier - alone.work)[chosen].sum()
    after = (ours.barrier - ours.work)[chosen].sum()
    return float(before), float(after)

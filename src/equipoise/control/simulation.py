"""One instance that verifies drafts, step by step: what a strategy wins, and where the waiting goes.

The instance is kept full. A policy places each new request at a step boundary, as in `equipoise.replay`; every step the
strategy says how many drafts each request verifies, on survivals ``horizon`` steps old; drafts are accepted by the true
chances of this step; the step takes what `VerifyPrice` says.
"""

from __future__ import annotations

import numpy as np

from equipoise.control.acceptance import Acceptance
from equipoise.control.freezes import Freezes
from equipoise.control.instance import Instance
from equipoise.control.loads import Loads
from equipoise.control.pauses import Pauses
from equipoise.control.price import VerifyPrice
from equipoise.control.run import ControlRun, Sums
from equipoise.control.slack import slack_turned
from equipoise.control.state import Snapshot
from equipoise.control.strategies import strategy
from equipoise.control.told import Told
from equipoise.errors import InputError
from equipoise.policies import Policy
from equipoise.traces.trace import Trace
from equipoise.types import Ints

__all__ = ["ControlRun", "simulate_control"]

SLACK_EVERY = 8
"""Steps from one comparison with every rank's own choice to the next."""

SHARE_STEPS = 64
"""Steps a request must have been there for its share of them to be looked at."""


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
    freezes: Freezes | None = None,
    detours: bool = False,
    slack_against: str = "argmax_own",
    seed: int = 0,
) -> ControlRun:
    """Run one instance under a strategy.

    Parameters
    ----------
    trace : Trace
    policy : Policy
        Places new requests.
    price : VerifyPrice
    name : str
        A strategy: one of `STRATEGIES`.
    ranks, per_rank : int
        Ranks of the instance, and requests of a rank on average.
    drafts : int
        Drafts of a request and step.
    horizon : int
        Steps from the survivals to the step that is decided on them, at least 1.
    acceptance : Acceptance, optional
    steps, warmup_steps : int
        Steps counted, and steps before them.
    pauses : Pauses, optional
        Requests may sit out steps. Made for this run: it remembers.
    freezes : Freezes, optional
        Ranks may take no new requests for a while: one that is placed there waits. Made for this run.
    detours : bool
        The policy is told which ranks are frozen and places elsewhere, so that nobody waits.
    slack_against : str
        The strategy whose waiting, in the same states, `ControlRun.slack_turned` is a share of.
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
        ("steps", steps, 1), ("warmup_steps", warmup_steps, 0), ("seed", seed, 0),
    ):  # fmt: skip
        if not low <= value <= 1_000_000:
            raise InputError(f"{label} = {value}", fix=f"must be from {low} to 1000000")
    acceptance = acceptance or Acceptance()
    most_queries = ranks * per_rank * (1 + drafts)
    rule = strategy(name, price, most_queries)
    other = strategy(slack_against, rule.price, most_queries)
    instance = Instance(trace, policy, price, ranks, per_rank, drafts, acceptance, seed)
    told, sums = Told(horizon, acceptance.mean(drafts)), Sums()
    frozen = np.zeros(ranks, dtype=bool)
    for step in range(warmup_steps + steps):
        fresh, passed = instance.draw()
        known = told.swap(fresh)
        instance.release(frozen)
        running = _running(instance, pauses)
        first = np.searchsorted(instance.rank[running], np.arange(ranks + 1))
        snapshot = Snapshot(instance.context[running], known[running].astype(np.float32), first, step)
        lengths = rule.lengths(snapshot)
        found = Loads(snapshot, rule.price, lengths).worth()
        rule.measured(found.price)
        got = np.minimum(passed[running].sum(axis=1), lengths)
        gained = np.minimum(1 + got, instance.left[running])
        done = instance.advance(running, gained)
        if step >= warmup_steps:
            sat_out = instance.slots - len(running)
            sums.step(found, lengths, got, gained, rule.price.us(found.price), sat_out)
            sums.ended(instance.ran[done], instance.there[done], SHARE_STEPS)
            if (step - warmup_steps) % SLACK_EVERY == 0:
                instead = other.lengths(snapshot)
                sums.slack(
                    slack_turned(snapshot, instead, Loads(snapshot, rule.price, instead).worth(), found)
                )
        told.forget(done)
        if pauses is not None:
            pauses.decide(snapshot, rule.price, lengths, instance.number[running])
        if freezes is not None:
            frozen = freezes.decide(snapshot, rule.price)
        instance.replace(done, frozen, detours=detours)
    longest_pause = 0 if pauses is None else pauses.longest_pause_steps
    return sums.run(steps, instance.slots, longest_pause, instance.longest_wait_steps)


def _running(instance: Instance, pauses: Pauses | None) -> Ints:
    """Slots that take part in the step, rank by rank."""
    order = np.argsort(instance.rank, kind="stable")
    order = order[~instance.held[order]]
    return order if pauses is None else order[~pauses.paused(instance.number[order])]

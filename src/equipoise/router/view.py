"""What others may see of the router: numbers copied out of its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.policies.rules import UNLIMITED_TOKENS
from equipoise.router.kernel.state import COUNT, KEY_BITS
from equipoise.types import Floats, Ints, Ints2D

if TYPE_CHECKING:
    from equipoise.router.books import Books

__all__ = ["Integrity", "RouterView", "lease_rows", "look"]


@dataclass(frozen=True, slots=True)
class Integrity:
    """What a look at the ledger found.

    Parameters
    ----------
    ranks_wrong : int
        Ranks whose sums are not those of their leases.
    counts_wrong : int
        1: the numbers of queued and running requests are not those in the table.
    missing : int
        Requests that the last reports lack of those they must have seen: what engines have lost, or ended without our
        having been told yet.
    """

    ranks_wrong: int
    counts_wrong: int
    missing: int

    @property
    def sound(self) -> bool:
        """Whether the ledger adds up."""
        return not (self.ranks_wrong or self.counts_wrong)


@dataclass(frozen=True, slots=True)
class RouterView:
    """The router at a moment; arrays have one entry a rank over the whole pool, unless said otherwise.

    Parameters
    ----------
    rung : str
        Of the fallback ladder, a `Rung`.
    instance, rank : int64[ranks]
        Position of the instance in the list, and the rank inside it.
    batch, context_tokens : int64[ranks]
        B and C as policies see them.
    saturated_tokens : int64[ranks, saturations]
        K of each of the cost's saturation lengths.
    own_batch, own_context_tokens : int64[ranks]
        Of own leases, as told.
    others_batch, others_context_tokens : int64[ranks]
        Beyond them, by the last report.
    missing : int64[ranks]
        Own leases that the last report must have seen and lacks.
    capacity_tokens : int64[ranks]
        -1: without a limit.
    free_tokens, free_slots : int64[ranks]
        What the capacity filter lets through; -1 tokens: nothing may go there.
    drained : bool[ranks]
    report_age_s : float64[ranks]
        Infinity: never reported, or no time was given.
    instance_names, instance_states, instance_reasons : tuple of str
        One an instance: name, `InstanceState`, why.
    steps : int64[instances]
        Steps done, told or inferred.
    step_s : float64[instances]
        How long one takes lately; 0: not known.
    step_price : float64[instances]
        Price of the next step, in units of the cost.
    queued : dict of str to int
        Requests that wait, by class.
    queued_requests, queued_tokens, queued_bytes, leases : int
    release_rate_per_s : float
    counts : dict of str to int
        Events since the start, by name.
    rejected, aborted : dict of str to int
        By reason.
    """

    rung: str
    instance: Ints
    rank: Ints
    batch: Ints
    context_tokens: Ints
    saturated_tokens: Ints2D
    own_batch: Ints
    own_context_tokens: Ints
    others_batch: Ints
    others_context_tokens: Ints
    missing: Ints
    capacity_tokens: Ints
    free_tokens: Ints
    free_slots: Ints
    drained: NDArray[np.bool_]
    report_age_s: Floats
    instance_names: tuple[str, ...]
    instance_states: tuple[str, ...]
    instance_reasons: tuple[str, ...]
    steps: Ints
    step_s: Floats
    step_price: Floats
    queued: dict[str, int]
    queued_requests: int
    queued_tokens: int
    queued_bytes: int
    leases: int
    release_rate_per_s: float
    counts: dict[str, int]
    rejected: dict[str, int]
    aborted: dict[str, int]


EVENTS = {
    "dispatched": COUNT.DISPATCHED,
    "finished": COUNT.FINISHED,
    "aborted": COUNT.ABORTED,
    "cancelled": COUNT.CANCELLED,
    "arrived": COUNT.ARRIVED,
    "tokens": COUNT.TOKENS,
    "rounds": COUNT.ROUNDS,
    "reports": COUNT.REPORTS,
    "old_reports": COUNT.OLD_REPORTS,
    "stale_keys": COUNT.STALE_KEYS,
    "breaches": COUNT.BREACHES,
    "expired": COUNT.EXPIRED,
    "affinity": COUNT.AFFINITY,
}


def look(router: Books, rung: str, now_s: float | None) -> RouterView:
    """Copy the numbers out."""
    world, counts = router._tables.world, router._count_of
    ranks, instances = world.ranks, world.instances
    capacity = ranks["kv_capacity_tokens"].copy()
    capacity[capacity == UNLIMITED_TOKENS] = -1
    ages = np.full(len(ranks), np.inf) if now_s is None else now_s - ranks["reported_s"]
    return RouterView(
        rung=rung,
        instance=world.view.instance.copy(),
        rank=np.array(router._local, dtype=np.int64),
        batch=world.view.batch.copy(),
        context_tokens=world.view.context_tokens.copy(),
        saturated_tokens=world.view.saturated_tokens.copy(),
        own_batch=ranks["batch"].copy(),
        own_context_tokens=ranks["context"].copy(),
        others_batch=ranks["others_batch"].copy(),
        others_context_tokens=ranks["others_context"].copy(),
        missing=ranks["missing"].copy(),
        capacity_tokens=capacity,
        free_tokens=world.view.free_tokens.copy(),
        free_slots=world.view.free_slots.copy(),
        drained=ranks["drained"] != 0,
        report_age_s=ages,
        instance_names=tuple(spec.name for spec in router.instances),
        instance_states=tuple(one.state.value for one in router._health.of),
        instance_reasons=tuple(one.reason for one in router._health.of),
        steps=instances["steps"].copy(),
        step_s=instances["step_s"].copy(),
        step_price=np.array([router.step_price(i) for i in range(len(instances))]),
        queued={name: int(world.kinds["waiting"][k]) for k, name in enumerate(router.settings.classes)},
        queued_requests=int(counts[COUNT.WAITING]),
        queued_tokens=int(counts[COUNT.WAITING_TOKENS]),
        queued_bytes=int(counts[COUNT.WAITING_BYTES]),
        leases=int(counts[COUNT.LIVE]),
        release_rate_per_s=0.0 if now_s is None else router._rate.per_s(now_s),
        counts={name: int(counts[at]) for name, at in EVENTS.items()}
        | {"policy_errors": router.policy_errors},
        rejected=dict(router.rejected),
        aborted=dict(router.ended),
    )


def lease_rows(router: Books) -> list[dict[str, int | float | str]]:
    """Every lease as a row of plain values."""
    world = router._tables.world
    rows: list[dict[str, int | float | str]] = []
    for e in router._tables.live().tolist():
        entry = world.entries[e]
        r = int(entry["rank"])
        rows.append(
            {
                "request_id": router._names[e] or "",
                "lease": (int(entry["generation"]) << KEY_BITS) | e,
                "instance": "" if r < 0 else router.instances[router._instance_of[r]].name,
                "rank": -1 if r < 0 else router._local[r],
                "context_tokens": int(entry["context"]),
                "output_tokens": int(entry["tokens"]),
                "dispatched_s": float(entry["dispatched_s"]),
            }
        )
    return rows

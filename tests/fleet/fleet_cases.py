"""What the fleet tests share: inputs with everything off, ways to switch things on, and runs of the slow twin."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings

from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.fleet.kernel.layout import (
    BY_REQUEST,
    NO_PREEMPTION,
    NO_PREFILL,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    FleetSettings,
    Life,
    Ranked,
    new_fleet_outcome,
)
from equipoise.fleet.twin import run_reference
from equipoise.policies.registry import get
from equipoise.replay import Information, SnapshotPlan, reference
from equipoise.replay.layout import Outcome, PoolLayout, Settings, Work, new_outcome

PREFILL = PrefillCost((PrefillTerm("all", per_token=0.01, per_100k_pairs=3.0),), constant=2.5)
CURSOR = 1 << 16


def quick(examples):
    """Hypothesis settings of this folder: the same cases every time, no clock."""
    return settings(
        max_examples=examples, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
    )


def nothing_ints():
    return np.zeros(0, np.int64)


def plain_life(requests: int, **on: Any) -> Life:
    """Requests that arrive by themselves, computed, stay, and are never taken off a rank."""
    off = Life(
        sessions=0,
        first_rows=np.arange(requests, dtype=np.int32),
        next_turn=np.zeros(0, np.int32),
        think_s=np.zeros(0),
        cached_tokens=np.zeros(1, np.int64),
        leaves_after=np.full(1, 1 << 40),
        patience_s=np.inf,
        prefill=NO_PREFILL,
        prefill_s=0.0,
        prefill_s_per_token=0.0,
        prefill_instances=0,
        prefill_ranks=0,
        chunk_tokens=1 << 20,
        transfer_s=0.0,
        transfer_s_per_token=0.0,
        block_tokens=1,
        block_shift=0,
        preemption=NO_PREEMPTION,
        swap_s_per_token=0.0,
        freeze_steps=0,
        retry_s=0.0,
        most_tries=1 << 30,
        split=BY_REQUEST,
        report_period_s=0.0,
    )
    return off._replace(**on)


def even_ranks(layout: PoolLayout, requests: int, **on: Any) -> Ranked:
    ranks = layout.instances * layout.ranks_per_instance
    off = Ranked(
        kv_capacity_tokens=np.full(ranks, layout.kv_capacity_tokens),
        max_batch=np.full(ranks, layout.max_batch),
        slowness=np.ones(ranks),
        rows=requests,
    )
    return off._replace(**on)


def no_extras(**on: Any) -> Extras:
    return Extras(0.0, nothing_ints(), 0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(0), 0.0, 0)._replace(**on)


def no_draws(requests: int, **on: Any) -> Draws:
    none = np.zeros(0, np.int32)
    return Draws(none, np.zeros(CURSOR, np.int32), np.zeros(requests, np.int32))._replace(**on)


def changes_of(*rows: tuple[float, int, int, int, float]) -> Changes:
    """Changes from rows of (time, kind, instance, rank, stall)."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 5
    time_s, kind, instance, rank, stall_s = columns
    return Changes(
        np.array(time_s, dtype=float),
        np.array(kind, dtype=np.int64),
        np.array(instance, dtype=np.int64),
        np.array(rank, dtype=np.int64),
        np.array(stall_s, dtype=float),
    )


@dataclass
class Case:
    """All that a run takes; ``run`` takes a fresh copy of the policy's memory each time."""

    work: Work
    layout: PoolLayout
    settings: FleetSettings
    life: Life
    ranked: Ranked
    extras: Extras
    draws: Draws
    changes: Changes
    prices: Any
    prefill_prices: Any
    place: Any
    finished: Any
    params: Any
    memory_ints: Any
    memory_floats: Any
    series_rows: int = 64
    snapshots: int = 4

    def blank(self) -> Outcome:
        return new_outcome(
            len(self.work.context_tokens),
            self.layout,
            len(self.prices.saturation_tokens),
            series_rows=self.series_rows,
            keep_requests=bool(self.settings.keep_requests),
            snapshots=self.snapshots,
        )

    def replayed(self) -> Outcome:
        """Outcome of the replay's own twin, to which all that this file switches on is unknown."""
        out = self.blank()
        plain = Settings(*self.settings[: len(Settings._fields)])
        reference.run_reference(
            self.work, self.layout, plain, self.prices, self.place, self.finished, self.params,
            self.memory_ints.copy(), self.memory_floats.copy(), out,
        )  # fmt: skip
        return out

    def run(self, run: Any = run_reference) -> tuple[Outcome, FleetOutcome]:
        """Outcomes of the twin, or of anything with its arguments."""
        n, keep = len(self.work.context_tokens), bool(self.settings.keep_requests)
        out = self.blank()
        fleet_out = new_fleet_outcome(n, keep_requests=keep)
        run(
            self.work, self.layout, self.settings, self.life, self.ranked, self.extras, self.draws, self.changes,
            self.prices, self.prefill_prices, self.place, self.finished, self.params,
            self.memory_ints.copy(), self.memory_floats.copy(), out, fleet_out,
        )  # fmt: skip
        return out, fleet_out


def case_of(
    trace,
    pool,
    policy,
    cost,
    *,
    mode="saturated",
    concurrency=8,
    seed=0,
    rate_scale=1.0,
    group_policy="least_batch",
    information=None,
    warmup_turnovers=1.0,
    drain=True,
    keep_requests=True,
    snapshots=None,
    series_rows=64,
) -> Case | None:
    """A run with everything off, from what `replay` takes; None where no request fits on a rank."""
    policy = get(policy) if isinstance(policy, str) else policy
    information, snapshots = information or Information(), snapshots or SnapshotPlan(4)
    layout, prices, n = pool.layout(), cost.prices(), len(trace)
    if trace.context_tokens.min() > layout.kv_capacity_tokens - layout.growth_reserve_tokens:
        return None
    how = FleetSettings(
        saturated=int(mode == "saturated"),
        concurrency=concurrency,
        seconds_per_unit=cost.us_per_unit * 1e-6,
        group_by_tokens=int(group_policy == "least_tokens"),
        warmup_turnovers=warmup_turnovers,
        drain=int(drain),
        keep_requests=int(keep_requests),
        snapshot_first=snapshots.first,
        snapshot_every=snapshots.every,
        tells_finished=int(policy.spec.finished is not None),
        knows=("exact", "ledger", "acknowledged", "erased", "extrapolated").index(information.knows),
        replicas=information.replicas,
        report_period_steps=information.period_steps,
        report_delay_steps=information.delay_steps,
        report_delay_s=information.delay_s,
    )
    memories = [
        policy.new_memory(
            seed + k * pool.groups + g,
            prices,
            (last - first) * pool.ranks,
            instances=last - first,
            groups=pool.groups,
            group=g,
        )
        for k in range(information.replicas)
        for g, (first, last) in enumerate(pairwise(layout.group_starts.tolist()))
    ]
    work = Work(
        np.zeros(0) if how.saturated else (trace.arrival_s - trace.arrival_s[0]) / rate_scale,
        np.array(trace.context_tokens, np.int64),
        np.array(trace.output_tokens, np.int64),
        np.array(trace.session, np.int64),
    )
    return Case(
        work, layout, how, plain_life(n), even_ranks(layout, n), no_extras(), no_draws(n), changes_of(),
        prices, PREFILL.prices(), policy.spec.place, policy.spec.finished or learn_nothing, policy.param_array(),
        padded([m.ints for m in memories]), padded([m.floats for m in memories]),
        series_rows=series_rows, snapshots=snapshots.count,
    )  # fmt: skip


def learn_nothing(*arguments):
    raise AssertionError("told although tells_finished is 0")


def padded(rows):
    """Memories as the rows of one array."""
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def as_bytes(*outcomes: Any) -> dict[str, Any]:
    """Every array of outcomes, bit by bit."""
    return {
        name: (array.shape, array.tobytes())
        for outcome in outcomes
        for name, array in outcome._asdict().items()
    }

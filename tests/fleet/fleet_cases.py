"""What the fleet tests share: inputs with everything off, ways to switch things on, and runs of the slow twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from equipoise.cost.prefill import PrefillCost, PrefillTerm
from equipoise.fleet.layout import (
    BY_REQUEST,
    NO_PREEMPTION,
    NO_PREFILL,
    Changes,
    Draws,
    Extras,
    FleetOutcome,
    Life,
    Ranked,
    new_fleet_outcome,
)
from equipoise.fleet.reference import run_reference
from equipoise.replay import engine, reference, replay
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
    settings: Settings
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

    def run(self, run: Any = run_reference) -> tuple[Outcome, FleetOutcome]:
        """Outcomes of the twin, or of anything with its arguments."""
        n, keep = len(self.work.context_tokens), bool(self.settings.keep_requests)
        out = new_outcome(
            n,
            self.layout,
            len(self.prices.saturation_tokens),
            series_rows=self.series_rows,
            keep_requests=keep,
            snapshots=self.snapshots,
        )
        fleet_out = new_fleet_outcome(n, keep_requests=keep)
        run(
            self.work, self.layout, self.settings, self.life, self.ranked, self.extras, self.draws, self.changes,
            self.prices, self.prefill_prices, self.place, self.finished, self.params,
            self.memory_ints.copy(), self.memory_floats.copy(), out, fleet_out,
        )  # fmt: skip
        return out, fleet_out


def replayed(trace, pool, policy, cost, *, series_rows=64, **options) -> tuple[Outcome, Case] | None:
    """Outcome of the replay's own twin, and the same run as a case with everything off; None where nothing fits."""
    layout = pool.layout()
    if trace.context_tokens.min() > layout.kv_capacity_tokens - layout.growth_reserve_tokens:
        return None
    calls = []
    original = reference.run_reference

    def listen(*arguments):
        calls.append((arguments, arguments[7].copy(), arguments[8].copy()))
        original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_check", lambda *arguments, **named: None)
        patch.setattr(engine, "SERIES_ROWS", series_rows)
        patch.setattr(reference, "run_reference", listen)
        replay(trace, pool, policy, cost, engine="reference", **options)
    ((work, layout, settings, prices, place, finished, params, _, _, out), ints, floats) = calls[0]
    n = len(trace)
    case = Case(
        work, layout, settings, plain_life(n), even_ranks(layout, n), no_extras(), no_draws(n), changes_of(),
        prices, PREFILL.prices(), place, finished, params, ints, floats,
        series_rows=series_rows, snapshots=len(out.snapshot_step),
    )  # fmt: skip
    return out, case


def as_bytes(*outcomes: Any) -> dict[str, Any]:
    """Every array of outcomes, bit by bit."""
    return {
        name: (array.shape, array.tobytes())
        for outcome in outcomes
        for name, array in outcome._asdict().items()
    }

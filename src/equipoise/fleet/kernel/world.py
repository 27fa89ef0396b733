"""All that the kernel's functions work on, in one place, handed from one to the other by address."""

from __future__ import annotations

from typing import NamedTuple

from equipoise._jit import reader
from equipoise.cost.prefill import PrefillPrices
from equipoise.fleet.kernel.layout import Changes, Draws, Extras, FleetOutcome, FleetSettings, Life, Ranked
from equipoise.fleet.kernel.routers import Pictures
from equipoise.fleet.kernel.state import FleetState
from equipoise.replay.layout import Outcome, PoolLayout, Work
from equipoise.types import Prices

__all__ = [
    "World",
    "changes_in",
    "draws_in",
    "extras_in",
    "life_in",
    "more_in",
    "out_in",
    "pool_in",
    "prefill_in",
    "prices_in",
    "ranked_in",
    "seen_in",
    "settings_in",
    "state_in",
    "work_in",
]


class World(NamedTuple):
    """A run."""

    work: Work
    pool: PoolLayout
    settings: FleetSettings
    life: Life
    ranked: Ranked
    extras: Extras
    draws: Draws
    changes: Changes
    prices: Prices
    prefill: PrefillPrices
    state: FleetState
    seen: Pictures
    out: Outcome
    more: FleetOutcome


work_in = reader(World, "work")
settings_in = reader(World, "settings")
life_in = reader(World, "life")
ranked_in = reader(World, "ranked")
draws_in = reader(World, "draws")
changes_in = reader(World, "changes")
state_in = reader(World, "state")
seen_in = reader(World, "seen")
out_in = reader(World, "out")
more_in = reader(World, "more")
extras_in = reader(World, "extras")
prefill_in = reader(World, "prefill")
prices_in = reader(World, "prices")
pool_in = reader(World, "pool")
"""``state_in(world)``: that part of the run whose address a function was handed."""

"""`Tables`: the arrays that compiled code works on, where they stand, and how they grow and are cut anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from equipoise.cost.step_cost import StepCost
from equipoise.policies import Policy, spec
from equipoise.policies.calling import functions, learn_nothing, memories
from equipoise.router.events import InstanceSpec
from equipoise.router.kernel import calls
from equipoise.router.kernel.state import (
    COUNT,
    INDEX_MASK,
    KEY_BITS,
    LIVE,
    NOBODY,
    SET,
    World,
    new_entries,
    new_world,
)
from equipoise.router.settings import Settings
from equipoise.types import Memory

__all__ = ["Tables", "Told"]


class Told(NamedTuple):
    """A request that has ended, as policies know it."""

    request: int
    rank: int
    context_tokens: int
    output_tokens: int
    """At least one: policies never see less."""
    length: int
    """What it holds, in tokens."""


FIRST_ROOM = 1024
FUNCTION_BYTES = 64


class Tables:
    """One `World`, laid out at an address that stays.

    Parameters
    ----------
    specs : sequence of InstanceSpec
    policy : Policy
    cost : StepCost
    settings : Settings
    seed : int
        Of the policy.
    """

    def __init__(
        self, specs: Sequence[InstanceSpec], policy: Policy, cost: StepCost, settings: Settings, seed: int
    ) -> None:
        self.policy, self.settings, self.seed = policy, settings, seed
        self.prices = cost.prices()
        self.place, self.finished = functions(policy, slow=not policy.compiled)
        self.world = self._new(specs, FIRST_ROOM)
        self._fill_settings()
        memory = np.zeros(calls.world_size(self.world) // 8 + 2 * FUNCTION_BYTES, np.int64)
        self._memory = memory  # stays where it is: its address is what calls are handed
        self.at = int(memory.ctypes.data)
        self.finished_at = self.at + memory.nbytes - FUNCTION_BYTES
        self.place_at = self.finished_at - FUNCTION_BYTES
        self._lay_out()

    def _new(self, specs: Sequence[InstanceSpec], room: int) -> World:
        widths = [spec.width for spec in specs]
        memory = self._new_memories(widths)
        world = new_world(
            widths, self.prices, self.policy.param_array(), memory, room, len(self.settings.classes)
        )
        limits = [limit for spec in specs for limit in spec.limits()]
        for r, (capacity, batch) in enumerate(limits):
            if capacity is not None:
                world.ranks["kv_capacity_tokens"][r] = capacity
            if batch is not None:
                world.ranks["max_batch"][r] = batch
        world.kinds["weight"] = list(self.settings.classes.values())
        return world

    def _new_memories(self, widths: list[int]) -> tuple[np.ndarray, np.ndarray]:
        if self.settings.scope == "instance" and len(widths) > 1:
            return memories(self.policy, self.prices, widths, [1] * len(widths), seed=self.seed)
        # no ranks: memory as for one, never used
        return memories(
            self.policy, self.prices, [max(sum(widths), 1)], [max(len(widths), 1)], seed=self.seed
        )

    def _fill_settings(self) -> None:
        numbers, settings = self.world.settings, self.settings
        numbers[SET.GROWTH_RESERVE] = settings.growth_reserve_tokens
        numbers[SET.EXTRAPOLATED] = settings.counts == "extrapolated"
        numbers[SET.SETTLE_S] = settings.settle_s
        numbers[SET.AFFINITY] = settings.affinity_bonus
        numbers[SET.STRICT] = settings.class_order == "strict"
        numbers[SET.GROUPS] = settings.scope == "instance" and len(self.world.instances) > 1
        numbers[SET.BY_TOKENS] = settings.group_policy == "least_tokens"
        numbers[SET.TELLS] = self.policy.spec.finished is not None and self.policy.compiled
        numbers[SET.FORGET_S] = settings.forget_after_s
        numbers[SET.PROBES] = settings.half_open_requests

    def _lay_out(self) -> None:
        """Write down where the arrays are; whenever one of them is another array."""
        place, finished = self.place, self.finished
        if not self.policy.compiled:  # Python calls it
            place, finished = some_policy(), learn_nothing
        calls.lay_out(self.world, place, finished, self.at, self.place_at, self.finished_at)

    def grow(self) -> None:
        """Make room for twice as many requests."""
        old = self.world.entries
        entries = np.concatenate([old, new_entries(len(old))])
        entries["next"][len(old) : -1] = np.arange(len(old) + 1, len(entries))
        self.world.counts[COUNT.FREE_FIRST] = len(old)
        self.world = self.world._replace(entries=entries)
        self._lay_out()

    def cut(
        self, specs: Sequence[InstanceSpec], new_rank: Sequence[int], new_instance: Sequence[int]
    ) -> None:
        """Other instances: what is kept moves over, requests on ranks that are gone run on uncounted.

        Parameters
        ----------
        specs : sequence of InstanceSpec
        new_rank, new_instance : sequence of int
            For each rank and instance of the old list its place in the new one, or -1.
        """
        old = self.world
        new = self._new(specs, 1)
        new = new._replace(entries=old.entries, kinds=old.kinds, counts=old.counts, settings=old.settings)
        ranks_to, instances_to = np.asarray(new_rank, np.int64), np.asarray(new_instance, np.int64)
        kept, stay = np.flatnonzero(ranks_to >= 0), np.flatnonzero(instances_to >= 0)
        limits = new.ranks[["kv_capacity_tokens", "max_batch"]].copy()
        new.ranks[ranks_to[kept]] = old.ranks[kept]
        told = [limit for spec in specs for limit in spec.limits()]
        for r, (capacity, batch) in enumerate(told):  # what the list says counts, reports keep the rest
            if capacity is not None:
                new.ranks["kv_capacity_tokens"][r] = limits["kv_capacity_tokens"][r]
            if batch is not None:
                new.ranks["max_batch"][r] = limits["max_batch"][r]
        new.saturated[ranks_to[kept]] = old.saturated[kept]
        old_places, places = len(old.past) // max(len(old.ranks), 1), len(new.past) // max(len(new.ranks), 1)
        for r in kept.tolist():
            count = int(old.ranks["ring_count"][r])
            for k in range(max(count - min(places, old_places), 0), count):
                new.past[int(ranks_to[r]) * places + k % places] = old.past[r * old_places + k % old_places]
        first = new.instances["first"].copy()
        new.instances[instances_to[stay]] = old.instances[stay]
        new.instances["first"] = first
        entries = new.entries
        for name in ("rank", "preferred", "told_rank"):
            at = entries[name]
            on = (at >= 0) & (len(ranks_to) > 0)  # entries never used say rank 0
            at[on] = ranks_to[at[on]]
        same = len(ranks_to) == len(new.ranks) and (ranks_to == np.arange(len(ranks_to))).all()
        if same:
            new = new._replace(memory_ints=old.memory_ints, memory_floats=old.memory_floats)
        elif (
            self.settings.scope == "instance"
            and min(len(old.instances), len(new.instances)) > 1
            and old.memory_ints.shape[1] == new.memory_ints.shape[1]
        ):
            new.memory_ints[instances_to[stay]] = old.memory_ints[stay]
            new.memory_floats[instances_to[stay]] = old.memory_floats[stay]
        else:
            new.counts[COUNT.EPOCH] += (
                1  # the policy forgets what it has placed, and must not be told that it ended
            )
        self.world = new
        self._fill_settings()
        self._lay_out()

    def told(self, lease: int) -> Told | None:
        """What a policy is to be told of a lease that ends; none: there is no such lease."""
        index = lease & INDEX_MASK
        entries = self.world.entries
        if not 0 <= index < len(entries) or lease < 0:
            return None
        entry = entries[index]
        if entry["state"] != LIVE or entry["generation"] != lease >> KEY_BITS:
            return None
        known = entry["told_rank"] != NOBODY and entry["epoch"] == self.world.counts[COUNT.EPOCH]
        return Told(
            request=int(entry["request"]),
            rank=int(entry["told_rank"]) if known else NOBODY,
            context_tokens=int(entry["context"]),
            output_tokens=max(int(entry["tokens"]), 1),
            length=int(entry["context"] + entry["tokens"]),
        )

    def memory_of(self, rank: int) -> tuple[Memory, int]:
        """The policy's memory for a rank, and the first rank it is of."""
        g, first = 0, 0
        if self.world.settings[SET.GROUPS]:
            g = int(self.world.view.instance[rank])
            first = int(self.world.instances["first"][g])
        return Memory(self.world.memory_ints[g], self.world.memory_floats[g]), first

    def tell(self, told: Told) -> None:
        """Tell a policy that Python calls of a lease that has ended."""
        if told.rank == NOBODY or self.policy.spec.finished is None:
            return
        memory, first = self.memory_of(told.rank)
        self.finished(
            memory,
            self.world.params,
            told.request,
            told.rank - first,
            told.context_tokens,
            told.output_tokens,
        )

    def live(self) -> np.ndarray:
        """Indices of the leases."""
        return np.flatnonzero(self.world.entries["state"] == LIVE)

    def sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """B, C and K of every rank, counted lease by lease."""
        entries, n = self.world.entries, len(self.world.ranks)
        live = entries[(entries["state"] == LIVE) & (entries["rank"] != NOBODY)]
        length = live["context"] + live["tokens"]
        batch, context = np.zeros(n, np.int64), np.zeros(n, np.int64)
        saturated = np.zeros_like(self.world.saturated)
        np.add.at(batch, live["rank"], 1)
        np.add.at(context, live["rank"], length)
        for s, most in enumerate(self.prices.saturation_tokens):
            np.add.at(saturated[:, s], live["rank"], np.minimum(length, most))
        return batch, context, saturated


def some_policy() -> Any:
    """Any policy: what stands where a policy is called from Python."""
    return spec("least_batch").place

"""`Pool`: how many instances of how many ranks, what fits on one, and how it is cut into groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.errors import InputError
from equipoise.policies.rules import UNLIMITED_BATCH, UNLIMITED_TOKENS
from equipoise.replay.layout import PoolLayout

__all__ = ["Pool", "whole_number"]

MAX_RANKS = 32_768
"""Sums of unlimited capacities over this many ranks stay within 63 bits."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A decode pool.

    Parameters
    ----------
    instances : int
        Instances, each with its own step clock (barrier).
    ranks : int
        DP ranks of an instance.
    kv_capacity_tokens : int, optional
        KV cache of a rank, in tokens; none: unlimited.
    max_batch : int, optional
        Running requests a rank may hold; none: unlimited.
    growth_reserve_tokens : int
        Tokens the capacity filter keeps free on a rank for the growth of what runs there.
    groups : int
        Groups the instances are cut into, as evenly as they divide, larger ones first.

    Raises
    ------
    InputError
        A number out of bounds.
    """

    instances: int = 1
    ranks: int = 64
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    growth_reserve_tokens: int = 0
    groups: int = 1

    def __post_init__(self) -> None:
        whole_number("instances", self.instances, 1, MAX_RANKS)
        whole_number("ranks", self.ranks, 1, MAX_RANKS)
        if self.instances * self.ranks > MAX_RANKS:
            raise InputError(
                f"{self.instances} instances x {self.ranks} ranks = {self.instances * self.ranks} ranks",
                fix=f"a pool may have up to {MAX_RANKS}",
            )
        if self.kv_capacity_tokens is not None:
            whole_number("kv_capacity_tokens", self.kv_capacity_tokens, 1, UNLIMITED_TOKENS)
        if self.max_batch is not None:
            whole_number("max_batch", self.max_batch, 1, UNLIMITED_BATCH)
        whole_number(
            "growth_reserve_tokens",
            self.growth_reserve_tokens,
            0,
            (self.kv_capacity_tokens or UNLIMITED_TOKENS) - 1,
        )
        if not 1 <= self.groups <= self.instances:
            raise InputError(
                f"groups = {self.groups}", fix=f"must be from 1 to the number of instances, {self.instances}"
            )

    @property
    def total_ranks(self) -> int:
        """Ranks of all instances."""
        return self.instances * self.ranks

    def layout(self) -> PoolLayout:
        """The pool as the kernel takes it."""
        sizes = [len(part) for part in np.array_split(np.arange(self.instances), self.groups)]
        return PoolLayout(
            instances=self.instances,
            ranks_per_instance=self.ranks,
            kv_capacity_tokens=self.kv_capacity_tokens or UNLIMITED_TOKENS,
            max_batch=self.max_batch or UNLIMITED_BATCH,
            growth_reserve_tokens=self.growth_reserve_tokens,
            group_starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )


def whole_number(name: str, value: object, low: int, high: int) -> None:
    """Refuse all but a whole number within bounds, Python's or numpy's."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise InputError(f"{name} = {value!r}", fix=f"must be a whole number from {low} to {high}")

"""What is prepared in Python before compiled code replays anything: columns and policy memories."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from equipoise.errors import InputError, PolicyError
from equipoise.policies import Policy
from equipoise.policies.calling import memories
from equipoise.replay.layout import PoolLayout
from equipoise.replay.pool import whole_number
from equipoise.traces.trace import Trace
from equipoise.types import Floats2D, Ints2D, Prices

__all__ = ["arrivals", "check_options", "column", "group_memories"]


def check_options(
    policy: Policy, *, engine: str, seed: int, rate_scale: float, warmup_turnovers: float
) -> None:
    """Refuse what no engine can run: a policy that does not compile in the kernel, and numbers out of bounds."""
    if engine == "kernel" and not policy.compiled:
        raise PolicyError(
            "does not compile", where=f"policy {policy.name!r}", fix="use engine='reference', or 'auto'"
        )
    whole_number("seed", seed, 0, 2**63 - 1)
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise InputError(f"rate_scale = {rate_scale}", fix="must be a finite number above 0")
    if not (math.isfinite(warmup_turnovers) and warmup_turnovers >= 0):
        raise InputError(f"warmup_turnovers = {warmup_turnovers}", fix="must be a finite number, 0 or more")


def group_memories(
    policy: Policy, prices: Prices, layout: PoolLayout, *, replicas: int, seed: int
) -> tuple[Ints2D, Floats2D]:
    """Policy memories of a pool: one a group, replica by replica, as rows of two arrays."""
    instances = np.diff(layout.group_starts).tolist()
    ranks = [n * layout.ranks_per_instance for n in instances]
    return memories(policy, prices, ranks, instances, replicas=replicas, seed=seed)


def column(values: Any, *, one_for_all: bool = False) -> Any:
    """A column as the kernel's one signature takes it: contiguous and writable; a repeated value may stay one."""
    array = np.asarray(values)
    if one_for_all and array.strides == (0,):
        array = array[:1]
    return np.require(array, dtype=np.int64, requirements=["C", "W"])


def arrivals(trace: Trace, rate_scale: float) -> Any:
    """Arrivals from 0 on, so many times as fast."""
    with np.errstate(over="ignore"):
        arrival_s = (trace.arrival_s - trace.arrival_s[0]) / rate_scale
    if not math.isfinite(arrival_s[-1]):
        raise InputError(
            f"rate_scale = {rate_scale} puts the last arrival at {arrival_s[-1]} s", fix="use a larger one"
        )
    return arrival_s

"""What is prepared in Python before compiled code replays anything: columns, policy memories, policy functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import InputError, PolicyError
from equipoise.policies import Policy
from equipoise.replay.layout import PoolLayout
from equipoise.replay.pool import whole_number
from equipoise.traces.trace import Trace
from equipoise.types import Floats2D, Ints2D, Prices

__all__ = ["arrivals", "check_options", "column", "failed", "functions", "memories"]


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


def memories(
    policy: Policy, prices: Prices, layout: PoolLayout, *, groups: int, replicas: int, seed: int
) -> tuple[Ints2D, Floats2D]:
    """Policy memories: one a group, replica by replica, as rows of two arrays."""
    found = [
        policy.new_memory(
            _stream(seed, k * groups + g),
            prices,
            (last - first) * layout.ranks_per_instance,
            instances=last - first,
            groups=groups,
            group=g,
        )
        for k in range(replicas)
        for g, (first, last) in enumerate(pairwise(layout.group_starts.tolist()))
    ]
    return _padded([m.ints for m in found]), _padded([m.floats for m in found])


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


def _stream(seed: int, group: int) -> int:
    """Seed of a group's policy: the run's own for the first, streams of their own for the others.

    Not ``seed + group``: run 0's second group would then repeat the draws of run 1's first, and runs that are
    averaged as independent would not be.
    """
    if group == 0:
        return int(seed)
    return int(np.random.SeedSequence(int(seed), spawn_key=(group,)).generate_state(1, np.uint64)[0])


def _padded(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Memories as the rows of one array; groups differ in ranks, so their memories may differ in length."""
    longest = max(len(row) for row in rows)
    return np.stack([np.pad(row, (0, longest - len(row))) for row in rows])


def functions(policy: Policy, *, slow: bool) -> tuple[Callable[..., None], Callable[..., None]]:
    """What the policy does with a round, and with a request that ended: compiled, or plain Python for the slow twin."""
    from equipoise.replay.kernel import learn_nothing

    place, finished = policy.spec.place, policy.spec.finished or learn_nothing
    return (_plain(policy, place), _plain(policy, finished)) if slow else (place, finished)


def _plain(policy: Policy, function: Any) -> Callable[..., None]:
    """A function's plain-Python self; what goes wrong inside it becomes an error a person can act on."""
    plain = getattr(function, "py_func", function)

    def named(*arguments: Any) -> None:
        try:
            plain(*arguments)
        except Exception as error:
            raise failed(policy, error) from error

    return named


def failed(policy: Policy, error: Exception) -> PolicyError:
    """What went wrong inside a policy, as an error a person can act on."""
    return PolicyError(
        f"{type(error).__name__}: {error}",
        where=f"policy {policy.name!r}",
        fix="it failed inside its own code",
    )

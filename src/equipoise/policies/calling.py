"""What an engine prepares in Python before a policy is called: its memories, its functions, its errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import PolicyError
from equipoise.policies.api import learning
from equipoise.policies.registry import Policy
from equipoise.types import Floats2D, Ints2D, Prices

__all__ = ["failed", "functions", "learn_nothing", "memories"]


@learning
def learn_nothing(memory, params, request, rank, context_tokens, output_tokens):  # type: ignore[no-untyped-def]
    """Stand in for a policy that does not learn."""


def memories(
    policy: Policy,
    prices: Prices,
    group_ranks: Sequence[int],
    group_instances: Sequence[int],
    *,
    replicas: int = 1,
    seed: int = 0,
) -> tuple[Ints2D, Floats2D]:
    """Policy memories: one a group, replica by replica, as rows of two arrays.

    Parameters
    ----------
    policy : Policy
    prices : Prices
    group_ranks, group_instances : sequence of int
        Ranks and instances of each group.
    replicas, seed : int
    """
    groups = len(group_ranks)
    found = [
        policy.new_memory(
            stream(seed, k * groups + g),
            prices,
            ranks,
            instances=instances,
            groups=groups,
            group=g,
        )
        for k in range(replicas)
        for g, (ranks, instances) in enumerate(zip(group_ranks, group_instances, strict=True))
    ]
    return _padded([m.ints for m in found]), _padded([m.floats for m in found])


def stream(seed: int, group: int) -> int:
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

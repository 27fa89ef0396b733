"""The tokens that running requests came with: what routers count that take no notice of the tokens generated since.

A policy adds a request's share when it places it and takes it off again when the request has ended, one number a
rank in ``memory.ints``. The contexts shown by the ranks grow with every token, so they cannot tell.
"""

from __future__ import annotations

from equipoise._jit import jitable
from equipoise.policies.api import RANK_BITS, PolicyContext
from equipoise.types import Ints, Memory, Ranks

__all__ = ["forget", "memory_size", "most_ranks", "settle"]


def most_ranks(context: PolicyContext) -> int:
    """How many ranks to make memory for: as many for every group of a pool, whose memories are kept side by side.

    Groups differ by an instance where their number does not divide that of the instances.
    """
    if context.groups == 1:
        return context.ranks
    return (1 << RANK_BITS) // context.groups + context.ranks // context.instances


def memory_size(context: PolicyContext) -> tuple[int, int]:
    """One number a rank."""
    return most_ranks(context), 0


@jitable
def settle(held: Ints, ranks: Ranks) -> None:
    """Nothing is held by a rank that runs nothing: an abort, of which a policy is not told, leaves no trace there."""
    for r in range(len(ranks.batch)):
        if ranks.batch[r] == 0:
            held[r] = 0


@jitable
def forget(memory: Memory, rank: int, share: int) -> None:
    """Take a request that has ended off its rank; never below nothing."""
    memory.ints[rank] = max(memory.ints[rank] - share, 0)

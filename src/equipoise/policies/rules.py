"""The rules of a round that every engine keeps: how many are offered, and what a policy may not answer."""

from __future__ import annotations

from equipoise._jit import jitable

__all__ = ["BAD_RANK", "MAX_ROUND", "NO_ROOM", "UNLIMITED_BATCH", "UNLIMITED_TOKENS", "breach", "room"]

UNLIMITED_TOKENS = 1 << 47
"""Capacity of a rank without a limit: the sum over 32,768 such ranks is 2**62 and still fits into 63 bits."""

UNLIMITED_BATCH = 1 << 40
"""Running requests of a rank without a limit."""

MAX_ROUND = 1024
"""Most requests handed to a policy at once; with more waiting, the oldest go first."""

BAD_RANK, NO_ROOM = 1, 2
"""What `breach` finds: a rank the policy was not shown, or one that is full."""


@jitable
def room(tokens: int, slots: int) -> int:
    """What the capacity filter shows of a rank: the tokens that fit, or -1 where no further request may run."""
    return tokens if slots > 0 else -1


@jitable
def breach(rank: int, ranks: int, free_tokens: int, reserve_tokens: int) -> int:
    """Whether a policy may have chosen this rank: 0, `BAD_RANK` or `NO_ROOM`.

    Parameters
    ----------
    rank, ranks : int
        The choice, and how many there are.
    free_tokens : int
        What the capacity filter says of the rank now; any number where there is no such rank.
    reserve_tokens : int
        What the request takes.
    """
    if not 0 <= rank < ranks:
        return BAD_RANK
    return NO_ROOM if free_tokens < reserve_tokens else 0

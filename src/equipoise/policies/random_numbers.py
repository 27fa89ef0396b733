"""A random stream for policies that needs nothing but 64-bit integer arithmetic.

MRG32k3a (L'Ecuyer 1999, "Good parameters and implementations for combined multiple recursive random number
generators"): two recurrences of order three, period about 2**191. Products stay below 2**53, so compiled code, plain
Python and any other language give the same numbers without overflow.
"""

from __future__ import annotations

import numpy as np

from equipoise._jit import jitable
from equipoise.policies.api import PolicyContext
from equipoise.types import Ints, Memory

__all__ = ["STATE_SIZE", "below", "memory_size", "seed_state", "start"]

STATE_SIZE = 6
M1, M2 = 4294967087, 4294944443
A12, A13 = 1403580, 810728
A21, A23 = 527612, 1370589


def seed_state(state: Ints, seed: int) -> None:
    """Fill the six words of a stream from a seed."""
    words = np.random.SeedSequence(seed).generate_state(STATE_SIZE, dtype=np.uint64)
    state[:3] = (words[:3] % np.uint64(M1 - 1)).astype(np.int64) + 1
    state[3:STATE_SIZE] = (words[3:] % np.uint64(M2 - 1)).astype(np.int64) + 1


def memory_size(context: PolicyContext) -> tuple[int, int]:
    """Memory of a policy that holds nothing but a stream."""
    return STATE_SIZE, 0


def start(memory: Memory, context: PolicyContext) -> None:
    """Seed that stream."""
    seed_state(memory.ints, context.seed)


@jitable
def below(state: Ints, n: int) -> int:
    """Next whole number in [0, n), n below 2**21: the bias of the remainder is under 2**-11 of a count."""
    p1 = (A12 * state[1] - A13 * state[0]) % M1
    p2 = (A21 * state[5] - A23 * state[3]) % M2
    state[0], state[1], state[2] = state[1], state[2], p1
    state[3], state[4], state[5] = state[4], state[5], p2
    return ((p1 - p2) % M1) % n

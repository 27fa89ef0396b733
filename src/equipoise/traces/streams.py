"""Random numbers by name: every field of a workload draws from a sub-stream of its own.

Two forms. `generator` is a numpy generator seeded by (seed, name, key): for processes that are walked in order.
`Uniforms` is a function of (seed, name, i, j): any number of a stream at once and in any order, so a request's lengths
depend on nothing but the seed and on which request of which session it is, whatever the rate or the trace's length.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from equipoise.errors import TraceError
from equipoise.types import Floats, Ints

__all__ = ["Uniforms", "generator"]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _sequence(seed: int, name: str, *key: int) -> np.random.SeedSequence:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise TraceError(f"seed = {seed!r}", fix="expected a whole number, at least 0")
    return np.random.SeedSequence(int(seed), spawn_key=(crc32(name.encode()), *key))


def generator(seed: int, name: str, *key: int) -> np.random.Generator:
    """Numpy generator of the sub-stream ``name``; ``key`` numbers its parts."""
    return np.random.default_rng(_sequence(seed, name, *key))


class Uniforms:
    """Uniform numbers in (0, 1) as a function of two counters.

    Splitmix64's output function (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"), applied
    twice: the first pass mixes ``i`` with the stream's key, the second ``j``.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._key = _sequence(seed, name).generate_state(1, np.uint64)[0]

    def __call__(self, i: Ints, j: Ints | int = 0) -> Floats:
        """One number for each pair of counters (broadcast against each other)."""
        with np.errstate(over="ignore"):
            state = _mix(np.asarray(i).astype(np.uint64) * GOLDEN + self._key)
            state = _mix(state + (np.asarray(j).astype(np.uint64) + np.uint64(1)) * GOLDEN)
        # 53 bits, and half a step away from 0 and from 1: quantile functions are finite there
        numbers = (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
        numbers += 2.0**-54
        return numbers


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x

"""Who places the requests of a simulation: any policy, or ``skewed``, which is uneven on purpose."""

from __future__ import annotations

import math

from equipoise.errors import PolicyError
from equipoise.policies import Policy, parse
from equipoise.policies.api import STAY, Parameter, PolicySpec, fits, one_by_one
from equipoise.policies.random_numbers import below, memory_size, start
from equipoise.types import Floats, Memory, Prices, Ranks, Requests

__all__ = ["SKEWED", "placement"]

PARTS = 1 << 20
"""Equally likely values that a draw can take."""


def pick(ranks: Ranks, requests: Requests, i: int, prices: Prices, params: Floats, memory: Memory) -> int:
    """Draw a rank; from rank 0 to the last, how likely one is falls evenly from 1 + spread to 1 - spread."""
    spread, n = float(params[0]), len(ranks.batch)
    u = below(memory.ints, PARTS) / PARTS
    # the inverse of (1 + s) x - s x**2, the share of requests on the first x of the ranks
    x = u if spread == 0 else (1 + spread - math.sqrt((1 + spread) ** 2 - 4 * spread * u)) / (2 * spread)
    for r in range(n):
        rank = (min(int(x * n), n - 1) + r) % n
        if fits(ranks, rank, requests.reserve_tokens[i]):
            return rank
    return STAY


SKEWED = PolicySpec(
    name="skewed",
    place=one_by_one(pick, compile_it=False),
    summary="random, first ranks more likely than last ones",
    source="baseline",
    parameters=(
        Parameter("spread", 0.3, "how uneven: a rank's weight is 1 + spread to 1 - spread", 0.0, 1.0),
    ),
    memory_size=memory_size,
    start=start,
)


def placement(text: str) -> Policy:
    """A policy by its text, as in ``dualpath,z=1.05``; here also ``skewed,spread=0.3``.

    Raises
    ------
    PolicyError
        Unknown names, parameters out of bounds, a policy that is no compiled one.
    """
    name, _, setting = text.partition(",")
    if name.strip() != SKEWED.name:
        policy = parse(text)
        if not policy.compiled:
            raise PolicyError(
                f"policy {text!r} is not compiled", fix="this simulation takes compiled ones only"
            )
        return policy
    parameter = SKEWED.parameters[0]
    key, _, number = setting.partition("=")
    try:
        spread = float(number) if setting else float(parameter.default)
    except ValueError:
        spread = math.nan
    if (setting and key.strip() != parameter.name) or not parameter.low <= spread <= parameter.high:
        raise PolicyError(f"policy {text!r}", fix="skewed takes spread from 0 to 1, as in skewed,spread=0.3")
    return Policy(SKEWED, {parameter.name: spread})

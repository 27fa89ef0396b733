"""What a policy is made of.

A policy is one function ``place(ranks, requests, prices, params, memory, out)``. It writes a rank index, or -1 for
"stay queued", into ``out`` for every waiting request, and books each choice into ``ranks`` so that the next request
sees it. It must respect the capacity filter: the engine has already put -1 into ``free_tokens`` wherever no request
may go, so `fits` is the whole filter. It never sees a true output length.

Most policies choose one request at a time; `one_by_one` turns such a ``pick`` function into ``place``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from equipoise._jit import PLACE, compiled, jitable
from equipoise.types import Ints, Memory, Ranks

__all__ = [
    "NO_LIMIT",
    "STAY",
    "Parameter",
    "PolicySpec",
    "book",
    "fewest_requests",
    "fewest_tokens",
    "fits",
    "one_by_one",
    "placement",
]

STAY = -1
"""Rank index that means: stay queued."""

NO_LIMIT = 1 << 62
"""Beyond any number of tokens; small enough to compare without overflow."""


@jitable
def fits(ranks: Ranks, rank: int, tokens: int) -> bool:
    """The capacity filter for one rank: whether a request of this context may go there."""
    return ranks.free_tokens[rank] >= tokens


@jitable
def book(ranks: Ranks, rank: int, tokens: int, saturation_tokens: Ints) -> None:
    """Count a placed request into the view, so that the next choice sees it."""
    ranks.batch[rank] += 1
    ranks.context_tokens[rank] += tokens
    ranks.free_slots[rank] -= 1
    ranks.free_tokens[rank] -= tokens
    if ranks.free_slots[rank] <= 0:
        ranks.free_tokens[rank] = -1
    for s in range(len(saturation_tokens)):
        ranks.saturated_tokens[rank, s] += min(tokens, saturation_tokens[s])


@jitable
def fewest_requests(ranks: Ranks, tokens: int, at_most_tokens: int) -> int:
    """Rank with the smallest batch among those that fit and hold at most so many tokens; -1: none.

    Ties go to the lowest index. Two plain passes: compilers turn the first into vector code, which a single pass
    that remembers the index does not allow (measured four times faster at 6,400 ranks).
    """
    least = NO_LIMIT
    for r in range(len(ranks.batch)):
        eligible = (ranks.free_tokens[r] >= tokens) & (ranks.context_tokens[r] <= at_most_tokens)
        least = min(least, ranks.batch[r] if eligible else NO_LIMIT)
    if least == NO_LIMIT:
        return STAY
    for r in range(len(ranks.batch)):
        if (
            ranks.batch[r] == least
            and ranks.free_tokens[r] >= tokens
            and ranks.context_tokens[r] <= at_most_tokens
        ):
            return r
    return STAY


@jitable
def fewest_tokens(ranks: Ranks, tokens: int) -> int:
    """Rank with the fewest context tokens among those that fit; -1: none. Ties go to the lowest index."""
    least = NO_LIMIT
    for r in range(len(ranks.context_tokens)):
        least = min(least, ranks.context_tokens[r] if ranks.free_tokens[r] >= tokens else NO_LIMIT)
    if least == NO_LIMIT:
        return STAY
    for r in range(len(ranks.context_tokens)):
        if ranks.context_tokens[r] == least and ranks.free_tokens[r] >= tokens:
            return r
    return STAY


checked_placement = compiled(PLACE, checked=True)
placement = compiled(PLACE)
"""Decorator: compile a ``place`` function under the one signature of every policy."""


def one_by_one(pick: Callable[..., int], *, compile_it: bool = True, checked: bool = False) -> Any:
    """Turn ``pick(ranks, requests, i, prices, params, memory) -> rank or -1`` into a ``place`` function.

    Requests are taken oldest first. The first that fits nowhere ends the round: those behind it wait too, so that
    a large request is never starved by small ones that slip past it.
    """
    if compile_it:
        pick = jitable(boundscheck=True)(pick) if checked else jitable(pick)

    def place(ranks, requests, prices, params, memory, out):  # type: ignore[no-untyped-def]
        blocked = False
        for i in range(len(out)):
            rank = STAY if blocked else pick(ranks, requests, i, prices, params, memory)
            out[i] = rank
            if rank == STAY:
                blocked = True
            elif (
                0 <= rank < len(ranks.batch)
            ):  # the engine refuses any other; booking it would write beyond the arrays
                book(ranks, rank, requests.context_tokens[i], prices.saturation_tokens)

    # A name of its own: numba makes linker symbols of module, name and a count that starts anew in every process, so
    # two functions of one name, each loaded from the cache another process wrote, may run as one another.
    place.__module__ = pick.__module__
    place.__qualname__ = f"{pick.__qualname__}.place"
    if not compile_it:
        return place
    return checked_placement(place) if checked else placement(place)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy, as it appears behind the comma of ``--policy dualpath,z=1.2``.

    Parameters
    ----------
    name : str
    default : float or str or bool
    description : str
    low, high : float
        Bounds of a number, both allowed.
    choices : sequence of str
        The words it may take instead of a number; the policy sees the position of the word.
    integer : bool
    """

    name: str
    default: float | str | bool
    description: str
    low: float = float("-inf")
    high: float = float("inf")
    choices: tuple[str, ...] = ()
    integer: bool = False


def _no_memory(params: Mapping[str, Any]) -> tuple[int, int]:
    return 0, 0


def _no_start(memory: Memory, params: Mapping[str, Any], seed: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy with its name and parameters; every policy module holds one called ``SPEC``.

    Parameters
    ----------
    name : str
    place : function
        Made by `placement` or `one_by_one`.
    summary : str
        The rule in one line.
    source : str
        Paper, article or code it comes from.
    parameters : sequence of Parameter
        In the order of the ``params`` array.
    aliases : sequence of str
    memory_size : function
        ``(params) -> (ints, floats)`` lengths of its `Memory`.
    start : function
        ``(memory, params, seed)`` fills a fresh, zeroed memory.
    stability : {"stable", "experimental"}
    """

    name: str
    place: Any
    summary: str
    source: str
    parameters: tuple[Parameter, ...] = ()
    aliases: tuple[str, ...] = ()
    memory_size: Callable[[Mapping[str, Any]], tuple[int, int]] = field(default=_no_memory)
    start: Callable[[Memory, Mapping[str, Any], int], None] = field(default=_no_start)
    stability: Literal["stable", "experimental"] = "stable"

"""What a policy is made of.

A policy is one function ``place(ranks, requests, prices, params, memory, out)``. It writes a rank index, or -1 for
"stay queued", into ``out`` for every waiting request, and books each choice into ``ranks`` so that the next request
sees it. It must respect the capacity filter: the engine has already put -1 into ``free_tokens`` wherever no request
may go, so `fits` is the whole filter. It never sees the true output length of a request it may still place; a policy
that learns from those that ended has a second function, ``finished``.

What binds it is the view it was given: the engine refuses a choice that the view itself forbids. Where a view is
stale, a rank that turns out to be full is the engine's affair: the request waits in that rank's own queue.

Most policies choose one request at a time; `one_by_one` turns such a ``pick`` function into ``place``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from equipoise._jit import FINISHED, PLACE, compiled, jitable
from equipoise.errors import PolicyError
from equipoise.types import Memory, Prices, Ranks, Requests

__all__ = [
    "NO_LIMIT",
    "STAY",
    "Parameter",
    "PolicyContext",
    "PolicySpec",
    "book",
    "fewest_requests",
    "fewest_tokens",
    "fits",
    "learning",
    "one_by_one",
    "placement",
]

STAY = -1
"""Rank index that means: stay queued."""

NO_LIMIT = 1 << 62
"""Beyond any number of tokens; small enough to compare without overflow."""


RANK_BITS = 15
"""Ranks are numbered below 2**15 (`equipoise.Pool` takes no more), loads are below 2**47: together below `NO_LIMIT`."""
RANK_MASK = (1 << RANK_BITS) - 1


@jitable
def fits(ranks: Ranks, rank: int, reserve_tokens: int) -> bool:
    """The capacity filter for one rank: whether a request that takes so many tokens may go there."""
    return ranks.free_tokens[rank] >= reserve_tokens


@jitable
def book(ranks: Ranks, rank: int, requests: Requests, i: int, prices: Prices) -> None:
    """Count a placed request into the view, so that the next choice sees it."""
    tokens = requests.context_tokens[i]
    ranks.batch[rank] += 1
    ranks.context_tokens[rank] += tokens
    ranks.free_slots[rank] -= 1
    ranks.free_tokens[rank] -= requests.reserve_tokens[i]
    if ranks.free_slots[rank] <= 0:
        ranks.free_tokens[rank] = -1
    for s in range(len(prices.saturation_tokens)):
        ranks.saturated_tokens[rank, s] += min(tokens, prices.saturation_tokens[s])


@jitable
def fewest_requests(ranks: Ranks, reserve_tokens: int, at_most_tokens: int) -> int:
    """Rank with the smallest batch among those with room that hold at most so many tokens; -1: none.

    Ties go to the lowest index: load and index are compared as one number, which compilers turn into vector code.
    """
    best = NO_LIMIT
    for r in range(len(ranks.batch)):
        eligible = (ranks.free_tokens[r] >= reserve_tokens) & (ranks.context_tokens[r] <= at_most_tokens)
        best = min(best, (ranks.batch[r] << RANK_BITS) + r if eligible else NO_LIMIT)
    return STAY if best == NO_LIMIT else best & RANK_MASK


@jitable
def fewest_tokens(ranks: Ranks, reserve_tokens: int) -> int:
    """Rank with the fewest context tokens among those with room; -1: none. Ties go to the lowest index."""
    best = NO_LIMIT
    for r in range(len(ranks.context_tokens)):
        eligible = ranks.free_tokens[r] >= reserve_tokens
        best = min(best, (ranks.context_tokens[r] << RANK_BITS) + r if eligible else NO_LIMIT)
    return STAY if best == NO_LIMIT else best & RANK_MASK


checked_placement = compiled(PLACE, checked=True)
placement = compiled(PLACE)
"""Decorator: compile a ``place`` function under the one signature of every policy."""
learning = compiled(FINISHED)
"""Decorator: compile a ``finished`` function, what a policy learns from a request that has ended."""


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
                book(ranks, rank, requests, i, prices)

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
    words : sequence of str
        The words a number may be instead; the policy sees -1 for the first, -2 for the second, so `low` must be 0 or
        more.
    """

    name: str
    default: float | str | bool
    description: str
    low: float = float("-inf")
    high: float = float("inf")
    choices: tuple[str, ...] = ()
    integer: bool = False
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.words and not self.low >= 0:
            raise PolicyError(
                f"parameter {self.name!r} has words and numbers from {self.low:g}",
                fix="words are seen as -1, -2, ...: give low=0 or more",
            )


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """What a policy may know when its memory is made; a field may be added.

    Parameters
    ----------
    params : mapping
        Its parameters, by name.
    seed : int
        For random streams.
    prices : Prices
        The step cost.
    ranks, instances : int
        How many it will be shown: those of its group.
    groups, group : int
        How many groups the pool has, and which is this one.
    """

    params: Mapping[str, Any]
    seed: int
    prices: Prices
    ranks: int
    instances: int = 1
    groups: int = 1
    group: int = 0


def _no_memory(context: PolicyContext) -> tuple[int, int]:
    return 0, 0


def _no_start(memory: Memory, context: PolicyContext) -> None:
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
        ``(context) -> (ints, floats)`` lengths of its `Memory`, given the `PolicyContext`.
    start : function
        ``(memory, context)`` fills a fresh, zeroed memory.
    finished : function, optional
        Made by `learning`; called with ``(memory, params, request, rank, context_tokens, output_tokens)`` for every
        request that ended, its rank counted as in the view, its context as it was when decoding started.
    variant : function, optional
        ``(params)`` gives the definition that takes over for such parameters, under the same name, or none: for a
        mode with functions and a memory of its own.
    """

    name: str
    place: Any
    summary: str
    source: str
    parameters: tuple[Parameter, ...] = ()
    aliases: tuple[str, ...] = ()
    memory_size: Callable[[PolicyContext], tuple[int, int]] = field(default=_no_memory)
    start: Callable[[Memory, PolicyContext], None] = field(default=_no_start)
    finished: Any = None
    variant: Callable[[Mapping[str, Any]], PolicySpec | None] | None = None

"""The router's tables: requests (queued ones and leases), ranks, instances, classes, and what is counted.

One entry of `ENTRY` is a request from its arrival to its release. Its key, ``generation << KEY_BITS | index``, is the
lease: an entry that is used again has another generation, so a key that is late finds nothing.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise._jit import reader
from equipoise.policies.rules import MAX_ROUND, UNLIMITED_BATCH, UNLIMITED_TOKENS
from equipoise.policies.views import empty_ranks, waiting_requests
from equipoise.types import Floats, Floats2D, Ints, Ints2D, Prices, Ranks, Requests

__all__ = [
    "COUNT",
    "ENTRY",
    "FREE",
    "INDEX_MASK",
    "KEY_BITS",
    "LIVE",
    "MOST_CLASSES",
    "NOBODY",
    "QUEUED",
    "REASON",
    "SET",
    "World",
    "new_world",
]

KEY_BITS = 24
"""Bits of a key that are an index: sixteen million requests at once."""
INDEX_MASK = (1 << KEY_BITS) - 1
NOBODY = -1
FREE, QUEUED, LIVE = 0, 1, 2
"""States of an entry."""
MOST_CLASSES = 16

ENTRY = np.dtype(
    [
        ("state", np.int64),
        ("generation", np.int64),
        ("next", np.int64),  # in the list of free entries, or of its class's queue
        ("previous", np.int64),
        ("kind", np.int64),  # its class
        ("rank", np.int64),  # over all instances; NOBODY: queued, or its instance was taken away
        ("told_rank", np.int64),  # where the policy put it, as it was shown; NOBODY: the policy did not
        ("epoch", np.int64),  # of the policy's memory
        ("reason", np.int64),
        ("context", np.int64),  # prompt, in tokens
        ("tokens", np.int64),  # generated so far
        ("budget", np.int64),
        ("session", np.int64),
        ("request", np.int64),  # number by which policies know it
        ("bytes", np.int64),
        ("preferred", np.int64),  # rank its session was on last; NOBODY
        ("arrived_s", np.float64),
        ("offered", np.int64),  # steps done when it was first offered; NOBODY
        ("dispatched_s", np.float64),
        ("heard_s", np.float64),  # when it last gave a sign of life
        ("streams", np.int64),  # times it has given tokens
        ("base", np.int64),  # its instance's steps before its first
        ("probe", np.int64),  # 1: sent to see whether its instance works again
    ]
)
RANK = np.dtype(
    [
        ("batch", np.int64),  # own leases ...
        ("context", np.int64),  # ... their contexts: prompts and what has been generated ...
        ("sent_us", np.int64),  # ... and the times they were sent, added up, in microseconds
        ("others_batch", np.int64),  # what others have there, by the last report
        ("others_context", np.int64),
        ("kv_capacity_tokens", np.int64),
        ("max_batch", np.int64),
        ("drained", np.int64),
        ("cap", np.int64),  # most requests while its instance starts slowly
        ("reported_s", np.float64),  # when the last report was taken; -inf: none
        ("reported_batch", np.int64),
        ("reported_step", np.int64),  # steps of its instance then
        ("missing", np.int64),  # requests the report lacks of those it must have seen
        ("sequence", np.int64),
        ("dispatched", np.int64),  # counts since the start: requests and prompt tokens sent,
        ("dispatched_tokens", np.int64),
        ("released", np.int64),  # requests released, and their contexts then,
        ("released_tokens", np.int64),
        ("generated", np.int64),  # tokens generated
        ("ring_count", np.int64),  # of what is kept of these counts
    ]
)
PAST = np.dtype(
    [
        ("from_s", np.float64),
        ("dispatched", np.int64),
        ("dispatched_tokens", np.int64),
        ("released", np.int64),
        ("released_tokens", np.int64),
        ("generated", np.int64),
    ]
)
"""The counts of a rank from a moment on."""
INSTANCE = np.dtype(
    [
        ("first", np.int64),  # its first rank
        ("ranks", np.int64),
        ("closed", np.int64),  # 1: nothing may be sent there
        ("probes_left", np.int64),  # requests that may still be sent there
        ("running", np.int64),  # leases that have given tokens
        ("steps", np.int64),
        ("stepped_s", np.float64),  # when the last step ended
        ("step_s", np.float64),  # how long steps take; 0: not known
        ("asked", np.int64),  # steps done when a policy was last asked
        ("told", np.int64),  # 1: its steps are told, not inferred
        ("ends_s", np.float64),  # when the step under way ends, if told; inf: none is under way
        ("slow_from_s", np.float64),
        ("slow_until_s", np.float64),
        ("pace_s", np.float64),  # seconds a token, from requests that finished; 0: none has
        ("reported_s", np.float64),
    ]
)
KIND = np.dtype(
    [
        ("first", np.int64),
        ("last", np.int64),
        ("waiting", np.int64),
        ("weight", np.float64),
        ("served", np.float64),  # weighted share it has had; lowest goes first
        ("cursor", np.int64),  # while a round is made up
        ("reckoned", np.float64),
    ]
)


class _Count(NamedTuple):
    """Positions in ``World.counts``."""

    LIVE: int = 0
    WAITING: int = 1
    WAITING_TOKENS: int = 2
    WAITING_BYTES: int = 3
    FREE_FIRST: int = 4
    STEPS: int = 5  # of all instances
    CURSOR: int = 6  # of the round robin
    EPOCH: int = 7
    ARRIVED: int = 8  # requests numbered so far
    DIRTY: int = 9  # 1: something has changed since the queue was last offered
    GATHERED: int = 10  # requests in the round under way
    PLACED: int = 11  # dispatches to be read from ``placed``
    DISPATCHED: int = 12
    FINISHED: int = 13
    ABORTED: int = 14
    STALE_KEYS: int = 15  # events for leases that are no more
    BREACHES: int = 16  # choices of the policy that the view forbade
    ROUNDS: int = 17
    OLD_REPORTS: int = 18  # late, duplicate or out of order
    REPORTS: int = 19
    TOKENS: int = 20
    CANCELLED: int = 21
    EXPIRED: int = 22
    AFFINITY: int = 23  # placed where their session was
    HELD_BACK: int = 24  # left by the policy in the last round
    LAST: int = 25  # key of the last arrival


COUNT = _Count()


class _Set(NamedTuple):
    """Positions in ``World.settings``: numbers that compiled code reads."""

    GROWTH_RESERVE: int = 0
    EXTRAPOLATED: int = 1
    SETTLE_S: int = 2
    AFFINITY: int = 3
    STRICT: int = 4
    GROUPS: int = 5  # 1: an instance is chosen first, then a rank of it
    BY_TOKENS: int = 6
    RUNG: int = 7  # of the fallback ladder; 2: ranks in turn
    TELLS: int = 8  # 1: the policy learns from requests that end
    FORGET_S: int = 9
    PROBES: int = 10  # requests at once that try an instance


SET = _Set()


class _Reason(NamedTuple):
    """Why a rank was chosen: values of ``ENTRY.reason``."""

    POLICY: int = 0
    AFFINITY: int = 1
    ROUND_ROBIN: int = 2


REASON = _Reason()

MOST_RING, LEAST_RING, RING_ROOM = 1024, 64, 1 << 19


class World(NamedTuple):
    """All that compiled code works on."""

    entries: Annotated[NDArray[np.void], ENTRY]
    ranks: Annotated[NDArray[np.void], RANK]
    saturated: Ints2D
    """int64[ranks, saturations], of own leases."""
    past: Annotated[NDArray[np.void], PAST]
    """[ranks * places]"""
    instances: Annotated[NDArray[np.void], INSTANCE]
    kinds: Annotated[NDArray[np.void], KIND]
    counts: Ints
    settings: Floats
    view: Ranks
    asked: Requests
    keys: Ints
    """int64[MAX_ROUND], entries of the round under way."""
    chosen: Ints
    placed: Ints2D
    """int64[MAX_ROUND, 2], what the last round placed: key, and ``rank << 2 | reason``."""
    bounds: Ints
    """int64[instances + 1], first rank of each, then the number of ranks."""
    prices: Prices
    params: Floats
    memory_ints: Ints2D
    memory_floats: Floats2D
    scratch: Ints2D
    """int64[2, most ranks of an instance]: B and C of an instance, while it is priced."""
    scratch_saturated: Ints2D
    totals: Ints
    """int64[saturations]"""


entries_in = reader(World, "entries")
ranks_in = reader(World, "ranks")
saturated_in = reader(World, "saturated")
past_in = reader(World, "past")
instances_in = reader(World, "instances")
kinds_in = reader(World, "kinds")
counts_in = reader(World, "counts")
settings_in = reader(World, "settings")
view_in = reader(World, "view")
asked_in = reader(World, "asked")
keys_in = reader(World, "keys")
chosen_in = reader(World, "chosen")
placed_in = reader(World, "placed")
bounds_in = reader(World, "bounds")
prices_in = reader(World, "prices")
params_in = reader(World, "params")
memory_ints_in = reader(World, "memory_ints")
memory_floats_in = reader(World, "memory_floats")
scratch_in = reader(World, "scratch")
scratch_saturated_in = reader(World, "scratch_saturated")
totals_in = reader(World, "totals")


def new_entries(room: int) -> NDArray[np.void]:
    """Free entries, none of them linked yet."""
    entries = np.zeros(room, ENTRY)
    entries["next"] = NOBODY
    return entries


def new_world(
    widths: list[int],
    prices: Prices,
    params: Floats,
    memory: tuple[Ints2D, Floats2D],
    room: int,
    kinds: int,
) -> World:
    """Empty tables for instances of so many ranks each.

    Parameters
    ----------
    widths : list of int
        Ranks of each instance.
    prices, params, memory
        The step cost, and the policy's parameters and memories.
    room : int
        Entries to begin with.
    kinds : int
        Classes of requests.
    """
    total, saturations = sum(widths), len(prices.saturation_tokens)
    places = max(LEAST_RING, min(MOST_RING, RING_ROOM // max(total, 1)))
    first = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
    ranks = np.zeros(total, RANK)
    ranks["kv_capacity_tokens"] = UNLIMITED_TOKENS
    ranks["max_batch"] = UNLIMITED_BATCH
    ranks["cap"] = UNLIMITED_BATCH
    ranks["reported_s"] = -np.inf
    ranks["sequence"] = -1
    instances = np.zeros(len(widths), INSTANCE)
    instances["first"], instances["ranks"] = first[:-1], widths
    instances["probes_left"] = UNLIMITED_BATCH
    instances["ends_s"] = np.inf
    instances["stepped_s"] = instances["reported_s"] = -np.inf
    instances["slow_until_s"] = -np.inf
    classes = np.zeros(kinds, KIND)
    classes["first"] = classes["last"] = NOBODY
    classes["weight"] = 1.0
    view = empty_ranks(total, 1, saturations, UNLIMITED_TOKENS, UNLIMITED_BATCH)
    view.instance[:] = np.repeat(np.arange(len(widths)), widths)
    entries = new_entries(room)
    entries["next"][:-1] = np.arange(1, room)
    past = np.zeros(total * places, PAST)
    past["from_s"] = 0.0  # its pages are made now, not by the first decisions that write to them
    counts = np.zeros(len(COUNT), np.int64)
    widest = max(widths, default=0)
    return World(
        entries=entries,
        ranks=ranks,
        saturated=np.zeros((total, saturations), np.int64),
        past=past,
        instances=instances,
        kinds=classes,
        counts=counts,
        settings=np.zeros(len(SET)),
        view=view,
        asked=waiting_requests(MAX_ROUND),
        keys=np.zeros(MAX_ROUND, np.int64),
        chosen=np.zeros(MAX_ROUND, np.int64),
        placed=np.zeros((MAX_ROUND, 2), np.int64),
        bounds=first,
        prices=prices,
        params=params,
        memory_ints=memory[0],
        memory_floats=memory[1],
        scratch=np.zeros((2, widest), np.int64),
        scratch_saturated=np.zeros((widest, saturations), np.int64),
        totals=np.zeros(saturations, np.int64),
    )

"""The fleet kernel's working state, made in Python: what is handed in need not be reference-counted while it runs."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise.fleet.kernel.layout import PREFILL_POOL, Draws, Life, Ranked
from equipoise.replay.layout import MAX_ROUND, PoolLayout
from equipoise.types import Floats, Floats2D, Ints, Ints2D, Ints3D, SmallInts, SmallInts3D

__all__ = ["IDLE", "NOBODY", "TALLY", "FleetState", "new_state"]

IDLE = np.inf
"""End of the step of an instance that runs none."""
NOBODY = -1
"""End of a list of requests."""
RING = 1 << 16
"""Draws that are taken in turn."""
RING_MASK = RING - 1


class _Tally(NamedTuple):
    """Positions in ``FleetState.tally``: counts that helpers change too."""

    READY: int = 0  # instances with a rank up and no step under way
    UP: int = 1  # ranks up
    WAITING: int = 2  # at routers
    IN_POOL: int = 3  # on ranks and in engine queues
    ARRIVED_ROWS: int = 4  # rows that have arrived by themselves
    HEAP: int = 5
    INSERTED: int = 6
    QUEUE_FIRST: int = 7  # of the routers' queue
    QUEUE_LAST: int = 8
    NEXT_CHANGE: int = 9
    BACKLOG: int = 10  # tokens in the prefill pool
    SWAPPED: int = 11  # tokens of the step that is being started
    HELD: int = 12  # requests that a policy kept
    PROMPTED: int = 13  # 1: prompts have come since idle prefill instances were last looked at
    STARTED: int = 14  # steps
    BOUNDARIES: int = 15  # ends of steps
    IDLE_ROUNDS: int = 16  # rounds since a request was last placed, in which nothing else happens any more
    COUNTING: int = 17  # 1: the warm-up is over


TALLY = _Tally()


WHO, USED, UNTIL, LACK, GROW, AT, WINDOW = 0, 1, 2, 3, 4, 5, 6
"""Of a row: its request; its context now; the context at which it stops; tokens still to be computed (-1: done in the
step under way, it decodes from the next on); tokens that the step under way, or the next one, yields, where the rank's
rows differ in that; its place in the ring of accepted drafts, less its rank's ``turn``; the draws from there on."""
RUNNING, QUEUED = 0, 1
"""Of a rank's K: that of its rows, that of its engine queue."""
HELD, OFFERED, CHOSEN, TURN = 0, 1, 2, 3
"""Of a round: requests that a policy has kept, and then all that are asked about; the boundary at which each was first
offered; the ranks chosen; the places of the requests whose replica has its turn."""
BATCH, QUERIES, PADDED, CONTEXT, READ = 0, 1, 2, 3, 4
"""Of the step that is being started, rank by rank."""


def _whole(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, np.int64) for name in names])


RANK = _whole(
    "rows",  # requests that run
    "lacking",  # of these, those that lack tokens
    "unborn",  # of these, those that have yielded no token (counted only where requests are kept)
    "context",
    "resident",
    "queued",  # the same of its engine queue
    "queued_context",
    "queued_resident",
    "frozen",  # steps that admit nothing
    "up",
    "closed",  # routers send nothing
    "yields",  # tokens of the step under way, all rows together
    "fresh",  # 1: the tokens of the next step are known already
    "turn",  # which of the draws in its rows' windows is the next one's
)
INSTANCE = _whole(
    "steps",
    "load",  # requests on its ranks and in their queues
    "alive",  # ranks up
    "stalling",  # 1: its end is that of a stall, not of a step
)
PROMPTS = _whole("backlog", "taken")
"""A prefill rank: tokens still to compute, and those of the step under way."""
LIST = np.dtype([("first", np.int32), ("last", np.int32)])
REQUEST = np.dtype(
    [
        ("joined_s", np.float64),  # when it joined the routers' queue
        ("following", np.int32),  # who is next in whatever list it is
        ("size", np.int32),  # its context, while it is in no row
        ("owed", np.int32),  # tokens to be computed when it is admitted; -1: it was swapped out
        ("left", np.int32),  # of its prompt, in the prefill pool
    ],
    align=True,
)
COMING = np.dtype([("time_s", np.float64), ("order", np.int64), ("entry", np.int64)])
"""On its way; entry = 2 * request + (1: it joins the routers' queue, 0: it arrives)."""


class FleetState(NamedTuple):
    """Ranks with their rows and engine queues, instances, the prefill pool, the routers' queue, the clocks.

    Records rather than a column each: what belongs together lies together, and compiled code is handed one array.
    """

    tally: Ints
    row: SmallInts3D
    """int32[7, ranks, rows] (5 without speculation), see `WHO`."""
    windows: SmallInts
    """int32[2**16]: a ring's draws from each place on, ``window_draws`` of them packed into a word."""
    window_bits: int
    window_draws: int
    ranks: Annotated[NDArray[np.void], RANK]
    saturated: Ints3D
    """int64[2, ranks, saturations], see `RUNNING`."""
    instances: Annotated[NDArray[np.void], INSTANCE]
    end_s: Floats
    """[2 * leaves]: a tree of minima, the instances' from ``leaves`` on."""
    prompts: Annotated[NDArray[np.void], PROMPTS]
    prefill_end_s: Floats
    backlogs: Floats
    """[2 * leaves]: a tree of minima over the backlogs of prefill ranks."""
    lists: Annotated[NDArray[np.void], LIST]
    """Engine queues, then those of prefill ranks."""
    requests: Annotated[NDArray[np.void], REQUEST]
    heap: Annotated[NDArray[np.void], COMING]
    round: Ints2D
    group_of: Ints
    bounds: Ints
    step: Ints2D
    step_k: Ints3D
    """int64[2, ranks of an instance, saturations]: K of the contexts, and as they are read."""
    totals_k: Ints
    pieces: Floats2D
    """float64[prefill terms, ranks]: price of a rank's prompt tokens."""
    part: Floats


WINDOW_BITS = 30


def windows_of(draws: Draws) -> tuple[SmallInts, int, int]:
    """A ring of draws packed into words, bits a draw, and draws a word.

    A step then takes a few bits out of a word that lies beside the row; to look its draw up in the ring costs more
    than all the rest that a step does to a row.
    """
    if len(draws.drafts) == 0:
        return np.zeros(0, np.int32), 1, 1
    clipped = np.minimum(draws.accepted, draws.drafts.max()).astype(np.int64)
    bits = max(1, int(clipped.max()).bit_length())
    count = WINDOW_BITS // bits
    packed = np.zeros(len(clipped), np.int64)
    for i in range(count):
        packed |= np.roll(clipped, -i) << (bits * i)
    return packed.astype(np.int32), bits, count


def leaves(clocks: int) -> int:
    """Leaves of a tree of minima: a power of two."""
    found = 1
    while found < clocks:
        found *= 2
    return found


def new_state(
    pool: PoolLayout, life: Life, ranked: Ranked, draws: Draws, *, saturations: int, requests: int, prefill_terms: int,
    parts: int,
) -> FleetState:  # fmt: skip
    """An empty fleet, all ranks up.

    Parameters
    ----------
    pool, life, ranked, draws
        The run.
    saturations, requests, prefill_terms, parts : int
    """
    instances, width = pool.instances, pool.ranks_per_instance
    ranks = instances * width
    # A stride that is no multiple of a page: the rows of all ranks would share the same few lines of the cache.
    stride = (ranked.rows + 15) // 16 * 16 + 16
    prefill = life.prefill == PREFILL_POOL
    prompts = life.prefill_instances * life.prefill_ranks if prefill else 0
    tally = np.zeros(len(TALLY), np.int64)
    tally[TALLY.READY], tally[TALLY.UP] = instances, ranks
    tally[TALLY.QUEUE_FIRST] = tally[TALLY.QUEUE_LAST] = NOBODY

    backlogs = np.full(2 * leaves(max(prompts, 1)), IDLE)
    backlogs[len(backlogs) // 2 : len(backlogs) // 2 + prompts] = 0.0
    for i in range(len(backlogs) // 2 - 1, 0, -1):
        backlogs[i] = min(backlogs[2 * i], backlogs[2 * i + 1])
    windows, window_bits, window_draws = windows_of(draws)
    state = FleetState(
        tally=tally,
        row=np.zeros((7 if len(draws.drafts) else 5, ranks, stride), np.int32),
        windows=windows,
        window_bits=window_bits,
        window_draws=window_draws,
        ranks=np.zeros(ranks, RANK),
        saturated=np.zeros((2, ranks, saturations), np.int64),
        instances=np.zeros(instances, INSTANCE),
        end_s=np.full(2 * leaves(instances), IDLE),
        prompts=np.zeros(prompts, PROMPTS),
        prefill_end_s=np.full(2 * leaves(life.prefill_instances if prefill else 1), IDLE),
        backlogs=backlogs,
        lists=np.full(ranks + prompts, NOBODY, LIST),
        requests=np.zeros(requests, REQUEST),
        heap=np.zeros(requests, COMING),
        round=np.zeros((4, MAX_ROUND), np.int64),
        group_of=np.searchsorted(pool.group_starts, np.arange(instances), side="right") - 1,
        bounds=pool.group_starts * width,
        step=np.zeros((5, width), np.int64),
        step_k=np.zeros((2, width, saturations), np.int64),
        totals_k=np.zeros(saturations, np.int64),
        pieces=np.zeros((prefill_terms, max(width, life.prefill_ranks if prefill else 0))),
        part=np.zeros(parts),
    )
    state.ranks["up"] = 1
    state.instances["alive"] = width
    return state

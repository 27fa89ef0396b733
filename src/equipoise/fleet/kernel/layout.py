"""How a run of a whole pool is laid out as arrays: what `engine` hands to the kernel and what comes back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from equipoise.types import Floats, Ints, SmallInts

__all__ = [
    "ABORTED",
    "ACKNOWLEDGED",
    "BY_INSTANCE",
    "BY_REQUEST",
    "COUNTS",
    "DELAYED",
    "DIE",
    "DRAIN",
    "DROPPED",
    "ERASED",
    "EXACT",
    "EXTRAPOLATED",
    "FAILED",
    "FINISHED",
    "LEDGER",
    "NOTICED",
    "NOT_ENDED",
    "NO_PREEMPTION",
    "NO_PREFILL",
    "ON_RANKS",
    "PARTS",
    "PART_NAMES",
    "PREFILL_POOL",
    "RECOMPUTE",
    "REJECTED",
    "RESUME",
    "RETURN",
    "STATUS_NAMES",
    "SWAP",
    "TOO_MANY",
    "Changes",
    "Draws",
    "Extras",
    "FleetOutcome",
    "FleetSettings",
    "Life",
    "Ranked",
    "new_fleet_outcome",
]

TOO_MANY = 4
"""A further value of ``ended[ENDED.ERROR]``: a rank ran as many requests as there are rows for, without a limit set."""

NOT_ENDED, FINISHED, ABORTED, REJECTED, FAILED, DROPPED = 0, 1, 2, 3, 4, 5
"""How a request ended: with all its tokens; its client left; larger than any rank; lost too often, outgrew its rank or
nothing was left to serve it; a later turn of a conversation that ended early."""
STATUS_NAMES = ("not_ended", "finished", "aborted", "rejected", "failed", "dropped")

NO_PREFILL, DELAYED, PREFILL_POOL, ON_RANKS = 0, 1, 2, 3
"""Values of ``Life.prefill``: prompts come computed; take a time; go through a prefill pool; are computed by the
decode rank itself, in mixed steps."""

NO_PREEMPTION, RECOMPUTE, SWAP = 0, 1, 2
"""Values of ``Life.preemption``."""

BY_REQUEST, BY_INSTANCE = 0, 1
"""Values of ``Life.split``: what replicas share among themselves."""

DRAIN, RESUME, DIE, RETURN = 0, 1, 2, 3
"""Values of ``Changes.kind``; + 4: the routers notice it."""
NOTICED = 4


EXACT, LEDGER, ACKNOWLEDGED, ERASED, EXTRAPOLATED = 0, 1, 2, 3, 4
"""Values of ``FleetSettings.knows``; see `equipoise.fleet.kernel.pictures`."""


class FleetSettings(NamedTuple):
    """How to run and what to keep: `equipoise.replay.layout.Settings`, and what routers know."""

    saturated: int
    concurrency: int
    seconds_per_unit: float
    group_by_tokens: int
    warmup_turnovers: float
    drain: int
    keep_requests: int
    snapshot_first: int
    snapshot_every: int
    tells_finished: int
    knows: int
    """EXACT, LEDGER, ACKNOWLEDGED, ERASED or EXTRAPOLATED."""
    replicas: int
    report_period_steps: int
    report_delay_steps: int
    report_delay_s: float


class Life(NamedTuple):
    """The way of a request, beside the columns of `equipoise.replay.layout.Work`. Columns of one entry hold for all."""

    sessions: int
    """1: only the rows of ``first_rows`` arrive by themselves, the others ``think_s`` after their predecessor ended."""
    first_rows: SmallInts
    """int32[...]: rows that arrive by themselves, in order of ``arrival_s``."""
    next_turn: SmallInts
    """int32[requests]: the row that follows in its conversation, -1: none. Empty without sessions."""
    think_s: Floats
    """float64[requests]. Empty without sessions."""
    cached_tokens: Ints
    """int64[requests] or [1]: tokens of the context that need no prefill."""
    leaves_after: Ints
    """int64[requests] or [1]: output tokens after which the client leaves; the output's length or more: it stays."""
    patience_s: float
    """Longest wait at a router; infinity: for ever."""
    prefill: int
    """NO_PREFILL, DELAYED, PREFILL_POOL or ON_RANKS."""
    prefill_s: float
    prefill_s_per_token: float
    """DELAYED: a prompt of n uncached tokens takes ``prefill_s + n * prefill_s_per_token``."""
    prefill_instances: int
    prefill_ranks: int
    """Ranks an instance of the prefill pool."""
    chunk_tokens: int
    """Prompt tokens a rank computes in one step, at most (prefill pool, or mixed steps)."""
    transfer_s: float
    transfer_s_per_token: float
    """A context of n tokens reaches the router's queue this long after its prefill."""
    block_tokens: int
    """Power of two; a request holds whole blocks."""
    block_shift: int
    """Its logarithm."""
    preemption: int
    """NO_PREEMPTION, RECOMPUTE or SWAP."""
    swap_s_per_token: float
    """A step is so much longer for every token swapped out or in."""
    freeze_steps: int
    """Steps of a rank that admit nothing after one that preempted, that one included."""
    retry_s: float
    """A request lost with its rank arrives again after this time, its progress kept, nothing cached."""
    most_tries: int
    """Losses after which it fails."""
    split: int
    """BY_REQUEST: every replica places its own requests anywhere. BY_INSTANCE: instance i belongs to replica i mod
    replicas; any replica chooses the instance on its own picture, the owner the rank on the exact one."""
    report_period_s: float
    """0: reports every so many steps; else at the first step end at or after each multiple of this time."""


class Ranked(NamedTuple):
    """What differs from rank to rank (all arrays [ranks])."""

    kv_capacity_tokens: Ints
    max_batch: Ints
    slowness: Floats
    """Factor on the time of a rank's own work; 1: as the step cost says."""
    rows: int
    """Most requests that can run on a rank at once, whatever ``max_batch``."""


class Extras(NamedTuple):
    """Step price beyond attention, in the cost's unit; what is off is 0 or empty."""

    overhead: float
    """Every step."""
    graph_sizes: Ints
    """Captured batches, ascending: all ranks pay for the largest batch of the instance, rounded up to one of them; a
    batch above the last is not rounded, only levelled. Empty: every rank pays for its own batch."""
    ffn_per_mean: float
    ffn_per_max: float
    """Price of the FFN (and experts) for each query token of the mean rank, of the largest."""
    comm_fixed: float
    comm_per_mean: float
    comm_per_max: float
    """The same of dispatch and combine."""
    skew: Floats
    """Expert imbalance: factors on the FFN's price, one a step, taken in turn from 2**16. Empty: none."""
    query_reads: float
    """How much of a further query token's context read is paid again: 0 one read serves all, 1 each pays."""
    uneven: int
    """1: `Ranked.slowness` is not 1 everywhere."""


class Draws(NamedTuple):
    """Randomness, drawn before the run: the same for every policy."""

    drafts: SmallInts
    """int32[requests] or [1]: draft tokens a step. Empty: no speculation."""
    accepted: SmallInts
    """int32[2**16]: accepted drafts, drawn from the survival; a request reads on from its ``phase``."""
    phase: SmallInts
    """int32[requests]."""


class Changes(NamedTuple):
    """What happens to ranks and instances, in order of time."""

    time_s: Floats
    kind: Ints
    """DRAIN, RESUME, DIE or RETURN, + NOTICED where it is the routers that get to know."""
    instance: Ints
    rank: Ints
    """Rank inside the instance; -1: all."""
    stall_s: Floats
    """The instance's step under way takes so much longer."""


class _Counts(NamedTuple):
    """Positions in ``FleetOutcome.counts`` (whole run)."""

    ABORTED: int = 0
    REJECTED: int = 1
    FAILED: int = 2
    DROPPED: int = 3
    PREEMPTIONS: int = 4
    RECOMPUTED_TOKENS: int = 5
    SWAPPED_TOKENS: int = 6
    FROZEN_RANK_STEPS: int = 7  # steps of a rank that would have admitted
    LOST: int = 8  # times that a request was lost with its rank
    LOST_TOKENS: int = 9  # KV tokens that went with them
    OUTGROWN: int = 10  # requests that outgrew a rank alone (of FAILED)
    MIXED_STEPS: int = 11
    PREFILL_STEPS: int = 12
    PREFILL_TOKENS: int = 13  # computed by the prefill pool
    MIXED_TOKENS: int = 14  # prompt tokens computed on decode ranks
    DISPATCHED: int = 15
    DECISIONS: int = 16  # requests offered, over all rounds
    COUNTED_TOKENS: int = 17  # produced in counted steps
    QUERY_TOKENS: int = 18
    PEAK_QUEUED: int = 19


COUNTS = _Counts()


class _Parts(NamedTuple):
    """Positions in ``FleetOutcome.parts``: sums over counted steps, in the cost's unit. They add up to the cost."""

    ATTENTION: int = 0  # the step cost alone, ranks even in speed, batches not padded
    PADDING: int = 1
    SPREAD: int = 2
    OVERHEAD: int = 3
    FFN: int = 4
    SKEW: int = 5
    COMM: int = 6
    MIXED: int = 7
    SWAP: int = 8
    ATTENTION_IDEAL: int = 9  # not a part: the ideal of the first, for the excess of attention alone


PARTS = _Parts()
PART_NAMES = ("attention", "padding", "spread", "overhead", "ffn", "skew", "comm", "mixed", "swap")


class FleetOutcome(NamedTuple):
    """Arrays the kernel (or its twin) fills, beside `equipoise.replay.layout.Outcome`."""

    counts: Ints
    parts: Floats
    status: SmallInts
    """int32[requests]."""
    came_s: Floats
    """float64[requests], arrival (sessions: when the turn was sent); NaN: never. Empty unless kept, as all below."""
    queued_s: Floats
    """Joined the router's queue, the last time it did."""
    placed_s: Floats
    first_s: Floats
    """End of its first decode step."""
    ended_s: Floats
    """When it finished, left, was rejected or failed; ``Outcome.finish_s`` is set for those that finished only."""
    preemptions: SmallInts
    tries: SmallInts
    """int32[requests]: times lost."""
    tokens: SmallInts
    """int32[requests]: output tokens it got."""


def new_fleet_outcome(requests: int, *, keep_requests: bool) -> FleetOutcome:
    """Empty arrays of the right sizes."""
    kept = requests if keep_requests else 0

    def never() -> Floats:
        return np.full(kept, np.nan)

    return FleetOutcome(
        counts=np.zeros(len(COUNTS), np.int64),
        parts=np.zeros(len(PARTS)),
        status=np.zeros(requests, np.int32),
        came_s=never(),
        queued_s=never(),
        placed_s=never(),
        first_s=never(),
        ended_s=never(),
        preemptions=np.zeros(kept, np.int32),
        tries=np.zeros(requests, np.int32),
        tokens=np.zeros(kept, np.int32),
    )

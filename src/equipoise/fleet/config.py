"""`Deployment`: the whole serving system around a pool of decode ranks, every part of it off by default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from equipoise.errors import InputError
from equipoise.replay import Information, Pool
from equipoise.replay.pool import whole_number

__all__ = [
    "Change",
    "Clients",
    "Deployment",
    "Hardware",
    "KvMemory",
    "Losses",
    "Prefill",
    "Slo",
    "Speculation",
    "StepExtras",
    "Transfer",
]

LONGEST_S = 1e9
MOST_RANKS = 32_768
MOST_DRAFTS = 32
MOST_ROWS = 4096
"""Requests that can run on a rank at once where no ``max_batch`` is set."""

PrefillPlace = Literal["none", "delay", "pool", "ranks"]
Preemption = Literal["none", "recompute", "swap"]
What = Literal["drain", "resume", "die", "return"]


def number(name: str, value: object, low: float = 0.0, high: float = LONGEST_S) -> None:
    """Refuse all but a finite number within bounds."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high:  # type: ignore[operator]
        raise InputError(f"{name} = {value!r}", fix=f"must be a number from {low:g} to {high:g}")


def word(name: str, value: object, words: Any) -> None:
    """Refuse all but one of the words."""
    if value not in get_args(words):
        raise InputError(f"{name} = {value!r}", fix=f"use one of {', '.join(get_args(words))}")


@dataclass(frozen=True, slots=True)
class Prefill:
    """Where prompts are computed before a request can decode.

    Parameters
    ----------
    where : {"none", "delay", "pool", "ranks"}
        ``none``: prompts come computed. ``delay``: each takes ``fixed_s`` and ``s_per_token`` for every token that is
        not cached. ``pool``: a prefill pool of ``instances`` x ``ranks``, in chunks, priced by the cost's prefill
        model (200P100D). ``ranks``: the decode rank computes it itself, in mixed steps (no disaggregation).
    fixed_s, s_per_token : float
        ``delay``; ``s_per_token`` also prices ``pool``, ``ranks`` and recomputation if the cost has no prefill model.
    instances, ranks : int
        Of the prefill pool; every instance steps together.
    chunk_tokens : int
        Prompt tokens that a rank computes in a step, at most.
    prefix_cache : bool
        A later turn of a conversation computes only what its predecessor's context and answer do not hold.
    """

    where: PrefillPlace = "none"
    fixed_s: float = 0.0
    s_per_token: float = 0.0
    instances: int = 1
    ranks: int = 8
    chunk_tokens: int = 8192
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        word("prefill.where", self.where, PrefillPlace)
        number("prefill.fixed_s", self.fixed_s)
        number("prefill.s_per_token", self.s_per_token)
        whole_number("prefill.instances", self.instances, 1, MOST_RANKS)
        whole_number("prefill.ranks", self.ranks, 1, MOST_RANKS)
        if self.instances * self.ranks > MOST_RANKS:
            raise InputError(
                f"prefill.instances x prefill.ranks = {self.instances * self.ranks}",
                fix=f"must be at most {MOST_RANKS}",
            )
        whole_number("prefill.chunk_tokens", self.chunk_tokens, 1, 1 << 24)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Moving the KV cache from prefill to decode.

    Parameters
    ----------
    fixed_s : float
        Every request.
    s_per_token : float
        And for every context token.
    """

    fixed_s: float = 0.0
    s_per_token: float = 0.0

    def __post_init__(self) -> None:
        number("transfer.fixed_s", self.fixed_s)
        number("transfer.s_per_token", self.s_per_token)


@dataclass(frozen=True, slots=True)
class KvMemory:
    """How a rank's KV cache is given out.

    Parameters
    ----------
    block_tokens : int
        A request holds whole blocks of so many tokens; a power of two.
    preemption : {"none", "recompute", "swap"}
        What happens when the running requests outgrow the rank: nothing but a count; the youngest leaves and computes
        its context again when it is admitted once more (in mixed steps); or its cache is moved out and in.
    swap_s_per_token : float
        ``swap``: a step is so much longer for every token moved.
    freeze_steps : int
        Steps of the rank that admit nothing after one that preempted, that one included.
    """

    block_tokens: int = 1
    preemption: Preemption = "none"
    swap_s_per_token: float = 0.0
    freeze_steps: int = 1

    def __post_init__(self) -> None:
        whole_number("memory.block_tokens", self.block_tokens, 1, 1 << 16)
        if self.block_tokens & (self.block_tokens - 1):
            raise InputError(f"memory.block_tokens = {self.block_tokens}", fix="must be a power of two")
        word("memory.preemption", self.preemption, Preemption)
        number("memory.swap_s_per_token", self.swap_s_per_token)
        whole_number("memory.freeze_steps", self.freeze_steps, 0, 1 << 20)


@dataclass(frozen=True, slots=True)
class StepExtras:
    """What a step costs beyond attention, in microseconds; all off by default, each reported by itself.

    Parameters
    ----------
    overhead_us : float
        Every step: launches, sampling, host work.
    graph_sizes : sequence of int
        Captured batches, ascending. All ranks run the largest batch of the instance rounded up to one of them.
    ffn_us_per_mean_token, ffn_us_per_max_token : float
        FFN and experts: per query token of the mean rank (work that spreads over the ranks), and of the largest (work
        padded to it).
    comm_us, comm_us_per_mean_token, comm_us_per_max_token : float
        Dispatch and combine.
    ep_skew : float
        Mean factor by which the busiest expert rank lengthens the FFN; 1: none.
    ep_skew_sigma : float
        Spread of that factor from step to step (sigma of its logarithm).
    rank_speed_sigma : float
        Spread of the ranks' speeds, fixed for a run (sigma of the logarithm of a rank's time).
    """

    overhead_us: float = 0.0
    graph_sizes: tuple[int, ...] = ()
    ffn_us_per_mean_token: float = 0.0
    ffn_us_per_max_token: float = 0.0
    comm_us: float = 0.0
    comm_us_per_mean_token: float = 0.0
    comm_us_per_max_token: float = 0.0
    ep_skew: float = 1.0
    ep_skew_sigma: float = 0.0
    rank_speed_sigma: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            "overhead_us",
            "ffn_us_per_mean_token",
            "ffn_us_per_max_token",
            "comm_us",
            "comm_us_per_mean_token",
            "comm_us_per_max_token",
        ):
            number(f"step.{name}", getattr(self, name))
        number("step.ep_skew", self.ep_skew, 1.0, 1000.0)
        number("step.ep_skew_sigma", self.ep_skew_sigma, 0.0, 3.0)
        number("step.rank_speed_sigma", self.rank_speed_sigma, 0.0, 3.0)
        object.__setattr__(self, "graph_sizes", tuple(self.graph_sizes))
        for size in self.graph_sizes:
            whole_number("step.graph_sizes", size, 1, 1 << 20)
        if any(b <= a for a, b in pairwise(self.graph_sizes)):
            raise InputError(f"step.graph_sizes = {list(self.graph_sizes)}", fix="must rise")


@dataclass(frozen=True, slots=True)
class Speculation:
    """Draft tokens that the model verifies.

    Parameters
    ----------
    drafts : int
        Draft tokens a request and step; 0: none.
    acceptance : float or sequence of float
        Chance that a draft is accepted if those before it were (geometric survival); or the survival itself, as an
        engine records it: the share of steps in which at least 1, 2, ... drafts are accepted.
    query_reads : float
        How much of a further query token's context read is paid again: 1 where attention is bound by arithmetic (the
        counted models), 0 where one read of the cache serves all query tokens.
    """

    drafts: int = 0
    acceptance: float | tuple[float, ...] = 0.7
    query_reads: float = 1.0

    def __post_init__(self) -> None:
        whole_number("speculation.drafts", self.drafts, 0, MOST_DRAFTS)
        number("speculation.query_reads", self.query_reads, 0.0, 1.0)
        if isinstance(self.acceptance, Sequence):
            object.__setattr__(self, "acceptance", tuple(self.acceptance))
            for share in self.acceptance:
                number("speculation.acceptance", share, 0.0, 1.0)
            if any(b > a for a, b in pairwise(self.acceptance)):
                raise InputError(
                    f"speculation.acceptance = {list(self.acceptance)}",
                    fix="a survival falls: draft 2 is accepted only where draft 1 was",
                )
            if len(self.acceptance) < self.drafts:
                raise InputError(
                    f"speculation.acceptance has {len(self.acceptance)} entries for {self.drafts} drafts",
                    fix="give one for each draft",
                )
        else:
            number("speculation.acceptance", self.acceptance, 0.0, 1.0)

    @property
    def survival(self) -> tuple[float, ...]:
        """Share of steps in which at least 1, 2, ... drafts are accepted."""
        if isinstance(self.acceptance, Sequence):
            return tuple(self.acceptance[: self.drafts])
        return tuple(self.acceptance**i for i in range(1, self.drafts + 1))


@dataclass(frozen=True, slots=True)
class Clients:
    """What clients do beside waiting.

    Parameters
    ----------
    abort_share : float
        Share of the requests whose client leaves during the answer, after a uniformly drawn part of it.
    patience_s : float, optional
        Longest wait in the router's queue; None: for ever.
    """

    abort_share: float = 0.0
    patience_s: float | None = None

    def __post_init__(self) -> None:
        number("clients.abort_share", self.abort_share, 0.0, 1.0)
        if self.patience_s is not None:
            number("clients.patience_s", self.patience_s)


@dataclass(frozen=True, slots=True)
class Losses:
    """Requests lost with their rank.

    Parameters
    ----------
    retry_s : float
        So much later they arrive again, their answer so far kept, nothing cached.
    most_tries : int
        After more losses they fail.
    """

    retry_s: float = 1.0
    most_tries: int = 3

    def __post_init__(self) -> None:
        number("losses.retry_s", self.retry_s)
        whole_number("losses.most_tries", self.most_tries, 0, 1000)


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count as good.

    Parameters
    ----------
    ttft_ms : float, optional
        Time to first token; None: no bound.
    tpot_ms : float, optional
        Time per token after it.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_ms", "tpot_ms"):
            if getattr(self, name) is not None:
                number(f"slo.{name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class Hardware:
    """Instances ``first`` to ``last`` (that one included) differ from the pool's.

    Parameters
    ----------
    first, last : int
        Instances, numbered from 0.
    kv_capacity_tokens, max_batch : int, optional
        Of each of their ranks; None: as the pool has it.
    speed : float
        1: as the step cost says; 0.5: everything a rank computes takes twice as long.
    """

    first: int
    last: int
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        whole_number("hardware.first", self.first, 0, MOST_RANKS)
        whole_number("hardware.last", self.last, self.first, MOST_RANKS)
        number("hardware.speed", self.speed, 1e-3, 1e3)
        if self.kv_capacity_tokens is not None:
            whole_number("hardware.kv_capacity_tokens", self.kv_capacity_tokens, 1, 1 << 47)
        if self.max_batch is not None:
            whole_number("hardware.max_batch", self.max_batch, 1, 1 << 20)


@dataclass(frozen=True, slots=True)
class Change:
    """Something that happens to ranks.

    Parameters
    ----------
    at_s : float
        Seconds from the first arrival.
    what : {"drain", "resume", "die", "return"}
        ``drain``: routers send nothing more, what is there runs on; ``resume`` ends it. ``die``: all that is on it is
        lost; ``return``: it is back, empty. A dead rank whose engine cannot go on without it takes its instance along:
        let the instance die.
    instance : int
        Numbered from 0.
    rank : int, optional
        Inside the instance; None: all of them.
    notice_s : float
        So much later routers know of it.
    stall_s : float
        The instance's step under way takes so much longer (regrouping); an idle one starts none before.
    """

    at_s: float
    what: What
    instance: int
    rank: int | None = None
    notice_s: float = 0.0
    stall_s: float = 0.0

    def __post_init__(self) -> None:
        number("change.at_s", self.at_s)
        number("change.notice_s", self.notice_s)
        number("change.stall_s", self.stall_s)
        word("change.what", self.what, What)
        whole_number("change.instance", self.instance, 0, MOST_RANKS)
        if self.rank is not None:
            whole_number("change.rank", self.rank, 0, MOST_RANKS)


@dataclass(frozen=True, slots=True)
class Deployment:
    """A decode pool and all that is around it; what is not given is off.

    Parameters
    ----------
    pool : Pool
    hardware : sequence of Hardware
        Later entries win.
    prefill : Prefill
    transfer : Transfer
    memory : KvMemory
    step : StepExtras
    speculation : Speculation
    clients : Clients
    changes : sequence of Change
    losses : Losses
    information : Information
        Router replicas and what they know.
    slo : Slo

    Raises
    ------
    InputError
        A number out of bounds, or parts that do not go together.
    """

    pool: Pool = field(default_factory=Pool)
    hardware: tuple[Hardware, ...] = ()
    prefill: Prefill = field(default_factory=Prefill)
    transfer: Transfer = field(default_factory=Transfer)
    memory: KvMemory = field(default_factory=KvMemory)
    step: StepExtras = field(default_factory=StepExtras)
    speculation: Speculation = field(default_factory=Speculation)
    clients: Clients = field(default_factory=Clients)
    changes: tuple[Change, ...] = ()
    losses: Losses = field(default_factory=Losses)
    information: Information = field(default_factory=Information)
    slo: Slo = field(default_factory=Slo)

    def __post_init__(self) -> None:
        for name in ("hardware", "changes"):  # lists are welcome; equal deployments hash alike
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for part in self.hardware:
            if part.last >= self.pool.instances:
                raise InputError(
                    f"hardware.last = {part.last} in a pool of {self.pool.instances} instances",
                    fix=f"instances are numbered 0 to {self.pool.instances - 1}",
                )
        for change in self.changes:
            if change.instance >= self.pool.instances or (change.rank or 0) >= self.pool.ranks:
                raise InputError(
                    f"change of instance {change.instance}, rank {change.rank}, in a pool of "
                    f"{self.pool.instances} x {self.pool.ranks}",
                    fix="both are numbered from 0",
                )
        if self.information.split == "instance" and self.pool.groups not in (1, self.pool.instances):
            raise InputError(
                f"replicas that own instances, in a pool of {self.pool.groups} groups",
                fix="leave groups out: every instance is one",
            )

    @property
    def plain(self) -> bool:
        """Whether nothing is on: what the offline study replays."""
        return replace(self, pool=Pool(), slo=Slo()) == Deployment()

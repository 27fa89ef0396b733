"""What is known of an engine and of its ranks: plain frozen values that cross the rooms above.

An `EngineInstance` is one barrier as configuration or discovery names it; an `Observation` is what one look at it
showed; a `Pin` is what a request needs so that the engine runs it on the chosen rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from equipoise.errors import InputError

__all__ = ["MAX_RANKS", "EngineInstance", "Mode", "Numbering", "Observation", "Pin", "RankLoad"]

Mode = Literal["header", "port"]
Numbering = Literal["local", "global", "unknown"]

MAX_RANKS = 4096
"""Ranks of one instance: far beyond any barrier, small enough to allocate on an engine's word."""


@dataclass(frozen=True, slots=True)
class EngineInstance:
    """One barrier: where its ranks are reached and how they are numbered.

    Parameters
    ----------
    name : str
        Its name in metrics, logs and the router.
    kind : str
        ``vllm``, ``sglang``, ``dynamo``, ``trtllm``, or the name of a third party's adapter.
    urls : tuple of str
        Base addresses without a trailing slash: one, or with ``mode="port"`` one a rank, in the order of the ranks.
    ranks : int
        Ranks that a router may choose here.
    mode : {"header", "port"}
        ``header``: one address, the request names the rank. ``port``: the address is the rank, nothing is named.
    first_rank : int
        Number of rank 0 of this address in the whole deployment (vLLM's ``--data-parallel-start-rank``).
    numbering : {"local", "global", "unknown"}
        What a rank number in a request means where ``first_rank`` is above 0 (`equipoise.engines.numbering`).
    worker_id : str
        Dynamo's instance id of the worker; empty elsewhere.
    metrics_urls : tuple of str
        Where metrics are read if not at `urls` (Dynamo workers: the system port).
    header_overrides : bool
        SGLang was started with ``SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1``, so bodies can stay as they came.

    Raises
    ------
    InputError
        No rank, too many, or a number of addresses that does not fit the mode.
    """

    name: str
    kind: str
    urls: tuple[str, ...]
    ranks: int = 1
    mode: Mode = "header"
    first_rank: int = 0
    numbering: Numbering = "local"
    worker_id: str = ""
    metrics_urls: tuple[str, ...] = ()
    header_overrides: bool = False

    def __post_init__(self) -> None:
        where = f"instance {self.name!r}"
        if not 1 <= self.ranks <= MAX_RANKS:
            raise InputError(f"ranks = {self.ranks}", where=where, fix=f"use 1 to {MAX_RANKS}")
        if self.first_rank < 0:
            raise InputError(f"first_rank = {self.first_rank}", where=where, fix="use 0 or more")
        if self.mode not in ("header", "port"):
            raise InputError(f"mode = {self.mode!r}", where=where, fix="use 'header' or 'port'")
        expected = self.ranks if self.mode == "port" else 1
        if len(self.urls) != expected:
            raise InputError(
                f"{len(self.urls)} addresses for {self.ranks} ranks in mode {self.mode!r}",
                where=where,
                fix=f"give {expected}: mode 'header' has one for all ranks, mode 'port' one a rank",
            )

    def check_rank(self, rank: int) -> None:
        """Raise `InputError` where this instance has no such rank."""
        if not 0 <= rank < self.ranks:
            raise InputError(
                f"rank {rank} does not exist",
                where=f"instance {self.name!r}",
                fix=f"its ranks are 0 to {self.ranks - 1}",
            )


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What an engine says of one of its ranks; None: it does not say."""

    rank: int
    """Number within the source that was read."""
    running: int
    """Requests being decoded or prefilled, B."""
    waiting: int
    """Requests the engine holds and has not started."""
    context_tokens: int | None = None
    """Tokens held for the running requests, C; an estimate from used blocks where `exact_context` is false."""
    exact_context: bool = False
    """Whether `context_tokens` was counted by the engine, rather than made from the share of used blocks."""
    kv_usage: float | None = None
    """Share of the KV cache in use, 0 to 1."""
    kv_capacity_tokens: int | None = None
    """Tokens the rank's KV cache holds."""
    max_batch: int | None = None
    """Largest number of running requests."""
    block_tokens: int | None = None
    """Tokens of a KV block."""
    preemptions: int | None = None
    """Requests thrown out for lack of memory since the engine started."""
    age_s: float = 0.0
    """Seconds between the engine's snapshot and its answer, both on the engine's clock; 0 where it does not say."""
    sequence: int | None = None
    """A number that grows with every snapshot of the engine (TensorRT-LLM's iteration)."""
    worker_id: str = ""
    """Worker the rank belongs to, where one source tells of several (Dynamo's frontend)."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at an engine.

    Parameters
    ----------
    kind : str
        Adapter that read it.
    ranks : tuple of RankLoad
        Sorted by worker and rank; empty where the engine had nothing new to say.
    workers : tuple of str
        Ids of the workers that are up, where the source lists them.
    notes : tuple of str
        What was missing or odd, one sentence each; a user should see each of them once.
    """

    kind: str
    ranks: tuple[RankLoad, ...] = ()
    workers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pin:
    """What sends a request to its rank; header and body field are made from one number.

    Parameters
    ----------
    url : str
        Base address to send it to.
    headers : tuple of (str, str)
        To set after every header of `equipoise.engines.headers.is_pin` was taken off.
    body : tuple of (str, int)
        Fields to set at the top of the JSON body (`equipoise.engines.body.set_fields`); mostly none.
    """

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: tuple[tuple[str, int], ...] = field(default=())

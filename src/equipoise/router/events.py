"""What goes into the router and what comes out: plain records, cheap to make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

__all__ = ["Abort", "Action", "Arrival", "Dispatch", "InstanceSpec", "RankReport", "RankSpec", "Reject"]


class RankSpec(msgspec.Struct, frozen=True):
    """What is known of a rank beforehand; none: until a report says it.

    Parameters
    ----------
    kv_capacity_tokens, max_batch : int, optional
    """

    kv_capacity_tokens: int | None = None
    max_batch: int | None = None


class InstanceSpec(msgspec.Struct, frozen=True):
    """An instance: ranks that wait for each other at every step.

    Parameters
    ----------
    name : str
        Its name in the pool: what stays the same when the list of instances changes.
    ranks : int or sequence of RankSpec
        How many, or each of them.
    kv_capacity_tokens, max_batch : int, optional
        Of each rank; none: without a limit until a report says it.
    """

    name: str
    ranks: int | Sequence[RankSpec]
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None

    @property
    def width(self) -> int:
        """How many ranks."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)

    def limits(self) -> list[tuple[int | None, int | None]]:
        """KV capacity and largest batch of each rank."""
        own = (self.kv_capacity_tokens, self.max_batch)
        if isinstance(self.ranks, int):
            return [own] * self.ranks
        return [
            (
                own[0] if r.kv_capacity_tokens is None else r.kv_capacity_tokens,
                own[1] if r.max_batch is None else r.max_batch,
            )
            for r in self.ranks
        ]


class Arrival(msgspec.Struct, frozen=True):
    """A request has come in.

    Parameters
    ----------
    request_id : str
        Unique among those queued and running.
    context_tokens : int
        Its prompt; `equipoise.router.lengths` estimates it where nobody has counted.
    budget_tokens : int
        Declared output limit; -1: none.
    session : str or int, optional
        Its conversation. Policies are shown an integer as it is, words by number.
    request_class : str
        One of ``Settings.classes``; an unknown one counts as the last of them.
    body_bytes : int
        What it takes in memory while it is queued.
    arrived_s : float, optional
        When it came in, if not just now.
    """

    request_id: str
    context_tokens: int
    budget_tokens: int = -1
    session: str | int | None = None
    request_class: str = "default"
    body_bytes: int = 0
    arrived_s: float | None = None


class RankReport(msgspec.Struct, frozen=True):
    """What an engine says of one rank.

    Parameters
    ----------
    instance, rank : int
        Position of the instance in the router's list, and the rank inside it.
    running, waiting : int
        Requests, of whomever.
    context_tokens : int, optional
        Tokens of their contexts.
    kv_usage : float, optional
        Share of the KV cache in use, 0 to 1; taken for ``context_tokens`` where that is not said.
    kv_capacity_tokens, max_batch : int, optional
    taken_at_s : float
        When it was true, on the router's clock.
    sequence : int, optional
        Number of the report; a repeated one is no news.
    seen_dispatches : int, optional
        How many requests of this router the rank had seen by then, since the router knows it.
    """

    instance: int
    rank: int
    running: int
    waiting: int = 0
    context_tokens: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    max_batch: int | None = None
    taken_at_s: float = 0.0
    sequence: int | None = None
    seen_dispatches: int | None = None


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send a request to a rank.

    Parameters
    ----------
    request_id : str
    lease : int
        What all later events of the request are told by.
    instance, rank : int
        Position of the instance in the router's list, and the rank inside it.
    reason : str
        Who chose and on what: a `PlaceReason`, a slash, a `Rung`.
    """

    request_id: str
    lease: int
    instance: int
    rank: int
    reason: str


class Reject(msgspec.Struct, frozen=True, gc=False):
    """Turn a request away.

    Parameters
    ----------
    request_id : str
    status : int
        HTTP status.
    reason : str
        A `RejectReason`.
    retry_after_s : float
        When to try again; 0: it would not help.
    """

    request_id: str
    status: int
    reason: str
    retry_after_s: float = 0.0


class Abort(msgspec.Struct, frozen=True, gc=False):
    """Stop a request that has been dispatched; its lease is no more.

    Parameters
    ----------
    lease : int
    reason : str
        An `AbortReason`.
    request_id : str
    """

    lease: int
    reason: str
    request_id: str = ""


Action: TypeAlias = Dispatch | Reject | Abort

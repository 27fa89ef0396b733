"""Every code the router gives a reason with: one list, so that metrics, logs and clients spell them alike."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["HARMLESS", "STATUS", "AbortReason", "InstanceState", "PlaceReason", "RejectReason", "Rung"]


class Rung(StrEnum):
    """What decisions stand on, best first."""

    FRESH = "fresh"
    """The router's own ledger, and reports that are recent."""
    LEDGER = "ledger"
    """The router's own ledger; reports are old, or there are none."""
    ROUND_ROBIN = "round_robin"
    """Neither is to be trusted: ranks in turn, as far as they have room."""


class PlaceReason(StrEnum):
    """Who chose the rank; a `Dispatch` carries it as ``reason``, with the rung behind a slash: ``policy/fresh``."""

    POLICY = "policy"
    AFFINITY = "affinity"
    """The rank its session was on last, which was hardly dearer."""
    ROUND_ROBIN = "round_robin"


class RejectReason(StrEnum):
    """Why a request was turned away; `STATUS` has the HTTP status of each."""

    QUEUE_REQUESTS = "queue_requests"
    """As many requests wait as may."""
    QUEUE_TOKENS = "queue_tokens"
    """As many prompt tokens wait as may."""
    QUEUE_BYTES = "queue_bytes"
    """As many bytes wait as may."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It has waited too long for room."""
    TOO_MANY = "too_many"
    """As many requests are queued and running as the router keeps."""
    NO_INSTANCE = "no_instance"
    """No instance can serve."""
    DRAINING = "draining"
    """Every instance that could serve is being drained."""
    TOO_LARGE = "too_large"
    """Its prompt fits on no rank, however empty."""
    BAD_LENGTH = "bad_length"
    """Its prompt length is no count of tokens."""
    DUPLICATE = "duplicate"
    """A request of that id is queued or running."""
    CANCELLED = "cancelled"
    """Its client left while it was queued."""


class AbortReason(StrEnum):
    """Why a lease was ended by the router; what the engine still does for it is to be stopped."""

    INSTANCE_LOST = "instance_lost"
    RANK_LOST = "rank_lost"
    INSTANCE_CHANGED = "instance_changed"
    """The instance has another number of ranks than it had: it is another one."""
    EXPIRED = "expired"
    """Nothing was heard of it for too long."""
    LEAKED = "leaked"
    """The engine reports that nothing runs on its rank."""
    CANCELLED = "cancelled"
    """Its client left at the moment it was dispatched."""


class InstanceState(StrEnum):
    """Health of an instance."""

    UP = "up"
    SLOW_START = "slow_start"
    """It has come back: its ranks are capped while they fill."""
    HALF_OPEN = "half_open"
    """A fixed few requests try it."""
    OPEN = "open"
    """Ejected by what happened to requests; tried again after a while."""
    LOST = "lost"
    """Said to be gone, until it is said to be well."""


STATUS: dict[RejectReason, int] = {
    RejectReason.QUEUE_REQUESTS: 429,
    RejectReason.QUEUE_TOKENS: 429,
    RejectReason.QUEUE_BYTES: 429,
    RejectReason.QUEUE_TIMEOUT: 429,
    RejectReason.TOO_MANY: 429,
    RejectReason.NO_INSTANCE: 503,
    RejectReason.DRAINING: 503,
    RejectReason.TOO_LARGE: 413,
    RejectReason.BAD_LENGTH: 400,
    RejectReason.DUPLICATE: 409,
    RejectReason.CANCELLED: 499,
}
"""HTTP status of each; 499 is for logs, nobody is there to read it."""

HARMLESS = frozenset(
    {
        "cancelled",
        "client_gone",
        "deadline",
        "moved",
        "refused",
        "replica_gone",
        "shutdown",
        "slow_client",
    }
)
"""Reasons given to ``aborted`` that say nothing of the instance; any other counts as its failure."""

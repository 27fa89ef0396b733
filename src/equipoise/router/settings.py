"""`Settings`: every number that steers the router, with its default."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from equipoise.errors import InputError
from equipoise.router.kernel.state import MOST_CLASSES

__all__ = ["Settings"]

Counts = Literal["stream", "extrapolated"]
Scope = Literal["pool", "instance"]
GroupPolicy = Literal["least_batch", "least_tokens"]
Order = Literal["weighted", "strict"]
Reports = Literal["expected", "none"]
Panic = Literal["none", "all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the router counts, queues, places, and when it gives up on what.

    Parameters
    ----------
    counts : {"stream", "extrapolated"}
        Generated tokens are told one by one, or taken to come at the pace of requests that have finished.
    scope : {"pool", "instance"}
        The policy sees the ranks of all instances at once; or an instance is chosen first, then a rank of it.
    group_policy : {"least_batch", "least_tokens"}
        How an instance is chosen.
    growth_reserve_tokens : int
        Tokens that the capacity filter keeps free on a rank for the growth of what runs there.
    place_on_release : bool
        Offer the queue again whenever room may have come up; if not, only ``arrived``, ``arrived_many``, ``tick`` do.
    round_every_s : float
        Offer it no more often than that, arrivals excepted.
    affinity_bonus : float
        A session stays on its rank if the step there costs at most this share more than at the policy's choice; 0: off.
    most_sessions : int
        Sessions remembered.
    classes : mapping of str to float
        Classes of requests and their weights, first things first.
    class_order : {"weighted", "strict"}
        ``weighted``: every class gets its share; ``strict``: a class waits until those before it are empty.
    max_queued_requests, max_queued_tokens, max_queued_bytes : int
        What may wait; an empty queue takes any one request.
    max_requests : int
        Queued and running together.
    queue_ttl_s : float
        How long a request may wait.
    retry_after_min_s, retry_after_max_s : float
        Bounds of what a client is told.
    lease_ttl_s : float
        A lease of which nothing is heard for so long is ended.
    leak_after_s : float
        So is one whose rank has been reported idle for so long.
    reports : {"expected", "none"}
        Whether engines report. If expected, an instance is trusted once all its ranks have, or after ``trust_after_s``.
    settle_s : float
        A report has seen the requests sent so long before it was taken, unless it says how many it has seen.
    stale_after_s : float
        Reports older than that are old.
    forget_after_s : float
        What others have on a rank is forgotten if no report says it again for so long.
    trust_after_s : float
    breaker_failures : int
        Failures in a row that eject an instance.
    breaker_open_s, breaker_open_max_s : float
        For how long; twice as long each time it fails again, up to the second.
    half_open_requests, half_open_successes : int
        Requests at once that try it then, and how many must end well.
    slow_start_s : float
        How long the ranks of an instance that comes back are capped.
    panic : {"none", "all"}
        What to do when less than ``panic_share`` of the instances are healthy: nothing, or send to ejected ones too.
    panic_share : float
    integrity_every_s : float
        How often sums are compared with what they are sums of.

    Raises
    ------
    InputError
        A value out of bounds.
    """

    counts: Counts = "stream"
    scope: Scope = "pool"
    group_policy: GroupPolicy = "least_batch"
    growth_reserve_tokens: int = 0
    place_on_release: bool = True
    round_every_s: float = 0.0
    affinity_bonus: float = 0.0
    most_sessions: int = 65_536
    classes: Mapping[str, float] = field(default_factory=lambda: {"default": 1.0})
    class_order: Order = "weighted"
    max_queued_requests: int = 8_192
    max_queued_tokens: int = 1 << 30
    max_queued_bytes: int = 1 << 30
    max_requests: int = 1 << 18
    queue_ttl_s: float = 30.0
    retry_after_min_s: float = 1.0
    retry_after_max_s: float = 60.0
    lease_ttl_s: float = 600.0
    leak_after_s: float = 60.0
    reports: Reports = "expected"
    settle_s: float = 0.05
    stale_after_s: float = 2.0
    forget_after_s: float = 30.0
    trust_after_s: float = 5.0
    breaker_failures: int = 5
    breaker_open_s: float = 5.0
    breaker_open_max_s: float = 120.0
    half_open_requests: int = 3
    half_open_successes: int = 3
    slow_start_s: float = 10.0
    panic: Panic = "none"
    panic_share: float = 0.5
    integrity_every_s: float = 10.0

    def __post_init__(self) -> None:
        for name, words in WORDS.items():
            if getattr(self, name) not in get_args(words):
                raise InputError(f"{name} = {getattr(self, name)!r}", fix=f"use one of {get_args(words)}")
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type not in ("int", "float"):
                continue
            low, high = BOUNDS.get(f.name, (0, 1e12))
            whole = f.type == "int"
            kind = int if whole else int | float
            if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
                number = "a whole number" if whole else "a number"
                raise InputError(f"{f.name} = {value!r}", fix=f"must be {number} from {low:g} to {high:g}")
        if not 1 <= len(self.classes) <= MOST_CLASSES:
            raise InputError(f"{len(self.classes)} classes", fix=f"give 1 to {MOST_CLASSES}")
        for name, weight in self.classes.items():
            if not (math.isfinite(weight) and 1e-3 <= weight <= 1e3):
                raise InputError(f"weight of class {name!r} = {weight}", fix="must be from 0.001 to 1000")


WORDS = {
    "counts": Counts,
    "scope": Scope,
    "group_policy": GroupPolicy,
    "class_order": Order,
    "reports": Reports,
    "panic": Panic,
}
BOUNDS: dict[str, tuple[float, float]] = {
    "most_sessions": (1, 1 << 24),
    "max_requests": (1, 1 << 24),
    "affinity_bonus": (0, 10),
    "panic_share": (0, 1),
    "breaker_failures": (1, 1e6),
    "half_open_requests": (1, 1e6),
    "half_open_successes": (1, 1e6),
    "queue_ttl_s": (1e-3, 1e9),
    "lease_ttl_s": (1e-3, 1e9),
    "integrity_every_s": (1e-3, 1e9),
    "breaker_open_s": (1e-3, 1e9),
}

"""What routers say to each other: msgpack over HTTP. All of it may be said twice, and late.

How far a request has come is told as totals, not as differences, and with all that is needed to know it: whoever hears
it for the first time takes the request over, whoever hears it again learns nothing.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

__all__ = [
    "Ask",
    "Asks",
    "Drain",
    "Held",
    "LeasesOf",
    "Load",
    "Placed",
    "Places",
    "Relayed",
    "State",
    "States",
    "StatesTaken",
    "Told",
    "decode",
    "encode",
]

QUEUED, NOT_OWNER = 202, 421
"""Statuses of `Placed` beside those of a refusal: it waits, and will be told; it went to the wrong router."""


class Load(msgspec.Struct, array_like=True, frozen=True):
    """Load of an instance, as its owner knows it."""

    requests: int = 0
    context_tokens: int = 0
    ranks: int = 1
    open: bool = True
    """Whether requests may go there."""
    drained: list[int] = []
    """Ranks that an operator has drained."""


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """A request that wants a rank."""

    gid: str
    context_tokens: int
    budget_tokens: int = -1
    session: str | int | None = None
    request_class: str = "default"
    body_bytes: int = 0
    waited_s: float = 0.0
    avoid: str | None = None


class Asks(msgspec.Struct, array_like=True, frozen=True):
    """Several, placed in one round."""

    router: str
    url: str
    asks: list[Ask]


class Placed(msgspec.Struct, array_like=True, frozen=True):
    """Where a request is to go, or why nowhere."""

    gid: str
    status: int = 200
    instance: str = ""
    rank: int = -1
    reason: str = ""
    epoch: int = 0
    retry_after_s: float = 0.0


class Places(msgspec.Struct, array_like=True, frozen=True):
    """Answers, and the loads of what the owner owns."""

    placed: list[Placed]
    loads: dict[str, Load]


class State(msgspec.Struct, array_like=True, frozen=True):
    """How far a request has come, in totals."""

    gid: str
    instance: str
    rank: int
    context_tokens: int
    tokens: int = 0
    prompt_tokens: int = -1
    """As the engine said; -1: it has not."""
    ended: str = ""
    begun: bool = False
    """Whether the answer has begun: a word of it is a sign of life."""


class States(msgspec.Struct, array_like=True, frozen=True):
    """Of several."""

    router: str
    url: str
    states: list[State]


class Held(msgspec.Struct, array_like=True, frozen=True):
    """Somebody owns an instance."""

    instance: str
    router: str
    epoch: int


class StatesTaken(msgspec.Struct, array_like=True, frozen=True):
    """What became of them: all are taken, but those of instances that are somebody else's."""

    elsewhere: list[Held] = []
    gone: list[str] = []
    """Requests that the owner has ended."""


class Told(msgspec.Struct, array_like=True, frozen=True):
    """An owner has placed what waited, or ended what ran."""

    router: str
    placed: list[Placed] = []
    ended: list[tuple[str, str]] = []


class LeasesOf(msgspec.Struct, array_like=True, frozen=True):
    """A new owner asks for the requests under way on its instance."""

    router: str
    to: str
    """Who is meant: at an address there may be another one by now."""
    instance: str
    epoch: int


class Drain(msgspec.Struct, array_like=True, frozen=True):
    """An operator drains a rank, or all ranks, of an instance."""

    to: str
    instance: str
    rank: int | None = None
    undo: bool = False


class Relayed(msgspec.Struct, array_like=True, frozen=True):
    """A client of the decision API has told the wrong router."""

    to: str
    what: str
    body: bytes


T = TypeVar("T")
encode = msgspec.msgpack.Encoder().encode


def decode(body: bytes, kind: type[T]) -> T:
    """Read a message; `msgspec.ValidationError` if it is none."""
    return msgspec.msgpack.decode(body, type=kind)

"""A request that Envoy holds while the picker decides: what is known of it, how it is sent, how it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from equipoise.engines.facts import RequestFacts
from equipoise.engines.types import Pin
from equipoise.serve.driver import Lease

__all__ = ["DESTINATION", "PICKER_HEADER", "End", "Held", "Refusal", "Sender", "Way"]

DESTINATION = "x-gateway-destination-endpoint"
"""Header that Envoy's ``override_host`` takes the endpoint from (the Gateway API's name for it)."""
PICKER_HEADER = "x-equipoise-picker"
"""Header that says which of several pickers placed a request: the log entry goes to that one."""


class Sender(Protocol):
    """What the driver's targets have to be able to; `equipoise.serve.targets.Target` is one."""

    name: str
    heard_s: float

    def pin(self, rank: int, path: str) -> Pin:
        """What sends a request to a rank; the same object as long as it stays true."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """What sends a request to a rank, in the words of Envoy.

    Parameters
    ----------
    pin : Pin
        What it was made from.
    headers : tuple of (str, str)
        To set: the endpoint, and the engine's own for the rank.
    encoded : bytes
        The gRPC answer of a request whose body stays as it is.
    """

    pin: Pin
    headers: tuple[tuple[str, str], ...]
    encoded: bytes = b""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is turned away without an engine having seen it."""

    status: int
    reason: str
    message: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class End:
    """How Envoy's log says a request ended.

    Parameters
    ----------
    how : str
        ``finished``, or the reason of an abort as the router has it: ``client_gone``, ``reset``, ``connect``, ...
    answer_bytes : int
        Of the answer's body.
    prompt_tokens, output_tokens : int
        Exact, where Envoy read them from the answer; else -1.
    """

    how: str
    answer_bytes: int = 0
    prompt_tokens: int = -1
    output_tokens: int = -1


class Held:
    """A request between its headers and the end of its stream."""

    __slots__ = (
        "body",
        "by_upstream",
        "came_s",
        "facts",
        "headers",
        "lease",
        "log_id",
        "path",
        "status",
        "way",
    )

    def __init__(self, path: str, headers: Mapping[str, str], came_s: float) -> None:
        self.path, self.headers, self.came_s = path, headers, came_s
        self.log_id = headers.get("x-request-id", "")
        self.facts: RequestFacts | None = None
        self.lease: Lease | None = None
        self.way: Way | None = None
        self.body: bytes | None = None
        """The body to send instead of the client's; none: that one stays."""
        self.status = 0
        self.by_upstream = True

    def guess(self) -> str:
        """How it ended, from what went by alone: after good headers nobody says whether the rest came."""
        if self.status == 0:
            return "client_gone"
        if not self.by_upstream:
            return "no_answer"
        if self.status < 400:
            return "finished"
        return "refused" if self.status < 500 else "upstream_error"

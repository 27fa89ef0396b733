"""What can go wrong on command.

| kind | what happens |
| --- | --- |
| ``hang`` | the request is taken and never answered, not even a header |
| ``status`` | it is answered with ``status`` (429, 503, 500, ...), with ``Retry-After`` if ``seconds`` is above 0 |
| ``reset`` | the connection is reset after ``after_tokens`` tokens |
| ``cut`` | the stream ends after ``after_tokens`` tokens as if it were complete, without ``[DONE]`` |
| ``bad_chunk`` | after ``after_tokens`` tokens the chunked framing is garbage |
| ``error_event`` | after ``after_tokens`` tokens an error comes as an event, then the stream ends |
| ``slow_answer`` | the headers come ``seconds`` late |
| ``stall`` | no step is done, on no rank, until it is cleared; ``/health`` answers 503 |
| ``rank_lost`` | streams of ``rank`` are reset, requests for it answer 500, and all ranks stall with it |
| ``freeze_metrics`` | metrics and loads stay as they are |
| ``slow_metrics`` | metrics and loads come ``seconds`` late |
| ``bad_metrics`` | metrics and loads are garbage |
| ``metrics_down`` | metrics and loads answer ``status`` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from equipoise.errors import InputError, nearest

__all__ = ["KINDS", "Fault", "Faults"]

KINDS = (
    "hang",
    "status",
    "reset",
    "cut",
    "bad_chunk",
    "error_event",
    "slow_answer",
    "stall",
    "rank_lost",
    "freeze_metrics",
    "slow_metrics",
    "bad_metrics",
    "metrics_down",
)


@dataclass(slots=True)
class Fault:
    """One fault that is in force.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    count : int
        How many requests it befalls; -1: all until it is cleared.
    rank : int
        Only requests of this rank; -1: of any.
    after_tokens : int
        Tokens of a stream that still come.
    status : int
    seconds : float
    """

    kind: str
    count: int = -1
    rank: int = -1
    after_tokens: int = 2
    status: int = 503
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(
                f"no fault is called {str(self.kind)[:40]!r}", fix=nearest(str(self.kind)[:40], KINDS)
            )
        for name in ("count", "rank", "after_tokens", "status"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} = {value!r}", where="fault", fix="use a whole number")
        if (
            isinstance(self.seconds, bool)
            or not isinstance(self.seconds, int | float)
            or not 0 <= self.seconds < 1e6
        ):
            raise InputError(f"seconds = {self.seconds!r}", where="fault", fix="use 0 to 1e6")


class Faults:
    """Those in force; the oldest that applies befalls a request."""

    def __init__(self) -> None:
        self._active: list[Fault] = []
        self.befallen: dict[str, int] = {}

    def add(self, kind: str, **options: Any) -> Fault:
        """Start one; options are the fields of `Fault`."""
        known = [f.name for f in fields(Fault)]
        for name in options:
            if name not in known:
                raise InputError(f"a fault has no {name[:40]!r}", fix=nearest(name[:40], known))
        fault = Fault(kind, **options)
        self._active.append(fault)
        return fault

    def add_from(self, document: Any) -> Fault:
        """Start one from the JSON of ``POST /fault``."""
        if not isinstance(document, Mapping) or "kind" not in document:
            raise InputError("the fault has no kind", fix='send {"kind": "reset", "count": 1}')
        return self.add(**{str(k): v for k, v in document.items()})

    def clear(self, kind: str | None = None) -> None:
        """End those of a kind, or all."""
        self._active = [f for f in self._active if kind is not None and f.kind != kind]

    def active(self, kind: str) -> Fault | None:
        """The oldest of a kind, without using it up."""
        return next((f for f in self._active if f.kind == kind), None)

    def take(self, kinds: tuple[str, ...], rank: int) -> Fault | None:
        """The oldest of these kinds that befalls a request of a rank; counted, and gone when used up."""
        for fault in self._active:
            if fault.kind in kinds and fault.rank in (-1, rank):
                self.befallen[fault.kind] = self.befallen.get(fault.kind, 0) + 1
                if fault.count > 0:
                    fault.count -= 1
                    if fault.count == 0:
                        self._active.remove(fault)
                return fault
        return None

    def listed(self) -> list[dict[str, Any]]:
        """For ``GET /fault``."""
        return [asdict(f) for f in self._active]

"""What sends a request to a rank, in the words of Envoy; made once for every rank and route."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from equipoise.serve.driver import Lease
from equipoise.serve.envoy.held import DESTINATION, PICKER_HEADER, Sender, Way

__all__ = ["Encode", "Ways"]

MOST_WAYS = 1 << 16

Encode = Callable[[Sequence[tuple[str, str]]], bytes]


class Ways:
    """Ways by target, rank and route.

    Parameters
    ----------
    picker : str
        Name of one of several pickers; empty: there is one.
    worker_key : callable
        Key of an instance by its name, or None.

    Attributes
    ----------
    encode : callable
        Makes `Way.encoded` of the headers.
    """

    def __init__(self, picker: str, worker_key: Callable[[str], str | None]) -> None:
        self._picker, self._worker_key = picker, worker_key
        self.encode: Encode = lambda headers: b""
        self._ways: dict[tuple[str, int, str], Way] = {}

    def of(self, lease: Lease, path: str) -> Way:
        """The way of a lease; that of before as long as its target's pin is the same."""
        target: Sender = lease.target
        pin = target.pin(lease.rank, path)
        key = (target.name, lease.rank, path)
        way = self._ways.get(key)
        if way is not None and way.pin is pin:
            return way
        parts = urlsplit(pin.url)
        headers = [(DESTINATION, parts.netloc if parts.port else f"{parts.netloc}:80"), *pin.headers]
        if self._picker:
            headers.append((PICKER_HEADER, self._picker))
        worker_key = self._worker_key(target.name)
        if worker_key is not None:
            headers.append(("authorization", f"Bearer {worker_key}"))
        way = Way(pin, tuple(headers), self.encode(headers))
        if len(self._ways) >= MOST_WAYS:
            self._ways.clear()
        self._ways[key] = way
        return way

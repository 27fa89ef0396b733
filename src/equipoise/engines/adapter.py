"""What an engine has to have so that a router can serve it; adapters by name, third parties' through entry points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from equipoise.engines.types import EngineInstance, Observation, Pin
from equipoise.errors import InputError, nearest

__all__ = ["Adapter", "Page", "get", "names"]

GROUP = "equipoise.engines"
"""Entry points of this group are adapters: ``my_engine = "my_package.my_module:ADAPTER"``."""

BUILT_IN = ("dynamo", "sglang", "trtllm", "vllm")


@dataclass(frozen=True, slots=True)
class Page:
    """One thing to GET.

    Parameters
    ----------
    name : str
        Key of the answer in what `Adapter.read` takes.
    path : str
        Path and query.
    where : {"metrics", "api"}
        At the instance's metrics addresses, or where its requests go.
    required : bool
        Whether the look failed if this one did; an optional page that is missing is left out.
    drained : bool
        Whether reading empties it, so that nobody else may read it.
    """

    name: str
    path: str
    where: str = "metrics"
    required: bool = True
    drained: bool = False


@runtime_checkable
class Adapter(Protocol):
    """What the router asks of an engine; sans I/O, so it is tested on bytes."""

    @property
    def kind(self) -> str:
        """Its name: lower case, no spaces."""
        ...

    @property
    def pages(self) -> tuple[Page, ...]:
        """What to GET for one observation of one address."""
        ...

    def read(self, pages: Mapping[str, bytes]) -> Observation:
        """What the answers say; raises `EngineError` where they cannot be read, whatever the bytes."""
        ...

    def pin(self, instance: EngineInstance, rank: int, path: str) -> Pin:
        """What sends a request for ``path`` to the rank; raises `InputError` where there is no such rank or no way."""
        ...


@cache
def _third_parties() -> Mapping[str, Any]:
    return {point.name: point for point in entry_points(group=GROUP)}


def names() -> list[str]:
    """Names of all adapters, sorted."""
    return sorted({*BUILT_IN, *_third_parties()})


def get(kind: str) -> Adapter:
    """The adapter of an engine.

    Raises
    ------
    InputError
        There is none of that name, or a third party's cannot be loaded.

    Examples
    --------
    >>> get("vllm").kind
    'vllm'
    """
    if kind in BUILT_IN:
        from importlib import import_module

        adapter: Adapter = import_module(f"equipoise.engines.{kind}").ADAPTER
        return adapter
    point = _third_parties().get(kind)
    if point is None:
        raise InputError(f"no engine is called {kind!r}", fix=nearest(kind, names()))
    try:
        loaded = point.load()
    except Exception as error:  # whatever somebody else's module raises
        raise InputError(
            f"the engine {kind!r} cannot be loaded ({type(error).__name__}: {error})",
            where=f"entry point {point.value}",
            fix="reinstall the package that provides it",
        ) from error
    if not isinstance(loaded, Adapter):
        raise InputError(
            f"the engine {kind!r} is no adapter",
            where=f"entry point {point.value}",
            fix="it needs kind, pages, read and pin (equipoise.engines.Adapter)",
        )
    return loaded

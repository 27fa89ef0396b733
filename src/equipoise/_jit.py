"""How this package compiles: one place for numba's options, its types and its cache.

No fastmath anywhere: results must not depend on the processor. Signatures are explicit, so a policy is a first-class
function that the kernel takes as an argument: the kernel is compiled once, not once a policy. Importing this module
imports numba (a quarter of a second); only the rooms that compile import it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache
from numba.core.types import Type
from numba.extending import register_jitable

from equipoise.types import Memory, Prices, Ranks, Requests

__all__ = ["MEMORY", "PLACE", "PRICES", "RANKS", "REQUESTS", "compiled", "jitable", "named"]

_log = logging.getLogger(__name__)

INTS = types.Array(types.int64, 1, "C")
INTS_2D = types.Array(types.int64, 2, "C")
SMALL_INTS = types.Array(types.int32, 1, "C")
SMALL_INTS_2D = types.Array(types.int32, 2, "C")
FLOATS = types.Array(types.float64, 1, "C")
FLOATS_2D = types.Array(types.float64, 2, "C")
STRIDED_INTS = types.Array(types.int64, 1, "A", readonly=True)
"""A column that may be a repeated single value, such as `Trace.session` where there are no sessions."""


def named(cls: type, *fields: Type) -> Type:
    """Numba's type of a named tuple (it has two spellings, by whether all fields are of one type)."""
    if all(f == fields[0] for f in fields):
        return types.NamedUniTuple(fields[0], len(fields), cls)
    return types.NamedTuple(fields, cls)


RANKS = named(Ranks, INTS, INTS, INTS, INTS, INTS_2D, INTS, INTS)
REQUESTS = named(Requests, INTS, INTS, INTS, INTS)
PRICES = named(
    Prices, types.float64, types.int64, FLOATS_2D, FLOATS, FLOATS_2D, FLOATS, FLOATS, FLOATS_2D, INTS
)
MEMORY = named(Memory, INTS, FLOATS)

PLACE = types.void(RANKS, REQUESTS, PRICES, FLOATS, MEMORY, INTS)
"""The one signature of every policy: ``place(ranks, requests, prices, params, memory, out)``."""

jitable = register_jitable
"""Marks a helper that compiled code may call; to Python it stays a plain function."""



def compiled(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile with an explicit signature and a disk cache; without the cache where no folder is writable.

    The plain function stays reachable as ``.py_func``: the slow twin calls that.
    """

    def wrap(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, error_model="numpy")(function)
        try:
            dispatcher._cache = _DigestCache(function)
        except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
            _log.warning("%s is compiled at every start: %s", function.__name__, error)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return wrap


class _DigestCache(FunctionCache):  # type: ignore[misc]
    """Numba's disk cache, keyed by everything a compiled function is made of.

    Numba looks at the file a function stands in, not at the files of the helpers it calls: an edited policy could run
    as its old self. Here the key holds a digest of this package's compiled rooms and of the function's own file.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._digest = _sources_digest(*_files_of(function))

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), self._digest)


def _files_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The files of a function and of the functions it closes over."""
    cells = [c.cell_contents for c in function.__closure__ or ()]
    return tuple(sorted({f.__code__.co_filename for f in (function, *cells) if hasattr(f, "__code__")}))


@cache
def _sources_digest(*files: str) -> str:
    package = Path(__file__).parent
    sources = [package / "types.py", Path(__file__), package / "cost" / "evaluate.py", *map(Path, files)]
    sources += [package / "replay" / "kernel.py", package / "replay" / "layout.py"]
    sources += sorted((package / "policies").glob("*.py"))
    digest = sha256()
    for path in sources:
        if path.is_file():
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()

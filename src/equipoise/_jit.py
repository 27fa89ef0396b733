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
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
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
"""Marks a helper that compiled code may call; to Python it stays a plain function.

A call that is not inlined counts a reference to every array of the named tuples it hands over, up and down, atomically:
keep such calls out of loops, and let one call do much.
"""


def compiled(signature: Any, *, checked: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Compile with an explicit signature and a disk cache; without the cache where no folder is writable.

    ``checked`` code raises on an index out of bounds instead of reading whatever is there: for code that is not ours.

    The plain function stays reachable as ``.py_func``: the slow twin calls that.
    """

    def wrap(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, error_model="numpy", boundscheck=checked)(function)
        try:
            dispatcher._cache = _DigestCache(function, checked)
        except RuntimeError as error:  # numba: "cannot cache function ...: no locator available"
            _log.warning("%s is compiled at every start: %s", function.__name__, error)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return wrap


class _DigestCache(FunctionCache):  # type: ignore[misc]
    """Numba's disk cache, keyed by everything a compiled function is made of, one pair of files a key.

    Numba looks at the file a function stands in, not at the files of the helpers it calls: an edited policy could run
    as its old self. Here a digest of this package's compiled rooms and of all that the function reaches decides.

    The digest is part of the file names because numba numbers the entries of one index without a lock: two processes
    that compile two policies at once may both write number 1, and one policy would then run as the other.
    """

    def __init__(self, function: Callable[..., Any], checked: bool = False) -> None:
        super().__init__(function)
        digest = sha256(_package_digest().encode())
        digest.update(f"{get_host_cpu_name()} {checked}".encode())
        _add_function(digest, function, set())
        self._digest = digest.hexdigest()
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=f"{self._impl.filename_base}-{self._digest[:16]}",
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (sig, codegen.magic_tuple(), self._digest)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # a damaged file, or one that asks for a module which is not there
            _log.warning("compiling anew, the cache in %s cannot be used: %s", self.cache_path, error)
            return None


def _add_function(digest: Any, function: Any, seen: set[int]) -> None:
    """Add a function's file, and what it reaches outside the package: helpers, modules, constants."""
    function = getattr(function, "py_func", function)
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    names = _add_code(digest, function.__code__)
    digest.update(f"{function.__module__}.{function.__qualname__}".encode())
    for cell in function.__closure__ or ():
        _add_value(digest, cell.cell_contents, seen)
    if (function.__module__ or "").startswith("equipoise."):
        return  # what the package's own functions reach is in the package's digest
    reached = [function.__globals__[name] for name in names if name in function.__globals__]
    reached += [
        vars(m)[name] for m in reached if isinstance(m, ModuleType) for name in names if name in vars(m)
    ]
    for value in reached:
        _add_value(digest, value, seen)


def _add_code(digest: Any, code: CodeType) -> list[str]:
    """Add a function's file and its code (it may have no file); the global names it uses."""
    _add_file(digest, code.co_filename)
    digest.update(code.co_code)
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names += _add_code(digest, constant)
        else:
            digest.update(repr(constant).encode())
    return names


def _add_value(digest: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, bool | int | float | complex | str | bytes | tuple | np.generic):
        digest.update(repr(value).encode())
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    elif isinstance(value, ModuleType):
        _add_file(digest, getattr(value, "__file__", None) or "")
    else:
        _add_function(digest, value, seen)


def _add_file(digest: Any, name: str) -> None:
    path = Path(name)
    if path.is_file():
        digest.update(path.name.encode())
        digest.update(path.read_bytes())


@cache
def _package_digest() -> str:
    package = Path(__file__).parent
    sources = [package / "types.py", Path(__file__), package / "cost" / "evaluate.py"]
    sources += [package / "replay" / "kernel.py", package / "replay" / "layout.py"]
    sources += sorted((package / "policies").glob("*.py"))
    digest = sha256()
    for path in sources:
        _add_file(digest, str(path))
    return digest.hexdigest()

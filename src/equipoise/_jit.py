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
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from llvmlite.ir import (  # type: ignore[import-untyped]
    ArrayType,
    Constant,
    IntType,
    LiteralStructType,
    Undefined,
)
from numba import from_dtype, njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.cgutils import alloca_once_value, create_struct_proxy, pack_array
from numba.core.imputils import impl_ret_borrowed
from numba.core.types import Type
from numba.extending import intrinsic, overload, register_jitable

from equipoise.types import (
    Floats,
    Floats2D,
    Ints,
    Ints2D,
    Ints3D,
    Memory,
    Prices,
    Ranks,
    Requests,
    SmallInts,
    SmallInts2D,
    SmallInts3D,
)

__all__ = [
    "FINISHED",
    "MEMORY",
    "PLACE",
    "PRICES",
    "RANKS",
    "REQUESTS",
    "address",
    "borrowed",
    "compiled",
    "function_reader",
    "jitable",
    "numba_type",
    "package_digest",
    "put",
    "reader",
    "shortened",
    "size_of",
]

_log = logging.getLogger(__name__)

INTS = types.Array(types.int64, 1, "C")
FLOATS = types.Array(types.float64, 1, "C")
_TYPES = (
    (int, types.int64),
    (float, types.float64),
    (Ints, INTS),
    (Ints2D, types.Array(types.int64, 2, "C")),
    (Ints3D, types.Array(types.int64, 3, "C")),
    (SmallInts, types.Array(types.int32, 1, "C")),
    (SmallInts2D, types.Array(types.int32, 2, "C")),
    (SmallInts3D, types.Array(types.int32, 3, "C")),
    (Floats, FLOATS),
    (Floats2D, types.Array(types.float64, 2, "C")),
)


def numba_type(annotation: Any) -> Type:
    """Numba's type of an annotation of `equipoise.types`, or of a named tuple whose fields carry them.

    An array annotated with a dtype holds such records. A named tuple has two spellings, by whether all its fields are
    of one type.
    """
    for known, found in _TYPES:
        if annotation == known:
            return found
    if get_origin(annotation) is Annotated and isinstance(annotation.__metadata__[0], np.dtype):
        return types.Array(from_dtype(annotation.__metadata__[0]), 1, "C")
    fields = [numba_type(a) for a in get_type_hints(annotation, include_extras=True).values()]
    if all(f == fields[0] for f in fields):
        return types.NamedUniTuple(fields[0], len(fields), annotation)
    return types.NamedTuple(fields, annotation)


RANKS, REQUESTS, PRICES, MEMORY = (numba_type(t) for t in (Ranks, Requests, Prices, Memory))

PLACE = types.void(RANKS, REQUESTS, PRICES, FLOATS, MEMORY, INTS)
"""The one signature of every policy: ``place(ranks, requests, prices, params, memory, out)``."""
FINISHED = types.void(MEMORY, FLOATS, types.int64, types.int64, types.int64, types.int64)
"""What a policy that learns is told: ``finished(memory, params, request, rank, context_tokens, output_tokens)``."""

jitable = register_jitable
"""Marks a helper that compiled code may call; to Python it stays a plain function.

A call that is not inlined counts a reference to every array of the named tuples it hands over, up and down, atomically:
hand over what is `borrowed`, or keep such calls out of loops.
"""


def borrowed(value: Any) -> Any:
    """The same array, or tuple of arrays, without a share in who owns the memory; to Python, the value itself.

    Compiled code counts no references to it, nor to slices of it: a third of the time of a replay. The owner must
    outlive every use, so give it only to arguments of a function that Python called: Python holds them meanwhile.
    """
    return value


def shortened(columns: Any, count: int) -> Any:
    """The first `count` entries of a one-dimensional array, or of every array of a named tuple, sharing memory.

    What slicing would give, without its checks of bounds and signs: 0 <= count <= length must hold.
    """
    if isinstance(columns, np.ndarray):
        return columns[:count]
    return type(columns)(*(column[:count] for column in columns))


@intrinsic
def _disowned(_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def clear(array: Any) -> None:
            array.meminfo = Constant(array.meminfo.type, None)
            array.parent = Constant(array.parent.type, None)

        return _with_arrays(context, builder, value, args[0], clear)

    return value(value), generate


@intrinsic
def _shortened(_context: Any, columns: Any, count: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def shorten(array: Any) -> None:
            array.nitems = args[1]
            array.shape = pack_array(builder, [args[1]])

        short = _with_arrays(context, builder, columns, args[0], shorten)
        return impl_ret_borrowed(context, builder, columns, short)

    return columns(columns, types.intp), generate


def _with_arrays(context: Any, builder: Any, kind: Type, value: Any, change: Callable[[Any], None]) -> Any:
    """Code that changes an array's descriptor; for a tuple, that of each of its fields."""
    if isinstance(kind, types.Array):
        array = create_struct_proxy(kind)(context, builder, value=value)
        change(array)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        for position, field in enumerate(kind.types):
            part = _with_arrays(context, builder, field, builder.extract_value(value, position), change)
            value = builder.insert_value(value, part, position)
    return value


@intrinsic
def address(_context: Any, value: Any) -> Any:
    """Put a tuple on the stack of the compiled function that calls this, and return where: valid until it returns."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ptrtoint(alloca_once_value(builder, args[0]), IntType(64))

    return types.int64(value), generate


def reader(whole: Any, part: str) -> Any:
    """Make the function that reads one part of a tuple of tuples from its `address`, arrays `borrowed`.

    A function that takes a dozen tuples of arrays by value is handed hundreds of words a call, and compiles slowly for
    each; by address it is handed one, and of what it reads only what it uses is left.
    """
    whole_type, place = numba_type(whole), whole._fields.index(part)
    found = whole_type.types[place]  # type: ignore[attr-defined]

    @intrinsic
    def read(_context: Any, where: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            zero, index = Constant(IntType(32), 0), Constant(IntType(32), place)
            pointer = builder.inttoptr(args[0], context.get_value_type(whole_type).as_pointer())
            value = _read_parts(builder, builder.gep(pointer, [zero, index], inbounds=True))

            def clear(array: Any) -> None:
                array.meminfo = Constant(array.meminfo.type, None)
                array.parent = Constant(array.parent.type, None)

            return _with_arrays(context, builder, found, value, clear)

        return found(types.int64), generate

    return read


@intrinsic
def put(_context: Any, value: Any, where: Any) -> Any:
    """Write a tuple, or a first-class function, to an address: what outlives the call, unlike `address`.

    Whoever asks for it keeps the arrays alive, and the memory: `size_of` says how many bytes, aligned to 8.
    """

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        builder.store(args[0], builder.inttoptr(args[1], args[0].type.as_pointer()))
        return context.get_dummy_value()

    return types.void(value, types.int64), generate


@intrinsic
def size_of(_context: Any, value: Any) -> Any:
    """Bytes that `put` writes for such a value."""

    def generate(context: Any, _builder: Any, _signature: Any, _args: Any) -> Any:
        return Constant(IntType(64), context.get_abi_sizeof(context.get_value_type(value)))

    return types.int64(value), generate


def function_reader(signature: Any) -> Any:
    """Make the function that reads a first-class function of that signature from where it was `put`.

    Handed over as an argument, a function costs a call from Python several microseconds.
    """
    kind = types.FunctionType(signature)

    @intrinsic
    def read(_context: Any, where: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.load(builder.inttoptr(args[0], context.get_value_type(kind).as_pointer()))

        return kind(types.int64), generate

    return read


def _read_parts(builder: Any, pointer: Any) -> Any:
    """Read a structure part by part: compilers drop parts that are not used, whole structures they copy."""
    kind = pointer.type.pointee
    if not isinstance(kind, LiteralStructType | ArrayType):
        return builder.load(pointer)
    value = Constant(kind, Undefined)
    for i in range(len(kind)):
        where = builder.gep(pointer, [Constant(IntType(32), 0), Constant(IntType(32), i)], inbounds=True)
        value = builder.insert_value(value, _read_parts(builder, where), i)
    return value


@overload(borrowed)
def _overload_borrowed(value):  # type: ignore[no-untyped-def]
    return lambda value: _disowned(value)


@overload(shortened)
def _overload_shortened(columns, count):  # type: ignore[no-untyped-def]
    return lambda columns, count: _shortened(columns, count)


def compiled(
    signature: Any, *, checked: bool = False, first_class: bool = True
) -> Callable[[Callable[..., Any]], Any]:
    """Compile with an explicit signature and a disk cache; without the cache where no folder is writable.

    ``first_class``: compiled code may be handed the function, as the kernel is handed policies; costs time to compile.

    ``checked`` code raises on an index out of bounds instead of reading whatever is there: for code that is not ours.

    The plain function stays reachable as ``.py_func``: the slow twin calls that.
    """

    def wrap(function: Callable[..., Any]) -> Any:
        dispatcher = njit(
            nogil=True, error_model="numpy", boundscheck=checked, no_cfunc_wrapper=not first_class
        )(function)
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

    The rooms import only downward, so a function's room and those below it are all it can be made of: work on the
    fleet leaves compiled policies valid.

    The digest is part of the file names because numba numbers the entries of one index without a lock: two processes
    that compile two policies at once may both write number 1, and one policy would then run as the other.
    """

    def __init__(self, function: Callable[..., Any], checked: bool = False) -> None:
        super().__init__(function)
        digest = sha256(package_digest(function.__module__ or "").encode())
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


ROOMS_BELOW = {
    "cost": (),
    "control": ("cost", "control.kernel"),
    "control.kernel": (),
    "policies": ("cost",),
    "router.kernel": ("cost", "policies"),
    "replay": ("cost", "policies"),
    "fleet.kernel": ("cost", "policies", "replay"),
}
"""Rooms with compiled code, and those they use. More than is compiled counts: lists of files would be forgotten."""


@cache
def package_digest(module: str = "") -> str:
    """Digest of all source that a function of a module may be compiled from, or that decides how.

    Code of others may use any room but the router's.
    """
    package = Path(__file__).parent
    sources = [package / "types.py", Path(__file__)]
    reached = (*ROOMS_BELOW["fleet.kernel"], "fleet.kernel")
    for room, below in ROOMS_BELOW.items():
        if module.startswith(f"equipoise.{room}."):
            reached = (*below, room)
    for room in reached:
        sources += sorted((package / room.replace(".", "/")).glob("*.py"))
    digest = sha256()
    for path in sources:
        _add_file(digest, str(path))
    return digest.hexdigest()

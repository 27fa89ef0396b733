"""Names to policies: the built-in ones, those of other packages, and a file of one's own.

A built-in policy module is imported when its policy is first asked for, so naming one costs nothing. Other packages
register a `PolicySpec` under the entry-point group ``equipoise.policies``; ``path/to/file.py:name`` loads a ``place``
or ``pick`` function or a `PolicySpec` from a file.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from pickle import PicklingError
from types import CodeType
from typing import Any

import numpy as np

from equipoise._jit import PLACE
from equipoise.errors import PolicyError, nearest
from equipoise.policies.api import Parameter, PolicyContext, PolicySpec, checked_placement, one_by_one
from equipoise.policies.reasons import compile_reason
from equipoise.types import Floats, Memory, Prices

__all__ = ["BUILT_IN", "Policy", "get", "names", "parse", "spec"]

_log = logging.getLogger(__name__)

ENTRY_POINTS = "equipoise.policies"

BUILT_IN: Mapping[str, str] = {
    "least_batch": "equipoise.policies.least_batch",
    "least_tokens": "equipoise.policies.least_tokens",
    "length_split": "equipoise.policies.length_split",
    "dualpath": "equipoise.policies.dualpath",
    "round_robin": "equipoise.policies.round_robin",
    "random": "equipoise.policies.random_choice",
    "power_of_two": "equipoise.policies.power_of_two",
    "vllm_033": "equipoise.policies.vllm_033",
    "sglang_total_tokens": "equipoise.policies.sglang_total_tokens",
    "trtllm_adp": "equipoise.policies.trtllm_adp",
    "trtllm_kv_admission": "equipoise.policies.trtllm_kv_admission",
    "dynamo_kv": "equipoise.policies.dynamo_kv",
    "smg_least_load": "equipoise.policies.smg_least_load",
    "iqr_lex": "equipoise.policies.iqr_lex",
    "br0": "equipoise.policies.br0",
    "brh": "equipoise.policies.brh",
    "fast_phi": "equipoise.policies.fast_phi",
    "bf_io": "equipoise.policies.bf_io",
    "equipoise": "equipoise.policies.equipoise",
}

ALIASES: Mapping[str, str] = {
    "a": "least_batch",
    "total_requests": "least_batch",
    "b": "least_tokens",
    "total_tokens": "least_tokens",
    "c": "length_split",
    "d": "dualpath",
    "rr": "round_robin",
    "p2c": "power_of_two",
    "vllm": "vllm_033",
    "sglang": "sglang_total_tokens",
    "trtllm": "trtllm_adp",
    "dynamo": "dynamo_kv",
    "smg": "smg_least_load",
    "sbs": "iqr_lex",
    "bfio": "bf_io",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its parameters set: what replay and router take.

    Parameters
    ----------
    spec : PolicySpec
    params : mapping
        Every parameter, defaults filled in.
    origin : str
        What `spec` finds the definition by: its name, or ``file.py:function``; empty where it was made in code.
    digest : str, optional
        First 16 hex digits of the SHA-256 of the file it comes from; none where it comes from a package.
    """

    spec: PolicySpec
    params: Mapping[str, Any]
    origin: str = ""
    digest: str | None = None

    @property
    def name(self) -> str:
        """Registry name."""
        return self.spec.name

    @property
    def label(self) -> str:
        """Name with the parameters that differ from their defaults or matter most: ``dualpath z=1.2``."""
        shown = [
            p
            for p in self.spec.parameters
            if self.params[p.name] != p.default or (p is self.spec.parameters[0] and not p.integer)
        ]
        return " ".join([self.spec.name, *(f"{p.name}={_show(self.params[p.name])}" for p in shown)])

    @property
    def text(self) -> str:
        """The form that `parse` reads back, every parameter to its last digit: what the policy *is*.

        Examples
        --------
        >>> get("dualpath", z=1.0500001).text
        'dualpath,z=1.0500001,average=projected'
        """
        settings = [f"{p.name}={_show(self.params[p.name])}" for p in self.spec.parameters]
        return ",".join([self.origin or self.spec.name, *settings])

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process it travels as its text: compiled functions stay where they are."""
        if not self.origin:
            raise PicklingError(f"policy {self.spec.name!r} was made in code; give it as file.py:SPEC")
        path, attribute = _file_of(self.origin)
        origin = f"{path.resolve()}:{attribute}" if path is not None else self.origin
        return _again, (origin, dict(self.params))

    @property
    def compiled(self) -> bool:
        """Whether it runs in the kernel; a policy that does not compile runs in the slow twin."""
        functions = (self.spec.place, self.spec.finished)
        return all(hasattr(f, "py_func") for f in functions if f is not None)

    def param_array(self) -> Floats:
        """The parameters as the ``params`` array: words by their position, true and false as 1 and 0."""
        return np.array([_encode(p, self.params[p.name]) for p in self.spec.parameters], dtype=np.float64)

    def new_memory(
        self, seed: int, prices: Prices, ranks: int, *, instances: int = 1, groups: int = 1, group: int = 0
    ) -> Memory:
        """A fresh memory, seeded; the arguments are those of `PolicyContext`."""
        context = PolicyContext(self.params, seed, prices, ranks, instances, groups, group)
        ints, floats = self.spec.memory_size(context)
        memory = Memory(np.zeros(ints, dtype=np.int64), np.zeros(floats, dtype=np.float64))
        self.spec.start(memory, context)
        return memory


def _again(origin: str, params: dict[str, Any]) -> Policy:
    return get(origin, **params)


def names() -> list[str]:
    """All registered policies: built in and by entry point."""
    others = {_key(e.name) for e in entry_points(group=ENTRY_POINTS)} - {*BUILT_IN, *ALIASES}
    return [*BUILT_IN, *sorted(others)]


def spec(name: str) -> PolicySpec:
    """Find a policy's definition by name, alias, entry point or ``file.py:function``.

    Raises
    ------
    PolicyError
        Unknown name (the nearest are offered), or a file that holds no policy.
    """
    key = name.strip()
    if _file_of(key)[0] is not None:
        return _own_name(_from_file(key), key)
    key = ALIASES.get(_key(key), _key(key))
    if key in BUILT_IN:
        found = importlib.import_module(BUILT_IN[key]).SPEC
    else:
        matches = [e for e in entry_points(group=ENTRY_POINTS) if _key(e.name) == key]
        if not matches:
            raise PolicyError(
                f"no policy named {name!r}", fix=nearest(key, [*names(), *(a for a in ALIASES if len(a) > 1)])
            )
        try:
            found = matches[0].load()
        except Exception as error:
            raise PolicyError(
                f"{type(error).__name__}: {error}",
                where=f"policy {name!r}, entry point {matches[0].value!r}",
                fix="the package that registers it must import cleanly",
            ) from error
    if not isinstance(found, PolicySpec):
        raise PolicyError(
            f"{name!r} is a {type(found).__name__}", fix="the entry point must name a PolicySpec"
        )
    return found if key in BUILT_IN else _own_name(found, name)


def _own_name(found: PolicySpec, where: str) -> PolicySpec:
    """Refuse a policy of someone's own that calls itself by a built-in name: results would carry that name."""
    if ALIASES.get(_key(found.name), _key(found.name)) in BUILT_IN:
        raise PolicyError(
            f"it calls itself {found.name!r}, as a built-in policy",
            where=f"policy {where!r}",
            fix="rename it",
        )
    return found


def _key(name: str) -> str:
    """Names do not tell case, hyphen and underscore apart."""
    return name.lower().replace("-", "_")


def get(name: str, **params: Any) -> Policy:
    """Make a policy ready to use.

    Parameters
    ----------
    name : str
        Name, alias, entry point or ``file.py:function``.
    **params
        Its parameters; the rest keep their defaults.

    Raises
    ------
    PolicyError
        Unknown policy or parameter, or a value outside its bounds.

    Examples
    --------
    >>> get("dualpath", z=1.2).label
    'dualpath z=1.2'
    """
    found = spec(name)
    known = {p.name: p for p in found.parameters}
    for given in params:
        if given not in known:
            fix = nearest(given, known) if known else "it takes none"
            raise PolicyError(f"policy {found.name!r} has no parameter {given!r}", fix=fix)
    values = {p.name: _checked(found.name, p, params.get(p.name, p.default)) for p in found.parameters}
    if found.variant is not None:
        found = found.variant(values) or found
    path = _file_of(name)[0]
    if path is not None:
        return Policy(found, values, name.strip(), _digest(path))
    key = _key(name.strip())
    return Policy(found, values, ALIASES.get(key, key))


def parse(text: str) -> Policy:
    """Read the command-line form ``dualpath,z=1.2,average=current``."""
    name, *settings = [part.strip() for part in text.split(",")]
    params: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise PolicyError(
                f"{setting!r} in policy {text!r}", fix="write parameters as name=value, after commas"
            )
        if key.strip() in params:
            raise PolicyError(f"{key.strip()!r} twice in policy {text!r}", fix="give each parameter once")
        params[key.strip()] = value.strip()
    return get(name, **params)


def _checked(policy: str, parameter: Parameter, value: Any) -> float | int | str | bool:
    where = f"policy {policy!r}, parameter {parameter.name!r}"
    if parameter.choices:
        if str(value) not in parameter.choices:
            raise PolicyError(f"{value!r}", where=where, fix=f"use one of {', '.join(parameter.choices)}")
        return str(value)
    if isinstance(parameter.default, bool):
        word = str(value).lower()
        if word not in ("true", "false", "1", "0", "yes", "no"):
            raise PolicyError(f"{value!r}", where=where, fix="use true or false")
        return word in ("true", "1", "yes")
    if str(value) in parameter.words:
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise PolicyError(f"{value!r} is not a number", where=where, fix=_bounds(parameter)) from None
    if math.isnan(number) or not parameter.low <= number <= parameter.high:
        raise PolicyError(f"{value} is out of bounds", where=where, fix=_bounds(parameter))
    if parameter.integer:
        if not number.is_integer():  # infinity is none either
            raise PolicyError(f"{value} is not a whole number", where=where, fix=_bounds(parameter))
        return int(number)
    return number


def _bounds(parameter: Parameter) -> str:
    kind = "a whole number" if parameter.integer else "a number"
    words = "".join(f", or {word}" for word in parameter.words)
    return f"must be {kind} from {parameter.low:g} to {parameter.high:g}{words}"


def _encode(parameter: Parameter, value: Any) -> float:
    if value in parameter.words:
        return -1.0 - parameter.words.index(value)
    return float(parameter.choices.index(value)) if parameter.choices else float(value)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def _file_of(text: str) -> tuple[Path | None, str]:
    """The path and the attribute of ``path/to/file.py:attribute``; no path where the text is a name."""
    text = text.strip()
    before, colon, attribute = text.rpartition(".py:")
    if colon:
        return Path(f"{before}.py"), attribute
    return (Path(text), "") if text.endswith(".py") else (None, "")


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]


def _from_file(text: str) -> PolicySpec:
    path, attribute = _file_of(text)
    if path is None or not path.is_file():
        raise PolicyError(
            f"no file {str(path)!r}", where=f"policy {text!r}", fix="give path/to/file.py:function"
        )
    module = _load_module(path)
    wanted: Iterable[str] = [attribute] if attribute else ("SPEC", "place", "pick")
    for name in wanted:
        found = getattr(module, name, None)
        if isinstance(found, PolicySpec):
            return found
        if callable(found):
            return _wrap(path, name, found)
    raise PolicyError(
        f"{path.name} defines no {' or '.join(wanted)}",
        where=f"policy {text!r}",
        fix="see docs/howto/write-a-policy.md",
    )


class _FromSource(SourceFileLoader):
    """Loads what stands in the file now.

    Python's own bytecode cache goes by size and second of change: an edit of one digit, tried at once, would run as
    what it was before.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_module(path: Path) -> Any:
    # The contents are part of the name: linker symbols are made of it (see `one_by_one`). The path is not: compiled
    # code on disk asks for its module by name, and serves a copy of the file too.
    name = f"equipoise_policy_{path.stem}_{_digest(path)}"
    loader = _FromSource(name, str(path))
    definition = importlib.util.spec_from_file_location(name, path, loader=loader)
    if definition is None:
        raise PolicyError(f"cannot load {str(path)!r}", fix="it must be a Python file")
    module = importlib.util.module_from_spec(definition)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PolicyError(
            f"{type(error).__name__}: {error}", where=str(path), fix="the file must import cleanly"
        ) from error
    return module


def _wrap(path: Path, name: str, function: Any) -> PolicySpec:
    """Make a spec of a bare function: six arguments ending in ``out`` are ``place``, otherwise ``pick``."""
    plain = getattr(function, "py_func", function)
    try:
        arguments = list(inspect.signature(plain).parameters)
    except (TypeError, ValueError):
        arguments = []
    if len(arguments) != 6:
        raise PolicyError(
            f"{name} takes {len(arguments)} arguments",
            where=str(path),
            fix="write place(ranks, requests, prices, params, memory, out) "
            "or pick(ranks, requests, i, prices, params, memory)",
        )
    is_place = arguments[-1] == "out"
    note = ""
    if is_place and [s.args for s in getattr(function, "nopython_signatures", [])] == [PLACE.args]:
        place = function
    else:
        try:
            place = checked_placement(plain) if is_place else one_by_one(plain, checked=True)
        except Exception as error:  # numba's own errors and, for code far from its dialect, plain Python ones
            reason = compile_reason(error, path.name)
            note = f"{name} does not compile and runs as plain Python, a thousand times slower: {reason}"
            _log.warning("%s: %s", path, note)
            place = plain if is_place else one_by_one(plain, compile_it=False)
    return PolicySpec(
        name=f"{path.stem}:{name}", place=place, summary=note or "from a file", source=str(path.name)
    )

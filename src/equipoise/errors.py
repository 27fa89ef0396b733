"""Whose fault it is: the error tree.

::

    EquipoiseError
    ├── InputError          the user's: a value, a file, an option      exit code 2
    │   ├── TraceError      a trace file, with file, line and column
    │   ├── CostError       a cost file or a set of prices
    │   ├── ModelError      a model configuration or an unknown architecture
    │   ├── CalibrationError  a step log or a measured table, with file and line
    │   └── PolicyError     an unknown policy or parameter, or a policy that broke its contract
    ├── EngineError         an inference engine's: it answered wrongly or not at all   exit code 1
    └── InternalError       ours: a law of the simulator did not hold   exit code 1

Every message is one sentence that a person can act on: what was wrong, where, the bound, the fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "CalibrationError",
    "CostError",
    "EngineError",
    "EquipoiseError",
    "InputError",
    "InternalError",
    "ModelError",
    "PolicyError",
    "TraceError",
    "nearest",
]


class EquipoiseError(Exception):
    """Root of all errors this package raises on purpose."""

    exit_code = 1


class InputError(EquipoiseError):
    """The user's input cannot be used.

    Parameters
    ----------
    what : str
        What was wrong, with the offending value in it.
    where : str, optional
        Where it stood: ``file.csv:17, column ContextTokens`` or ``--ranks``.
    fix : str, optional
        What to do about it.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        message = f"{where}: {what}" if where else what
        super().__init__(f"{message}; {fix}" if fix else message)


class TraceError(InputError):
    """A trace cannot be read, or holds a request that no pool can serve."""


class CostError(InputError):
    """A step cost is malformed: NaN or negative prices, unknown keys, an unknown name."""


class ModelError(InputError):
    """A model configuration is malformed or of an architecture this package does not know."""


class CalibrationError(InputError):
    """A step log or a measured table cannot be read, or does not hold what a fit needs."""


class PolicyError(InputError):
    """A policy is unknown, got a wrong parameter, or placed a request where it may not."""


class EngineError(EquipoiseError):
    """An inference engine answered wrongly or not at all."""


class InternalError(EquipoiseError):
    """One of our own laws did not hold; please report it."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known names are close to a mistyped one, for the fix part of a message.

    Examples
    --------
    >>> nearest("dualpth", ["dualpath", "random"])
    "did you mean 'dualpath'? Known: dualpath, random"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    listing = f"Known: {', '.join(names)}"
    if not close:
        return listing
    return f"did you mean {' or '.join(repr(c) for c in close)}? {listing}"

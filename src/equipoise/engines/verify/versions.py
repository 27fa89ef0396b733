"""Which engines the adapters were run on, and what they say to others."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.errors import InputError

__all__ = ["check_version", "lacks"]


def check_version(
    engine: str, found: str, run_on: Mapping[str, str], lacks: str = "", any_version: bool = False
) -> None:
    """Refuse an engine version an adapter was never run on, or one that lacks what it relies on.

    Raises
    ------
    InputError
        Says which versions are known, and how to go in all the same.
    """
    known = ", ".join(run_on)
    if lacks:
        raise InputError(f"{engine} {found}: {lacks}", fix=f"the adapter was run on {known}")
    if found.split("+")[0] not in run_on and not any_version:
        raise InputError(
            f"{engine} {found} was never run with this adapter",
            fix=f"use {known}, or any_version=True: it relies on internals, which were all found",
        )


def lacks(owner: Any, name: str, methods: Mapping[str, Sequence[str]]) -> str:
    """What an adapter relies on and a class has not, in words; empty: all is there.

    Parameters
    ----------
    owner : type
    name : str
        What to call it.
    methods : mapping of str to sequence of str
        Names of methods, and of parameters that each must take.
    """
    for method_name, words in methods.items():
        method = getattr(owner, method_name, None)
        if method is None:
            return f"{name} has no {method_name}"
        taken = inspect.signature(inspect.unwrap(method)).parameters
        for word in words:
            if word not in taken:
                return f"{name}.{method_name} takes no {word}"
    return ""

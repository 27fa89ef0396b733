"""Which engines the adapters were run on, and what they say to others."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.errors import InputError

__all__ = ["check_version"]


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

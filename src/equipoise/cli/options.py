"""Options that several commands share, and how their text becomes objects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from equipoise.errors import InputError

if TYPE_CHECKING:
    from equipoise.cost import StepCost

__all__ = [
    "Json",
    "Many",
    "OracleBudget",
    "Quiet",
    "Urls",
    "check_folder",
    "costs_from",
    "default_jobs",
    "split",
    "whole_numbers",
]

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON only.")]
OracleBudget = Annotated[
    str,
    Parameter(
        help="How long the oracle searches for each setting and seed: candidates, with which results are the same on "
        "every machine, or seconds such as 30s."
    ),
]
Many = Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)]
Urls = Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=True)]
Quiet = Annotated[bool, Parameter(negative="", help="No progress on standard error.")]


def split(values: Sequence[str], option: str) -> list[str]:
    """Flatten a repeatable option whose values may also be separated by commas."""
    parts = [part.strip() for value in values for part in value.split(",")]
    if not all(parts):
        raise InputError("an empty value", where=option, fix="separate values by single commas")
    return parts


def whole_numbers(values: Sequence[str], option: str) -> list[int]:
    """The same, for whole numbers."""
    parts = split(values, option)
    for part in parts:
        if not part.isdigit():
            raise InputError(f"{part!r} is not a whole number", where=option, fix="such as 1,2,4")
    return [int(part) for part in parts]


def costs_from(values: Sequence[str], us_per_unit: float | None) -> list[StepCost]:
    """Step costs named on the command line, their clock replaced if asked for."""
    from equipoise.cost import load

    costs = [load(name) for name in split(values, "--cost")]
    return [c if us_per_unit is None else replace(c, us_per_unit=us_per_unit) for c in costs]


def default_jobs(jobs: int | None) -> int:
    """Replays at a time: as asked, or one a processor."""
    if jobs is not None and not 1 <= jobs <= 1024:
        raise InputError(f"jobs = {jobs}", where="--jobs", fix="must be from 1 to 1024")
    return jobs or os.cpu_count() or 1


def check_folder(folder: Path) -> None:
    """What can be said before the replays, not after them."""
    if not folder.name:
        raise InputError(
            f"{str(folder)!r} names no folder", where="--output-dir", fix="such as results/first"
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{str(folder)!r} is a file", where="--output-dir", fix="name a folder")

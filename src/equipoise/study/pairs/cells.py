"""Which cells of two sources belong together, and what else they differ in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.errors import InputError
from equipoise.study.pairs.files import CELL, RunFile

__all__ = ["matched", "unlike"]


def matched(
    ones: Sequence[RunFile], others: Sequence[RunFile]
) -> list[tuple[dict[str, Any], RunFile, RunFile]]:
    """Cells of both that belong together: alike in all that varies inside either."""
    if len(ones) == len(others) == 1:
        return [({}, ones[0], others[0])]
    varying = [
        name
        for name in CELL
        if any(len({repr(r.cell.get(name)) for r in group}) > 1 for group in (ones, others))
    ]
    by_key = {tuple(repr(r.cell.get(n)) for n in varying): r for r in others}
    found = []
    for run in ones:
        match = by_key.get(tuple(repr(run.cell.get(n)) for n in varying))
        if match is not None:
            found.append(({n: run.cell.get(n) for n in varying}, run, match))
    if not found:
        raise InputError(
            f"{len(ones)} and {len(others)} cells, and none of one is like one of the other in "
            f"{', '.join(varying)}",
            where=f"{ones[0].source} and {others[0].source}",
            fix="put #POLICY behind each to pick one",
        )
    return found


def unlike(a: RunFile, b: RunFile, letters: tuple[str, str]) -> list[str]:
    """What else the runs differ in than their policy, in a sentence; file names of traces count by their last part."""
    found = []
    for name in CELL[:-1]:
        ours, theirs = (_shown(name, r.cell[name]) if name in r.cell else None for r in (a, b))
        if ours is not None and theirs is not None and ours != theirs:
            found.append(f"{name.replace('_', ' ')} ({ours} and {theirs})")
    return [f"{letters[0]} and {letters[1]} also differ in {', '.join(found)}."] if found else []


def _shown(name: str, value: Any) -> str:
    if name == "information":
        return "exact" if value is None else ", ".join(str(v) for v in value.values())
    return Path(str(value)).name if name == "trace" else "none" if value is None else str(value)

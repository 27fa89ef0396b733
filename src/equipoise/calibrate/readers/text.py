"""Blocks of numbered lines of a job's files, watched for lines of another engine."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from equipoise import _files
from equipoise.calibrate.readers.format import Job
from equipoise.errors import CalibrationError
from equipoise.types import Ints

__all__ = ["blocks", "line_numbers", "matches", "number", "refuse_foreign"]


def blocks(
    job: Job, own: str, *, skip: Collection[int] = (), watch: bool = True
) -> Iterator[tuple[int, int, bytes]]:
    """File number, number of the first line, and a block of whole lines, for every block of every file.

    Parameters
    ----------
    job : Job
    own : str
        Name of the format that reads.
    skip : collection of int
        Files that are read another way.
    watch : bool
        Refuse lines of other formats; a reader that sees them by itself calls `refuse_foreign` then.

    Raises
    ------
    CalibrationError
        A line of another format: two engines wrote the file, or two kinds of record are mixed in it.
    """
    for file, path in enumerate(job.files):
        if file in skip:
            continue
        for line, data in _files.line_blocks(
            path,
            error=CalibrationError,
            holds="a step log holds one record a line",
            cut=partial(job.ledger.cut, path),
        ):
            if watch:
                refuse_foreign(job, own, file, line, data)
            yield file, line, data


def refuse_foreign(job: Job, own: str, file: int, line: int, data: bytes) -> None:
    """Raise where a block holds a line of another format."""
    for sign, name in job.foreign:
        at = data.find(sign)
        if at >= 0:
            number = line + data.count(b"\n", 0, at)
            raise CalibrationError(
                f"the file is {own} up to here, and {name} begins in this line",
                where=f"{job.files[file]}:{number}",
                fix=f"give the lines of one engine in one file, or read one with --format {own}",
            )


def matches(
    job: Job, own: str, pattern: re.Pattern[bytes], sign: bytes, expected: str
) -> Iterator[tuple[int, bytes, list[re.Match[bytes]], Ints]]:
    """Matches of a pattern in a log, block by block; lines with the sign and without a match are bad lines.

    Yields
    ------
    file, block, matches, line numbers
    """
    for file, line, data in blocks(job, own):
        found = list(pattern.finditer(data))
        numbers = line_numbers(data, line, [m.start() for m in found])
        if data.count(sign) != len(found):
            _report(job, file, line, data, pattern, sign, expected)
        yield file, data, found, numbers


def number(text: bytes) -> float:
    """A number of a log, or NaN."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def line_numbers(data: bytes, first: int, starts: list[int]) -> Ints:
    """Line number of every position (ascending) in a block whose first line has the number ``first``."""
    ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n"))
    numbers: Ints = np.searchsorted(ends, np.asarray(starts, dtype=np.int64)) + first
    return numbers


def _report(
    job: Job, file: int, line: int, data: bytes, pattern: re.Pattern[bytes], sign: bytes, expected: str
) -> None:
    for number, raw in enumerate(data.split(b"\n"), start=line):
        if sign in raw and not pattern.search(raw):
            text = raw.decode(errors="replace").strip()
            at = max(text.find(sign.decode()) - 20, 0)
            shown: Any = repr(text[at : at + 100])
            job.ledger.bad(
                f"the line {shown} has another shape", path=job.files[file], line=number, expected=expected
            )

"""What a trace format is: a name, how its files look, and a function that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise.traces.readers.json_array import begins_array, first_record
from equipoise.traces.readers.json_lines import decode
from equipoise.traces.readers.problems import Problems
from equipoise.traces.readers.source import head, stem
from equipoise.traces.readers.table import BOM, split_header
from equipoise.traces.trace import Trace

__all__ = ["Format", "Head", "Job", "look"]


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, as far as telling formats apart needs it.

    Parameters
    ----------
    path : Path
    folder : bool
    magic : bytes
        First four bytes of the content.
    first_line : str
        First line that is not empty, or as much of it as was looked at.
    columns : tuple of str
        Its fields, read as a CSV header.
    record : dict
        The first JSON object, by itself or in an array; empty where there is none, keys without values where it is too
        long to see its end.
    """

    path: Path
    folder: bool = False
    magic: bytes = b""
    first_line: str = ""
    columns: tuple[str, ...] = ()
    record: dict[str, Any] | None = None

    def has(self, *names: str) -> bool:
        """Whether the CSV header holds all of these columns."""
        return all(name in self.columns for name in names)

    def keys(self, *names: str) -> bool:
        """Whether the first JSON object holds all of these keys."""
        return self.record is not None and all(name in self.record for name in names)


@dataclass(frozen=True, slots=True)
class Job:
    """One file to read and how.

    Parameters
    ----------
    path : Path
    problems : Problems
    columns : dict of str to str, optional
        Target to column of the file (generic formats).
    seed : int
        For what a format leaves to chance.
    """

    path: Path
    problems: Problems
    columns: dict[str, str] | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """Name of the trace."""
        return stem(self.path)


@dataclass(frozen=True, slots=True)
class Format:
    """One trace format.

    Parameters
    ----------
    name : str
        As given to ``--format``.
    title : str
        One line for lists.
    sniff : callable
        Whether a file with this head is of this format.
    read : callable
        Reads one file; arrivals that are unknown are offsets inside the session.
    example : str
        A few lines of such a file.
    folder : bool
        A folder of such files is one trace.
    """

    name: str
    title: str
    sniff: Callable[[Head], bool]
    read: Callable[[Job], Trace]
    example: str
    folder: bool = False


def look(path: Path) -> Head:
    """Look at the beginning of a file."""
    if path.is_dir():
        return Head(path, folder=True)
    raw = head(path)
    text = raw.removeprefix(BOM).lstrip()
    first = text.partition(b"\n")[0].rstrip(b"\r")
    record = None
    array = begins_array(text)
    if array and text[1:].lstrip().startswith(b"]"):
        first = b""  # an array of nothing is an empty file
    elif array:
        record = first_record(text) or _keys_seen(text)
    elif first.startswith(b"{"):
        try:
            record = decode(first)
        except ValueError:
            record = _keys_seen(text)
    first_line = first.decode(errors="replace")
    return Head(
        path,
        magic=raw[:4],
        first_line=first_line,
        columns=tuple(split_header(first_line)[0]) if record is None and len(first) < 65536 else (),
        record=record if isinstance(record, dict) else None,
    )


def _keys_seen(text: bytes) -> dict[str, Any]:
    """For an object that goes on beyond what was looked at, or is printed over many lines."""
    return {key: None for key in _KEYS if b'"' + key.encode() + b'"' in text}


_KEYS = (
    "requests",
    "block_size",
    "hash_id_scope",
    "timestamp",
    "input_length",
    "output_length",
    "chat_id",
    "in",
    "out",
)

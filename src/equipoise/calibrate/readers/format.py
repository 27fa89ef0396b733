"""What a step-log format is: a name, how its files look, and a function that reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from equipoise import _files
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError
from equipoise.traces.readers.table import BOM, split_header

__all__ = ["Format", "Head", "Job", "has_sign", "look"]

HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a file, as far as telling formats apart needs it.

    Parameters
    ----------
    path : Path
    data : bytes
        Decompressed, at most `HEAD_BYTES`.
    """

    path: Path
    data: bytes

    @property
    def is_json(self) -> bool:
        """Whether the content begins like a JSON object or list."""
        return self.data.removeprefix(BOM).lstrip()[:1] in (b"{", b"[") and not self.is_log

    @property
    def is_log(self) -> bool:
        """Whether the first line begins with a bracket that no JSON value has, as the stamps of logs do."""
        text = self.data.removeprefix(BOM).lstrip()
        return text[:1] == b"[" and text[1:2] not in (b"", b" ", b"\n", b"\r", b"\t", b"{", b"[", b"]")

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields of the first line that is not empty, read as a CSV header."""
        first = self.data.removeprefix(BOM).lstrip().partition(b"\n")[0].rstrip(b"\r")
        return () if len(first) > 65536 else tuple(split_header(first.decode(errors="replace"))[0])


@dataclass(frozen=True, slots=True)
class Job:
    """Files of one format and how to read them.

    Parameters
    ----------
    files : tuple of Path
    ledger : Ledger
    columns : dict of str to str, optional
        Target to column (format ``columns``).
    kv_capacity_tokens : int, optional
        Tokens that fit into a rank's KV cache, where a log gives only its use in percent.
    decode_log_interval : int
        Decode steps between two log lines.
    without_context : bool
        Accept a log that has no context lengths.
    foreign : tuple of (bytes, str)
        What marks a line of another format, and that format's name; empty where the caller named the format.
    """

    files: tuple[Path, ...]
    ledger: Ledger
    columns: dict[str, str] | None = None
    kv_capacity_tokens: int | None = None
    decode_log_interval: int = 40
    without_context: bool = False
    foreign: tuple[tuple[bytes, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """One step-log format.

    Parameters
    ----------
    name : str
        As given to ``--format``.
    title : str
        One line for lists.
    sniff : callable
        Whether a file with this head is of this format.
    read : callable
        Reads files into one table a group; logs are one group.
    example : str
        A line of such a file.
    sign : bytes
        Text that only lines of this format hold; empty for tables.
    """

    name: str
    title: str
    sniff: Callable[[Head], bool]
    read: Callable[[Job], list[StepRecords]]
    example: str
    sign: bytes = b""


def look(path: Path) -> Head:
    """Look at the beginning of a file."""
    return Head(path, _files.head(path, HEAD_BYTES, error=CalibrationError))


def has_sign(sign: bytes, *, json: bool) -> Callable[[Head], bool]:
    """A sniffer: the head holds the sign, in a file that is JSON or is not."""

    def sniff(head: Head) -> bool:
        return head.is_json is json and sign in head.data

    return sniff

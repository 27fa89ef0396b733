"""Rows of a run while it goes on, and how the parts become the tables: a run that is killed keeps every finished row.

While a run goes on its rows are appended to ``parts/NNN-requests.jsonl`` and ``parts/NNN-scrapes.jsonl``; the operating
system has them within half a second. A run that is done is made a Parquet of, and the tables of the folder anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from equipoise.errors import InputError
from equipoise.live.about import About, read_about
from equipoise.live.rows import TABLES, empty, read_table, table_path, write_table

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "LiveFolder",
    "PartWriter",
    "RequestRow",
    "ScrapeRow",
    "collect",
    "gather",
    "part_path",
    "read_folder",
]

MEASURED = ("requests", "scrapes")
"""Tables that runs add to."""


class RequestRow(msgspec.Struct, kw_only=True):
    """A row of ``requests``."""

    policy: str
    repeat: int
    order: int
    request: int
    intended_s: float
    sent_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    rank: int = -1
    instance: str = ""
    outcome: str = ""
    message: str | None = None
    itl_ms: list[float] = []


class ScrapeRow(msgspec.Struct, kw_only=True):
    """A row of ``scrapes``."""

    policy: str
    repeat: int
    at_s: float
    instance: str
    rank: int
    running: int
    waiting: int
    context_tokens: int | None
    kv_usage: float | None
    own_requests: int
    own_context_tokens: int


def part_path(folder: Path, name: str, table: str, ending: str = "parquet") -> Path:
    """Where a part of a table lies."""
    return folder / "parts" / f"{name}-{table}.{ending}"


class PartWriter:
    """Takes the rows of one run.

    Parameters
    ----------
    folder : Path
        Of the whole.
    name : str
        Of the run: its number.

    Raises
    ------
    InputError
        The folder cannot be written.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._encode = msgspec.json.Encoder().encode
        self._files: dict[str, IO[bytes]] = {}
        self.rows = 0
        try:
            (folder / "parts").mkdir(parents=True, exist_ok=True)
            for table in MEASURED:
                part_path(folder, name, table).unlink(missing_ok=True)  # of an earlier try
                self._files[table] = part_path(folder, name, table, "jsonl").open("wb")
        except OSError as error:
            raise _unwritable(folder, error) from error

    def add(self, row: RequestRow | ScrapeRow) -> None:
        """Keep a row."""
        self._files["requests" if isinstance(row, RequestRow) else "scrapes"].write(self._encode(row) + b"\n")
        self.rows += 1

    def flush(self) -> None:
        """Hand what there is to the operating system."""
        try:
            for file in self._files.values():
                file.flush()
        except OSError as error:
            raise _unwritable(self._folder, error) from error

    def close(self) -> None:
        """The run is over."""
        try:
            for file in self._files.values():
                file.close()
        except OSError as error:
            raise _unwritable(self._folder, error) from error


def _unwritable(folder: Path, error: OSError) -> InputError:
    reason = error.strerror or str(error)
    return InputError(f"cannot be written ({reason})", where=str(folder), fix="choose another --output-dir")


def collect(folder: Path) -> None:
    """Make the tables of what the parts hold; rows of a run that was cut off are among them.

    Raises
    ------
    InputError
        A part cannot be read, or a table not be written.
    """
    for table in MEASURED:
        for lines in sorted((folder / "parts").glob(f"*-{table}.jsonl")):
            write_table(lines.with_suffix(".parquet"), table, _rows(lines, table))
            lines.unlink()
        write_table(table_path(folder, table), table, gather(folder, table))


def gather(folder: Path, table: str) -> pl.DataFrame:
    """All rows of the numbered parts of a table, those of a run under way included; nothing is written."""
    import polars as pl

    frames = [empty(table)]
    for part in sorted((folder / "parts").glob(f"[0-9]*-{table}.*")):
        if part.suffix == ".parquet":
            frames.append(read_table(part, table))
        elif part.suffix == ".jsonl":
            frames.append(_rows(part, table))
    return pl.concat(frames)


def _rows(path: Path, table: str) -> pl.DataFrame:
    """Whole lines of a part; one that was cut off in the middle is left out."""
    import polars as pl

    kind = {"requests": RequestRow, "scrapes": ScrapeRow}[table]
    decode = msgspec.json.Decoder(kind).decode
    found = []
    for line in _lines(path):
        try:
            found.append(msgspec.structs.asdict(decode(line)))
        except msgspec.MsgspecError:
            continue
    return pl.DataFrame(found, schema=dict(TABLES[table]))


def _lines(path: Path) -> Iterable[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be read ({reason})", where=str(path), fix="check its rights") from error


@dataclass(frozen=True, slots=True)
class LiveFolder:
    """What a live run left behind: all that an analysis reads.

    Parameters
    ----------
    about : About
    trace, requests, scrapes : DataFrame
        `equipoise.live.rows.TABLES`.
    steps : DataFrame
        Without rows where no step was measured.
    """

    about: About
    trace: pl.DataFrame
    requests: pl.DataFrame
    scrapes: pl.DataFrame
    steps: pl.DataFrame


def read_folder(folder: str | Path) -> LiveFolder:
    """Read the folder of a live run, finished, stopped or killed.

    Raises
    ------
    InputError
        It is no such folder, or damaged.
    """
    folder = Path(folder)
    about = read_about(folder)
    steps = table_path(folder, "steps")
    # While a run goes on, and after it was killed, the tables lack what the parts have.
    whole = not any((folder / "parts").glob("*.jsonl")) and table_path(folder, "requests").exists()
    requests, scrapes = (
        read_table(table_path(folder, t), t) if whole else gather(folder, t) for t in MEASURED
    )
    return LiveFolder(
        about,
        read_table(table_path(folder, "trace"), "trace"),
        requests,
        scrapes,
        read_table(steps, "steps") if steps.exists() else empty("steps"),
    )

"""Records of JSON files: one a line, a list of them a line, or one document printed over many lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equipoise import _files
from equipoise.calibrate.readers.format import Job
from equipoise.calibrate.readers.rows import Rows
from equipoise.calibrate.readers.text import blocks
from equipoise.errors import CalibrationError
from equipoise.traces.readers.json_lines import decode
from equipoise.traces.readers.table import BOM

__all__ = ["Table", "records", "whole_number"]

DOCUMENT_BYTES = 256 << 20
LIMIT = 1 << 53


def records(job: Job, own: str, what: str) -> Iterator[tuple[int, int, Any]]:
    """File number, line number (0 in a document of many lines) and value of every record.

    Parameters
    ----------
    job : Job
    own : str
        Name of the format that reads.
    what : str
        What a record is, for messages.
    """
    documents = set()
    for file, path in enumerate(job.files):
        if not _one_a_line(path):
            documents.add(file)
            yield from _document(job, file, path, what)
    for file, line, data in blocks(job, own, skip=documents):
        for number, raw in enumerate(data.split(b"\n"), start=line):
            if not raw.strip():
                continue
            try:
                value = decode(raw.removeprefix(BOM))
            except ValueError as error:
                shown = raw[:40].decode(errors="replace").strip()
                job.ledger.bad(
                    f"the line {shown!r} {error}", path=job.files[file], line=number, expected=what
                )
                continue
            for record in value if isinstance(value, list) else [value]:
                yield file, number, record


def _one_a_line(path: Path) -> bool:
    first = _files.head(path, 1 << 20, error=CalibrationError).removeprefix(BOM).lstrip().partition(b"\n")[0]
    if len(first) >= (1 << 20) - 4:
        return True
    try:
        decode(first)
    except ValueError:
        # A document that is printed over many lines begins with a line of a few brackets.
        return len(first) > 2 and first[:1] not in b"{["
    return True


def _document(job: Job, file: int, path: Path, what: str) -> Iterator[tuple[int, int, Any]]:
    data = _files.whole(
        path,
        DOCUMENT_BYTES,
        error=CalibrationError,
        smaller="turn the list into JSON lines (jq -c '.[]' FILE)",
    )
    try:
        value = decode(data.removeprefix(BOM))
    except ValueError as error:
        job.ledger.bad(f"the document {error}", path=path, expected=what)
        return
    for record in value if isinstance(value, list) else [value]:
        yield file, 0, record


class Table:
    """Rows given one at a time, kept as arrays of a few thousand."""

    SIZE = 1 << 14

    def __init__(self) -> None:
        self.rows = Rows()
        self._pending: list[dict[str, Any]] = []

    def add(self, file: int, line: int, **values: Any) -> None:
        """Add a row."""
        values["file"], values["line"] = file, line
        self._pending.append(values)
        if len(self._pending) >= self.SIZE:
            self._flush()

    def _flush(self) -> None:
        for file in dict.fromkeys(row["file"] for row in self._pending):
            rows = [row for row in self._pending if row["file"] == file]
            lines = np.array([row["line"] for row in rows], np.int64)
            names = [name for name in rows[0] if name not in ("file", "line")]
            self.rows.add(file, lines, **{name: np.array([row[name] for row in rows]) for name in names})
        self._pending = []

    def columns(self) -> dict[str, Any]:
        """All rows as columns."""
        self._flush()
        return self.rows.columns()


def whole_number(value: Any, what: str) -> int:
    """A count out of a JSON record; ValueError names it."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) >= LIMIT:
        raise ValueError(f"{what} = {value!r:.40}")
    return int(value)

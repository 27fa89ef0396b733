"""What a reader could not use: bad lines up to a limit, requests a format declares void, and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from equipoise.errors import TraceError

__all__ = ["Problems", "ReadReport", "show"]

KEPT_MESSAGES = 5


@dataclass(frozen=True, slots=True)
class ReadReport:
    """How a file became a trace.

    Parameters
    ----------
    format : str
        Name of the format it was read as.
    files : int
        Files read.
    rows : int
        Requests in the trace.
    skipped : int
        Bad lines tolerated under ``skip_bad``.
    first_skipped : tuple of str
        The first few of them, in words.
    dropped : dict of str to int
        Requests the format itself declares void, by reason.
    notes : tuple of str
        What else was done: sorted arrivals, drawn arrivals, guessed columns.
    """

    format: str
    files: int
    rows: int
    skipped: int
    first_skipped: tuple[str, ...]
    dropped: dict[str, int]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{self.format}, {self.files:,} files" if self.files > 1 else self.format,
            f"{self.rows:,} requests",
        ]
        if self.skipped:
            parts.append(f"{self.skipped:,} bad {'line' if self.skipped == 1 else 'lines'} skipped")
        parts += [f"{count:,} dropped: {reason}" for reason, count in self.dropped.items()]
        return "; ".join([*parts, *self.notes])


@dataclass(slots=True)
class Problems:
    """Collects what goes wrong while a file is read; raises once ``skip_bad`` is exceeded."""

    path: Path
    skip_bad: int = 0
    skipped: int = 0
    messages: list[str] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unit: str = "line"
    """What a line number counts: the lines of the file, or the elements of a JSON array."""

    def bad(
        self,
        what: str,
        *,
        line: int | None = None,
        column: str | None = None,
        expected: str,
        path: Path | None = None,
    ) -> None:
        """Book one bad line.

        Parameters
        ----------
        what : str
            The problem, with the offending value in it.
        line : int, optional
            Line number from 1.
        column : str, optional
            Column or key.
        expected : str
            What should have stood there.
        path : Path, optional
            The file, where a folder is read.

        Raises
        ------
        TraceError
            More than ``skip_bad`` of them.
        """
        where = str(path or self.path)
        if line is not None:
            where += f":{line}" if self.unit == "line" else f", {self.unit} {line}"
        if column is not None:
            where += f", column {column}"
        self.skipped += 1
        if self.skipped > self.skip_bad:
            limit = (
                f"bad {self.unit} number {self.skipped}, and only {self.skip_bad} may be skipped"
                if self.skip_bad
                else f"or skip up to N bad {self.unit}s with skip_bad=N (--skip-bad N)"
            )
            raise TraceError(what, where=where, fix=f"expected {expected}; {limit}")
        if len(self.messages) < KEPT_MESSAGES:
            self.messages.append(f"{where}: {what}")

    def drop(self, reason: str, count: int = 1) -> None:
        """Count requests that the format itself declares void."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def note(self, text: str) -> None:
        """Say what else was done to the data."""
        if text not in self.notes:
            self.notes.append(text)

    def report(self, fmt: str, rows: int, files: int = 1) -> ReadReport:
        """Sum up."""
        return ReadReport(
            format=fmt,
            files=files,
            rows=rows,
            skipped=self.skipped,
            first_skipped=tuple(self.messages),
            dropped=dict(self.dropped),
            notes=tuple(self.notes),
        )


def show(value: object, limit: int = 60) -> str:
    """A value as it may stand in a message: one line, not too long."""
    if isinstance(value, str):
        text = repr(value) if value else "nothing"
    elif value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, int) and value.bit_length() > 256:
        text = f"an integer of {value.bit_length()} bits"
    elif isinstance(value, (dict, Sequence)) and not isinstance(value, bytes):
        text = f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."

"""What a reader could not use or had to assume: bad lines up to a limit, rows dropped by reason, notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from equipoise.calibrate.records import Drop
from equipoise.errors import CalibrationError, InputError

__all__ = ["BAD_LINE", "Ledger"]

BAD_LINE = "bad line"


@dataclass(slots=True)
class Ledger:
    """Books what happens while files are read; raises once ``skip_bad`` is exceeded.

    Parameters
    ----------
    skip_bad : int
        Bad lines tolerated.
    """

    skip_bad: int = 0
    _drops: dict[str, Drop] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def bad(self, what: str, *, path: Path, line: int | None = None, expected: str, fix: str = "") -> None:
        """Book one bad line.

        Parameters
        ----------
        what : str
            The problem, with the offending value in it.
        path : Path
        line : int, optional
            From 1.
        expected : str
            What should have stood there.
        fix : str, optional
            What else may be done about it.

        Raises
        ------
        CalibrationError
            More than ``skip_bad`` of them.
        """
        where = str(path) if line is None else f"{path}:{line}"
        self.drop(BAD_LINE, 1, where)
        count = self._drops[BAD_LINE].rows
        if count > self.skip_bad:
            limit = (
                f"bad line number {count}, and only {self.skip_bad} may be skipped"
                if self.skip_bad
                else "or skip up to N bad lines with skip_bad=N (--skip-bad N)"
            )
            raise CalibrationError(
                what, where=where, fix="; ".join(t for t in (f"expected {expected}", fix, limit) if t)
            )
        if count == 1:
            self.note(f"The first bad line is {where}: {what}.")

    def cut(self, path: Path, error: InputError, line: int) -> None:
        """Book a compressed file that is broken at a line; what was read before it may be used under ``skip_bad``."""
        if self.skip_bad == 0:
            fix = f"{error.fix}, or use the {line - 1:,} lines before it with skip_bad=1 (--skip-bad 1)"
            raise CalibrationError(error.what, where=f"{path}:{line}", fix=fix)
        self.bad(error.what, path=path, line=line, expected="the rest of the file")
        self.note(f"{path.name} ends in line {line:,}: {error.what}; the lines before it are used.")

    def drop(self, reason: str, rows: int, first: str = "") -> None:
        """Count rows that are left out."""
        if rows:
            before = self._drops.get(reason)
            self._drops[reason] = (
                Drop(reason, before.rows + rows, before.first) if before else Drop(reason, rows, first)
            )

    def note(self, text: str) -> None:
        """Say once what a person should know."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def dropped(self) -> tuple[Drop, ...]:
        """Everything left out so far."""
        return tuple(self._drops.values())

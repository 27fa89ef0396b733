"""Growing columns: chunks of arrays, joined column by column so that no second copy of everything is held."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Columns", "Rows"]

Columns = dict[str, NDArray[Any]]


class Rows:
    """Collects chunks of equal columns."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[NDArray[Any]]] = {}

    def add(self, file: int, line: NDArray[Any], **columns: Any) -> None:
        """Add a chunk of rows of one file.

        Parameters
        ----------
        file : int
            Number of the file in the job.
        line : int array
            Line numbers.
        **columns
            Arrays of the same length.
        """
        if len(line) == 0:
            return
        for name, values in (
            ("file", np.full(len(line), file, np.int16)),
            ("line", np.asarray(line, np.int64)),
            *columns.items(),
        ):
            self._chunks.setdefault(name, []).append(np.asarray(values))

    def columns(self) -> Columns:
        """All rows; the collected chunks are given up."""
        joined: Columns = {}
        for name in list(self._chunks):
            joined[name] = np.concatenate(self._chunks.pop(name))
        return joined or {"file": np.zeros(0, np.int16), "line": np.zeros(0, np.int64)}

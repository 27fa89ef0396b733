"""Ledgers of several front-end processes of one engine, side by side in shared memory.

Each process writes the sums of its own requests, rank by rank, into a row of its own, and reads those of the others
before it places: nobody writes what another wrote, so there is nothing to lock. A number is one aligned word, read
whole or not at all; a row may be read between two of its numbers being written, which is off by the request under way.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import tempfile
from pathlib import Path

import numpy as np

from equipoise.errors import EngineError
from equipoise.types import Ints

__all__ = ["Peers"]

SHARED = Path("/dev/shm")
LEAST_RANKS = 1024
"""Room in a row: an engine that grows has the same file."""


class Peers:
    """Rows of the processes that serve one engine.

    Parameters
    ----------
    key : str
        The same in all of them, and in no others.
    count, index : int
        How many there are, and which this is.
    ranks : int
        Of the engine.
    folder : Path, optional
        Where the file is; none: shared memory.

    Raises
    ------
    EngineError
        There is such a file, and it is not ours.
    """

    def __init__(self, key: str, count: int, index: int, ranks: int, folder: Path | None = None) -> None:
        if folder is None:
            folder = SHARED if SHARED.is_dir() else Path(tempfile.gettempdir())
        digest = hashlib.sha256(f"{os.getuid()} {count} {key}".encode()).hexdigest()[:24]
        self.path = folder / f"equipoise-{digest}"
        self._room, self._index, self.count = max(LEAST_RANKS, ranks), index, count
        size = (count + count * 2 * self._room) * 8
        file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(file)
            if found.st_uid != os.getuid() or not stat.S_ISREG(found.st_mode):
                raise EngineError(f"{self.path} is not a file of this user")
            if found.st_size < size:
                os.ftruncate(file, size)
            self._map = mmap.mmap(file, size)
        finally:
            os.close(file)
        words = np.frombuffer(self._map, np.int64)
        self._rows = words[count:].reshape(count, 2, self._room)
        self._rows[index] = 0  # what a process before this one has left
        here = words[:count]
        here[index] = 1
        if here.all():  # all have it open: its name is not needed any more, and cannot be left behind
            self.path.unlink(missing_ok=True)

    def write(self, batch: Ints, context_tokens: Ints) -> None:
        """Say what this process has on the ranks."""
        row = self._rows[self._index]
        row[0, : len(batch)] = batch
        row[1, : len(batch)] = context_tokens

    def read(self, ranks: int) -> tuple[Ints, Ints]:
        """What all others have on the ranks: requests, tokens."""
        sums = self._rows.sum(axis=0) - self._rows[self._index]
        return sums[0, :ranks], sums[1, :ranks]

"""Files of a live run: whole or not there, and on the disk before they take their name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from equipoise import _replacing

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """As `equipoise._replacing.replacing`; makes the folder, and outlives the machine's next minute.

    Raises
    ------
    InputError
        It cannot be written.
    """
    with contextlib.suppress(OSError):  # said when the file is opened
        path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing.replacing(path, durable=True) as file:
        yield file

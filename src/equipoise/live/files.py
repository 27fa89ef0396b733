"""Files that take their name only when they are complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from equipoise.errors import InputError

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file beside the target that takes its name if the block succeeds, and goes if it does not.

    Raises
    ------
    InputError
        It cannot be written.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # rows of a run that took an hour outlive the machine's next minute
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot be written ({reason})", where=str(path), fix="choose another folder"
        ) from error
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise

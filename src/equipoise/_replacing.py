"""Files that take their name only when they are complete."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from equipoise.errors import InputError

__all__ = ["replacing"]


@contextmanager
def replacing(
    path: Path,
    *,
    error: type[InputError] = InputError,
    fix: str = "choose another folder",
    durable: bool = False,
) -> Iterator[IO[bytes]]:
    """A file beside the target that takes its name if the block succeeds, and goes if it does not, Ctrl-C included.

    Parameters
    ----------
    path : Path
    error : type of InputError
        What to raise where it cannot be written.
    fix : str
    durable : bool
        Whether it is on the disk, not only in the system's memory, before it takes its name.
    """
    # beside the target: a rename across file systems would not be one step
    partial = path.parent / f".{path.name[:100]}.{secrets.token_hex(4)}.part"
    try:
        opened = partial.open("xb")
    except (OSError, ValueError) as problem:  # no such folder; or a name that is no path
        raise _error(problem, path, error, fix) from problem
    try:
        with opened as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(problem, OSError):
            raise _error(problem, path, error, fix) from problem
        raise


def _error(problem: Exception, path: Path, error: type[InputError], fix: str) -> InputError:
    reason = getattr(problem, "strerror", None) or str(problem)
    return error(f"cannot be written ({reason})", where=str(path), fix=fix)

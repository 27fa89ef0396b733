"""Text that goes to standard output, or to a file if one is named."""

from __future__ import annotations

from pathlib import Path

from equipoise.errors import InputError

__all__ = ["give"]


def give(text: str, output: Path | None) -> None:
    """Print it, or write it to a file.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{str(output)!r} cannot be written ({error.strerror})", where="--output", fix="name another file"
        ) from error

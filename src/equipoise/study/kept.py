"""What folders of finished runs have in common: the folder, and what every run depends on."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

from equipoise.errors import InputError

__all__ = ["file_stamps", "made_folder", "package_digest"]


def made_folder(folder: Path) -> Path:
    """The folder, made if it is not there.

    Raises
    ------
    InputError
        It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot make {str(folder)!r}: {error.strerror}",
            where="--checkpoint-dir",
            fix="choose another",
        ) from error
    return folder


@cache
def package_digest() -> str:
    """Digest of all that this package is made of: code, presets, schemas."""
    package = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".toml", ".json")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def file_stamps(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of the files of a trace; none for a preset."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in files]

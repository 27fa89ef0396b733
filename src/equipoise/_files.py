"""Bytes of an input file: plain, gzip or zstd, told apart by their first bytes, in blocks of whole lines.

Every room that reads files of users reads them through here, each with its own kind of error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.errors import InputError

__all__ = ["count_lines", "head", "line_blocks", "parquet_errors", "preset_texts", "whole"]

READ_BYTES = 1 << 16
"""Compressed bytes taken at a time: a hostile file may expand a thousandfold."""
BLOCK_BYTES = 8 << 20
"""Decompressed bytes parsed at a time; memory follows the columns, not the file."""
MAX_LINE_BYTES = 64 << 20
"""A longer line is not a record of anything."""
NEWLINE = ord("\n")
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def head(path: Path, size: int = 1 << 18, *, error: type[InputError] = InputError) -> bytes:
    """The first bytes of the content, at most ``size``; a file cut short still has a head."""
    got = bytearray()
    try:
        for chunk in _content(path, error):
            got += chunk
            if len(got) >= size:
                break
    except error:
        if not got:
            raise
    return bytes(got[:size])


def whole(
    path: Path, limit: int = 1 << 30, *, error: type[InputError] = InputError, smaller: str = "split it"
) -> bytes:
    """The whole content, for formats that are one document; refused above ``limit`` bytes.

    Parameters
    ----------
    path : Path
    limit : int
        Bytes.
    error : type of InputError
        What to raise.
    smaller : str
        The fix for a document that is too large.
    """
    got = bytearray()
    for chunk in _content(path, error):
        got += chunk
        if len(got) > limit:
            raise error(
                f"the document is larger than {limit >> 20} MiB",
                where=str(path),
                fix=smaller,
            )
    return bytes(got)


def line_blocks(
    path: Path,
    *,
    error: type[InputError] = InputError,
    holds: str = "split it into lines",
    cut: Callable[[InputError, int], None] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, each with the number of its first line (from 1).

    Every block ends with a newline except perhaps the last one of the file.

    Parameters
    ----------
    path : Path
    error : type of InputError
        What to raise.
    holds : str
        The fix for a line that is too long.
    cut : callable, optional
        Told the error and the number of the line that could not be finished when compressed data is corrupt or ends in
        the middle, after the whole lines before it were given out. If it does not raise, the file ends there.
        Without it the error is raised at once.
    """
    number = 1
    pending = bytearray()
    content = _content(path, error)
    while True:
        try:
            chunk = next(content, b"")
        except error as broken:
            if cut is None:
                raise
            whole_lines = bytes(pending[: pending.rfind(b"\n") + 1])
            if whole_lines:
                yield number, whole_lines
            cut(broken, number + whole_lines.count(b"\n"))
            return
        if not chunk:
            break
        pending += chunk
        if len(pending) < BLOCK_BYTES:
            continue
        end = pending.rfind(b"\n") + 1
        if end == 0:
            if len(pending) > MAX_LINE_BYTES:
                raise error(
                    f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", where=f"{path}:{number}", fix=holds
                )
            continue
        with memoryview(pending) as view:  # one copy, not two
            block = bytes(view[:end])
        del pending[:end]
        yield number, block
        number += _newlines(block)
    if pending:
        yield number, bytes(pending)


def count_lines(block: bytes) -> int:
    """Lines in a block, an unfinished last one included."""
    return _newlines(block) + (0 if block.endswith(b"\n") or not block else 1)


def _newlines(block: bytes) -> int:
    """As ``block.count``, three times as fast."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == NEWLINE))


def _content(path: Path, error: type[InputError]) -> Iterator[bytes]:
    with _file_errors(path, error), path.open("rb") as file:
        first = file.read(READ_BYTES)
        raw = _raw(first, file)
        if first.startswith(GZIP):
            yield from _inflate(raw, lambda: zlib.decompressobj(wbits=31), path, "gzip", error)
        elif first.startswith(ZSTD):
            import zstandard

            yield from _inflate(
                raw, lambda: zstandard.ZstdDecompressor().decompressobj(), path, "zstd", error
            )
        else:
            yield from raw


def _raw(first: bytes, file: Any) -> Iterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = file.read(READ_BYTES)


def _inflate(
    raw: Iterator[bytes], fresh: Callable[[], Any], path: Path, kind: str, error: type[InputError]
) -> Iterator[bytes]:
    """Concatenated frames one after the other; the last one must be complete."""
    frame = fresh()
    begun = False
    try:
        for chunk in raw:
            while chunk:
                begun = True
                out = frame.decompress(chunk)
                if out:
                    yield out
                if not frame.eof:
                    break
                # Padding with zeros between and after members is legal gzip.
                chunk = frame.unused_data.lstrip(b"\0") if kind == "gzip" else frame.unused_data
                frame, begun = fresh(), False
    except OSError:
        raise
    except Exception as problem:  # zlib.error, ZstdError: the libraries share no base class
        raise error(
            f"the {kind} data is corrupt ({_short(problem)})",
            where=str(path),
            fix="download or compress it again",
        ) from problem
    if begun:
        raise error(
            f"the {kind} data ends in the middle",
            where=str(path),
            fix="the file was cut short: download it again",
        )


@contextmanager
def _file_errors(path: Path, error: type[InputError]) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise error(
            f"cannot be read ({reason})", where=str(path), fix="check the path and its rights"
        ) from problem


@contextmanager
def parquet_errors(
    path: Path, error: type[InputError] = InputError, fix: str = "write it again"
) -> Iterator[None]:
    """A Parquet file that is not there or damaged ends in an error of ours, whatever the parser makes of it.

    Parameters
    ----------
    path : Path
    error : type of InputError
    fix : str
        For a damaged one.
    """
    try:
        with _file_errors(path, error):
            yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, error):
        raise
    except BaseException as problem:  # polars panics are not Exceptions
        text = " ".join(str(problem).split())[:120]
        raise error(f"is not a readable Parquet file ({text})", where=str(path), fix=fix) from problem


def _short(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:80]


def preset_texts(package: str) -> dict[str, str]:
    """Texts of the ``presets/*.toml`` that come with a package, by name, sorted."""
    folder = files(package) / "presets"
    texts = {
        f.name.removesuffix(".toml"): f.read_text("utf-8")
        for f in folder.iterdir()
        if f.name.endswith(".toml")
    }
    return {name: texts[name] for name in sorted(texts)}

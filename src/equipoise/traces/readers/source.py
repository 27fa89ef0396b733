"""Bytes of a trace file: plain, gzip or zstd, told apart by their first bytes, in blocks of whole lines."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.errors import TraceError

__all__ = ["MAX_LINE_BYTES", "count_lines", "head", "line_blocks", "stem", "whole"]

READ_BYTES = 1 << 16
"""Compressed bytes taken at a time: a hostile file may expand a thousandfold."""
BLOCK_BYTES = 8 << 20
"""Decompressed bytes parsed at a time; memory follows the columns, not the file."""
MAX_LINE_BYTES = 64 << 20
"""A longer line is not a request."""
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SUFFIXES = (".gz", ".zst", ".csv", ".jsonl", ".json", ".parquet", ".ndjson", ".txt", ".tsv")


def stem(path: Path) -> str:
    """File name without the endings of formats and compressions, as the name of the trace."""
    name = path.name
    while True:
        for suffix in SUFFIXES:
            if name.lower().endswith(suffix) and len(name) > len(suffix):
                name = name[: -len(suffix)]
                break
        else:
            return name


def head(path: Path, size: int = 1 << 18) -> bytes:
    """The first bytes of the content, at most ``size``; a file cut short still has a head."""
    got = bytearray()
    try:
        for chunk in _content(path):
            got += chunk
            if len(got) >= size:
                break
    except TraceError:
        if not got:
            raise
    return bytes(got[:size])


def whole(path: Path, limit: int = 1 << 30) -> bytes:
    """The whole content, for formats that are one document; refused above ``limit`` bytes."""
    got = bytearray()
    for chunk in _content(path):
        got += chunk
        if len(got) > limit:
            raise TraceError(
                f"the document is larger than {limit >> 20} MiB",
                where=str(path),
                fix="split it into one file a session",
            )
    return bytes(got)


def line_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines, each with the number of its first line (from 1).

    Every block ends with a newline except perhaps the last one of the file.
    """
    number = 1
    pending = bytearray()
    for chunk in _content(path):
        pending += chunk
        if len(pending) < BLOCK_BYTES:
            continue
        cut = pending.rfind(b"\n") + 1
        if cut == 0:
            if len(pending) > MAX_LINE_BYTES:
                raise TraceError(
                    f"the line is longer than {MAX_LINE_BYTES >> 20} MiB",
                    where=f"{path}:{number}",
                    fix="a trace holds one request a line",
                )
            continue
        block = bytes(pending[:cut])
        del pending[:cut]
        yield number, block
        number += block.count(b"\n")
    if pending:
        yield number, bytes(pending)


def count_lines(block: bytes) -> int:
    """Lines in a block, an unfinished last one included."""
    return block.count(b"\n") + (0 if block.endswith(b"\n") or not block else 1)


def _content(path: Path) -> Iterator[bytes]:
    with _file_errors(path), path.open("rb") as file:
        first = file.read(READ_BYTES)
        raw = _raw(first, file)
        if first.startswith(GZIP):
            yield from _inflate(raw, lambda: zlib.decompressobj(wbits=31), path, "gzip")
        elif first.startswith(ZSTD):
            import zstandard

            yield from _inflate(raw, lambda: zstandard.ZstdDecompressor().decompressobj(), path, "zstd")
        else:
            yield from raw


def _raw(first: bytes, file: Any) -> Iterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = file.read(READ_BYTES)


def _inflate(raw: Iterator[bytes], fresh: Callable[[], Any], path: Path, kind: str) -> Iterator[bytes]:
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
    except TraceError:
        raise
    except Exception as error:  # zlib.error, ZstdError: the libraries share no base class
        raise TraceError(
            f"the {kind} data is corrupt ({_short(error)})",
            where=str(path),
            fix="download or compress it again",
        ) from error
    if begun:
        raise TraceError(
            f"the {kind} data ends in the middle",
            where=str(path),
            fix="the file was cut short: download it again",
        )


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(
            f"cannot be read ({reason})", where=str(path), fix="check the path and its rights"
        ) from error


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:80]

"""Records in one JSON array instead of one a line: the array's elements become the lines of a block."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from equipoise.errors import TraceError
from equipoise.traces.readers.source import head, whole
from equipoise.traces.readers.table import BOM

__all__ = ["array_blocks", "begins_array", "first_record", "is_array"]

ELEMENTS_AT_A_TIME = 1 << 16
TO_LINES = "jq -c '.[]' FILE > FILE.jsonl writes one record a line"


def begins_array(text: bytes) -> bool:
    """Whether a text begins like an array of records (or like an empty one)."""
    return text.startswith(b"[") and text[1:].lstrip()[:1] in (b"{", b"]")


def is_array(path: Path) -> bool:
    """Whether a file begins so."""
    return begins_array(head(path).removeprefix(BOM).lstrip())


def first_record(text: bytes) -> dict[str, Any] | None:
    """The first record of an array, None where the text ends before it does or it is no JSON."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text[1:].decode(errors="replace").lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def array_blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Blocks of records, one a line, each with the number of its first element (from 1).

    Raises
    ------
    TraceError
        The file is not one JSON array. Where it ends too early nothing of it is used: an array is one document.
    """
    text = whole(path).removeprefix(BOM)
    try:
        elements = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TraceError(
            f"is no JSON array ({reason})", where=str(path), fix=f"repair it; {TO_LINES}"
        ) from None
    for first in range(0, len(elements), ELEMENTS_AT_A_TIME):
        part = elements[first : first + ELEMENTS_AT_A_TIME]
        # a newline inside a record can only be white space: in a text JSON writes it as \n
        yield first + 1, b"\n".join(bytes(raw).replace(b"\n", b" ") for raw in part)

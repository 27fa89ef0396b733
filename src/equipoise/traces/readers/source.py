"""Bytes of a trace file, in blocks of whole lines, and its name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from equipoise import _files
from equipoise._files import count_lines
from equipoise.errors import TraceError

__all__ = ["count_lines", "head", "line_blocks", "stem", "whole"]

SUFFIXES = (".gz", ".zst", ".csv", ".jsonl", ".json", ".parquet", ".ndjson", ".txt", ".tsv")

head = partial(_files.head, error=TraceError)
"""`equipoise._files.head` of a trace file."""
whole = partial(_files.whole, error=TraceError, smaller="split it into one file a session")
"""`equipoise._files.whole` of a trace file."""
line_blocks = partial(_files.line_blocks, error=TraceError, holds="a trace holds one request a line")
"""`equipoise._files.line_blocks` of a trace file."""


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

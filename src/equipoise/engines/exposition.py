"""Prometheus text, only the families one asks for.

A page has a thousand lines at two ranks and megabytes at 64; a router wants five families of it several times a second.
So the page is searched for their names and only those lines are parsed, strictly: a malformed line of a wanted family
is an error, all others are never looked at. https://prometheus.io/docs/instrumenting/exposition_formats/ (0.0.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from equipoise.errors import EngineError

__all__ = ["Sample", "samples"]

LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\\n]++|\\[^\n])*+)"[ \t]*(,|\})')
NUMBER = re.compile(
    rb"[ \t]*([+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?|[+-]?[iI]nf(?:inity)?|[nN]a[nN])"
)
END = re.compile(rb"[ \t]*(?:[ \t][+-]?\d{1,20})?[ \t\r]*\Z")
ESCAPE = re.compile(rb"\\(.)")
MAX_LINE = 1 << 16
"""A longer line is not a sample of anything."""


class Sample(NamedTuple):
    """One line of the page."""

    labels: dict[str, str]
    value: float


def samples(page: bytes, families: Iterable[str], source: str) -> dict[str, list[Sample]]:
    """The samples of the named families, in the order of the page; a family that is not there has an empty list.

    Parameters
    ----------
    page : bytes
        The page.
    families : iterable of str
        Exact sample names (a counter's ends with ``_total``).
    source : str
        Whose page it is, for messages.

    Raises
    ------
    EngineError
        A line of one of these families is malformed, or not UTF-8.
    """
    return {name: [_sample(line, name, source) for line in _lines(page, name.encode())] for name in families}


def _lines(page: bytes, name: bytes) -> Iterator[bytes]:
    """What follows the name on each line that starts with exactly it."""
    size = len(name)
    at = 0 if page.startswith(name) else page.find(b"\n" + name) + 1
    if at == 0 and not page.startswith(name):
        return
    while True:
        end = page.find(b"\n", at)
        stop = len(page) if end < 0 else end
        after = page[at + size : at + size + 1]
        if after in (b"{", b" ", b"\t"):
            yield page[at + size : stop]
        if end < 0:
            return
        if page.startswith(name, end + 1):  # families stand together: mostly the next line is the next sample
            at = end + 1
            continue
        found = page.find(b"\n" + name, end)
        if found < 0:
            return
        at = found + 1


def _sample(line: bytes, name: str, source: str) -> Sample:
    if len(line) > MAX_LINE:
        raise EngineError(f"{source}: a sample of {name} has {len(line):,} bytes; the limit is {MAX_LINE:,}.")
    labels: dict[str, str] = {}
    at = 0
    if line.startswith(b"{"):
        at = 1
        more = not line[1:].lstrip(b" \t").startswith(b"}")
        if not more:
            at = line.index(b"}") + 1
        while more:
            found = LABEL.match(line, at)
            if found is None:
                # a comma may end the list
                closing = line[at:].lstrip(b" \t")
                if labels and closing.startswith(b"}"):
                    at = len(line) - len(closing) + 1
                    break
                raise _malformed(line, name, source, "its labels")
            labels[found[1].decode()] = _text(found[2], name, source)
            at = found.end()
            more = found[3] == b","
    number = NUMBER.match(line, at)
    if number is None or END.match(line, number.end()) is None:
        raise _malformed(line, name, source, "its value")
    return Sample(labels, float(number[1]))


def _text(raw: bytes, name: str, source: str) -> str:
    if b"\\" in raw:
        raw = ESCAPE.sub(lambda m: b"\n" if m[1] == b"n" else m[1] if m[1] in b'\\"' else m[0], raw)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise EngineError(f"{source}: a label of {name} is not UTF-8.") from error


def _malformed(line: bytes, name: str, source: str, what: str) -> EngineError:
    shown = line[:80].decode("utf-8", "backslashreplace")
    return EngineError(f"{source}: a sample of {name} cannot be read for {what}: {shown!r}.")

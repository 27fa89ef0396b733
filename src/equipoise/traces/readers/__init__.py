"""Trace files of many formats become a `Trace`: `read` tells the format and hands over to its reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path

from equipoise.errors import TraceError, nearest
from equipoise.traces.interleave import assign_session_starts
from equipoise.traces.readers import (
    azure,
    bailian,
    burstgpt,
    claude_sessions,
    generic,
    mooncake,
    parquet,
    servegen_pool,
    vidur,
    weka,
)
from equipoise.traces.readers.format import Format, Head, Job, look
from equipoise.traces.readers.problems import Problems, ReadReport, show
from equipoise.traces.trace import Trace

__all__ = ["FORMATS", "Format", "ReadReport", "detect", "read", "read_with_report"]

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        parquet.FORMAT,
        mooncake.FORMAT,
        bailian.FORMAT,
        azure.FORMAT,
        burstgpt.FORMAT,
        vidur.FORMAT,
        claude_sessions.FORMAT,
        weka.FORMAT,
        servegen_pool.FORMAT,
        *generic.FORMATS,
    )
}
"""All formats by name, in the order they are tried."""

MAX_BAD = 2**31


def read(
    path: str | PathLike[str],
    format: str | None = None,
    *,
    skip_bad: int = 0,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    rate_per_s: float | None = None,
) -> Trace:
    """Read a trace file (plain, gzip or zstd) or a folder of session files.

    Parameters
    ----------
    path : path
    format : str, optional
        One of `FORMATS`; told from the content where it is not given.
    skip_bad : int
        Bad lines tolerated; they are counted in ``Trace.source`` (`read_with_report` gives the numbers).
    columns : mapping of str to str, optional
        For the formats csv, jsonl and parquet: which column holds what, such as
        ``{"context_tokens": "prompt_len", "output_tokens": "gen", "arrival_s": "ts"}``.
    seed : int
        For what a file does not record: starts of sessions, arrivals, draws from a client pool.
    rate_per_s : float, optional
        Requests a second, where arrivals are not recorded (see `assign_session_starts`).

    Returns
    -------
    Trace
        Ordered by arrival; ``source`` says how it was read.

    Raises
    ------
    TraceError
        The file cannot be read, is of no known format or of another than given, or holds a bad line: file, line
        number, column, value and what was expected.
    """
    return read_with_report(
        path, format, skip_bad=skip_bad, columns=columns, seed=seed, rate_per_s=rate_per_s
    )[0]


def read_with_report(
    path: str | PathLike[str],
    format: str | None = None,
    *,
    skip_bad: int = 0,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
    rate_per_s: float | None = None,
) -> tuple[Trace, ReadReport]:
    """`read`, and how it went: rows, lines skipped, requests dropped, notes."""
    path = _existing(path)
    head = look(path)
    if isinstance(skip_bad, bool) or not isinstance(skip_bad, int) or not 0 <= skip_bad <= MAX_BAD:
        raise TraceError(f"skip_bad = {skip_bad!r}", fix=f"expected a whole number from 0 to {MAX_BAD}")
    if format is None:
        chosen = _detect(head, columns)
    elif format in FORMATS:
        chosen = FORMATS[format]
    else:
        raise TraceError(f"the trace format {format!r} is unknown", fix=nearest(format, FORMATS))
    _not_empty(head)
    if head.folder and not chosen.folder:
        raise TraceError("is a folder", where=str(path), fix=f"the format {chosen.name} is one file")
    if columns and chosen.name not in GENERIC:
        raise TraceError(
            f"the format {chosen.name} has columns of its own",
            where="columns",
            fix=f"map columns of {', '.join(GENERIC)}",
        )
    problems = Problems(path, skip_bad)
    trace = chosen.read(Job(path, problems, dict(columns) if columns else None, seed))
    if not trace.arrivals_known and chosen is not parquet.FORMAT:
        trace = assign_session_starts(trace, seed, rate_per_s=rate_per_s)
        what = "session starts" if (trace.session >= 0).any() else "arrivals"
        problems.note(f"{what} are not recorded, drawn with seed {seed}")
    files = len(weka.session_files(path)) if head.folder and chosen is weka.FORMAT else 1
    report = problems.report(chosen.name, len(trace), files)
    if chosen is not parquet.FORMAT:
        trace = replace(trace, source=f"{path.name}: {report}")
    return trace, report


GENERIC = tuple(f.name for f in generic.FORMATS)


def detect(path: str | PathLike[str], *, columns: Mapping[str, str] | None = None) -> Format:
    """Tell the format of a file by its content.

    Parameters
    ----------
    path : path
    columns : mapping, optional
        A column map asks for a generic format.

    Raises
    ------
    TraceError
        Empty, or of no known format.
    """
    return _detect(look(_existing(path)), columns)


def _detect(head: Head, columns: Mapping[str, str] | None) -> Format:
    _not_empty(head)
    if columns:
        if head.magic == parquet.MAGIC:
            return FORMATS["parquet"]
        return FORMATS["jsonl" if head.record is not None else "csv"]
    for candidate in FORMATS.values():
        if head.folder and not candidate.folder:
            continue
        if candidate.sniff(head):
            return candidate
    raise TraceError(
        f"is in no known trace format, {_describe(head)}", where=str(head.path), fix=_advice(head)
    )


def _not_empty(head: Head) -> None:
    if not head.folder and not head.first_line:
        raise TraceError("the file is empty", where=str(head.path), fix="a trace holds at least one request")


def _describe(head: Head) -> str:
    if head.folder:
        return "it is a folder without session files or client pools"
    if "\N{REPLACEMENT CHARACTER}" in head.first_line or "\0" in head.first_line:
        return "it is not text"
    if head.record is not None:
        return f"its first record has the keys {show(', '.join(head.record), 120)}"
    return f"its first line is {show(head.first_line, 80)}"


def _advice(head: Head) -> str:
    known = ", ".join(FORMATS)
    if head.folder or "\0" in head.first_line:
        return f"known formats: {known}"
    return f"name one ({known}), or map the columns (--columns context_tokens=A,output_tokens=B)"


def _existing(path: str | PathLike[str]) -> Path:
    try:
        path = Path(path)
        exists = path.exists()
    except (OSError, TypeError, ValueError) as error:
        raise TraceError(f"{path!r} is not a path ({error})", fix="give the path of a trace file") from None
    if not exists:
        near = _neighbours(path)
        raise TraceError("there is no such file", where=str(path), fix=near or "check the path")
    return path


def _neighbours(path: Path) -> str:
    """Files of a similar name beside a path that does not exist."""
    from difflib import get_close_matches

    try:
        names = [p.name for p in path.parent.iterdir()]
    except OSError:
        return f"there is no folder {path.parent} either"
    close = get_close_matches(path.name, names, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(str(path.parent / name) for name in close)}?" if close else ""

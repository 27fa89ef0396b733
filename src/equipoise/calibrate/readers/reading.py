"""`read`: files of one format, told from their content or named by the caller, become step records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from equipoise import _files
from equipoise.calibrate.readers import (
    aic,
    deepinfer_log,
    fpm,
    sglang_loads,
    sglang_log,
    trtllm_log,
    trtllm_metrics,
    vllm_bench_forward,
    vllm_log,
)
from equipoise.calibrate.readers import columns as generic
from equipoise.calibrate.readers.format import Format, Head, Job, look
from equipoise.calibrate.readers.ledger import Ledger
from equipoise.calibrate.records import StepRecords
from equipoise.errors import CalibrationError, nearest

__all__ = ["FORMATS", "detect", "formats", "read"]

FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        fpm.FORMAT,
        sglang_log.FORMAT,
        vllm_log.FORMAT,
        trtllm_metrics.FORMAT,
        trtllm_log.FORMAT,
        vllm_bench_forward.FORMAT,
        sglang_loads.FORMAT,
        deepinfer_log.FORMAT,
        aic.FORMAT,
        generic.FORMAT,
    )
}
"""All formats by name, in the order they are tried."""

MAX_BAD = 2**31
Paths = str | PathLike[str] | Iterable[str | PathLike[str]]


def formats() -> list[dict[str, str]]:
    """All formats: ``name``, ``title`` (one line) and ``example`` (a line of such a file)."""
    return [{"name": f.name, "title": f.title, "example": f.example} for f in FORMATS.values()]


def read(
    paths: Paths,
    format: str | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    kv_capacity_tokens: int | None = None,
    decode_log_interval: int = 40,
    without_context: bool = False,
    skip_bad: int = 0,
) -> list[StepRecords]:
    """Read step logs or measured tables (plain, gzip or zstd).

    Several files are read together: one log a rank or a worker makes one table.

    Parameters
    ----------
    paths : path or paths
    format : str, optional
        One of `formats`; told from the content where it is not given.
    columns : mapping of str to str, optional
        For the format ``columns``: which column holds what, such as ``{"batch": "n_running", "time_ms": "lat"}``.
    kv_capacity_tokens : int, optional
        Tokens that fit into the KV cache of a rank, for logs that give only its use in percent (vLLM prints it at
        its start as "GPU KV cache size").
    decode_log_interval : int
        Decode steps from one line of an SGLang log to the next (its ``--decode-log-interval``).
    without_context : bool
        Accept a log that has no context lengths; the context term can then not be fitted.
    skip_bad : int
        Bad lines tolerated; they are counted in ``dropped``.

    Returns
    -------
    list of StepRecords
        One a group of a measured table (system, framework, model, layer ...); a single one for logs.

    Raises
    ------
    CalibrationError
        A file cannot be read, is of no known format, mixes two engines, or holds a bad line: file, line number,
        what was wrong and the fix.
    """
    files = _existing(paths)
    _check("skip_bad", skip_bad, 0, MAX_BAD)
    _check("decode_log_interval", decode_log_interval, 1, 10**6)
    if kv_capacity_tokens is not None:
        _check("kv_capacity_tokens", kv_capacity_tokens, 1, 10**12)
    chosen = _choose(files, format, columns)
    if columns and chosen.name != "columns":
        raise CalibrationError(
            f"the format {chosen.name} has columns of its own",
            where="columns",
            fix="map those of format columns",
        )
    foreign = (
        () if format else tuple((f.sign, f.name) for f in FORMATS.values() if f.sign and f is not chosen)
    )
    job = Job(
        files,
        Ledger(skip_bad),
        dict(columns) if columns else None,
        kv_capacity_tokens,
        decode_log_interval,
        without_context,
        foreign,
    )
    return chosen.read(job)


def detect(path: str | PathLike[str], *, columns: Mapping[str, str] | None = None) -> str:
    """Name of the format of a file, told by its content.

    Raises
    ------
    CalibrationError
        Empty, or of no known format.
    """
    return _detect(look(_existing(path)[0]), columns).name


def _choose(files: tuple[Path, ...], format: str | None, columns: Mapping[str, str] | None) -> Format:
    heads = [look(path) for path in files]
    for head in heads:
        if not head.data.strip():
            raise CalibrationError(
                "the file is empty", where=str(head.path), fix="a step log holds at least one step"
            )
    if format is not None:
        if format not in FORMATS:
            raise CalibrationError(f"the step-log format {format!r} is unknown", fix=nearest(format, FORMATS))
        return FORMATS[format]
    found = [_detect(head, columns) for head in heads]
    for path, other in zip(files, found, strict=True):
        if other is not found[0]:
            raise CalibrationError(
                f"the file is {other.name}, and {files[0]} is {found[0].name}",
                where=f"{path}:1",
                fix="read files of one engine and one format at a time",
            )
    return found[0]


def _detect(head: Head, columns: Mapping[str, str] | None) -> Format:
    if columns:
        return FORMATS["columns"]
    for candidate in FORMATS.values():
        if candidate.sniff(head):
            return candidate
    if not head.is_json and len(head.data) >= 1 << 20 and b"\0" not in head.data[:4096]:
        # A server may talk for a long time before its first step.
        for _, data in _files.line_blocks(head.path, error=CalibrationError):
            for candidate in FORMATS.values():
                if candidate.sign and candidate.sign in data:
                    return candidate
    raise CalibrationError(
        f"is in no known step-log format, {_describe(head)}",
        where=str(head.path),
        fix=f"name one ({', '.join(FORMATS)}), or map the columns (--columns batch=A,time_ms=B)",
    )


def _describe(head: Head) -> str:
    first = head.data.lstrip().partition(b"\n")[0].rstrip(b"\r")[:80].decode(errors="replace")
    if "\N{REPLACEMENT CHARACTER}" in first or "\0" in first:
        return "it is not text"
    return f"its first line begins {first!r}"


def _check(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise CalibrationError(f"{name} = {value!r}", fix=f"expected a whole number from {low} to {high}")


def _existing(paths: Paths) -> tuple[Path, ...]:
    given = [paths] if isinstance(paths, str | PathLike) else list(paths)
    if not 1 <= len(given) <= 10_000:
        raise CalibrationError(f"{len(given)} files are given", fix="give from 1 to 10,000 step logs")
    files = []
    for one in given:
        try:
            path = Path(fspath(one))
            found = path.is_file()
        except (OSError, TypeError, ValueError) as error:
            raise CalibrationError(
                f"{one!r} is not a path ({error})", fix="give the path of a file"
            ) from None
        if not found:
            what, fix = "there is no such file", "give the path of a step log or a table"
            if path.is_dir():
                what = "is a folder"
            elif path.exists():
                # The format is told from the beginning, and then the file is read anew.
                what, fix = "is a pipe or a device, which can be read only once", "write it to a file first"
            raise CalibrationError(what, where=str(path), fix=fix)
        if path in files:
            raise CalibrationError("the file is given twice", where=str(path), fix="give it once")
        files.append(path)
    return tuple(files)

"""One way to name a workload, for every command: a preset, a file or a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from equipoise.errors import TraceError
from equipoise.traces.interleave import cycle
from equipoise.traces.presets import PRESETS
from equipoise.traces.readers import ReadReport, read_with_report
from equipoise.traces.synthetic import DEFAULT_REQUESTS, synth
from equipoise.traces.trace import Trace
from equipoise.traces.transforms import spread_ticks as spread

__all__ = ["load", "load_with_report", "preset_of"]


def preset_of(spec: str | PathLike[str]) -> str | None:
    """Preset that a specification names (``agentic-coding`` or ``preset:agentic-coding``), None for a path."""
    text = str(spec)
    return text if text in PRESETS or text.startswith("preset:") else None


def load(
    spec: str | PathLike[str],
    *,
    requests: int | None = None,
    seed: int = 0,
    format: str | None = None,
    skip_bad: int = 0,
    columns: Mapping[str, str] | None = None,
    rate_per_s: float | None = None,
    spread_ticks: bool = False,
    steady_state: int = 0,
) -> Trace:
    """Load a workload by name or path.

    Parameters
    ----------
    spec : str or path
        A preset (``agentic-coding``, or ``preset:agentic-coding``), else a file or folder; a file that is called like a
        preset is ``./agentic-coding``.
    requests : int, optional
        Length: of a preset 40,000 if not given; a file is cut, or cycled (`cycle`), to it.
    seed : int
        Of a preset; of what a file does not record; of the order of later cycles.
    format, skip_bad, columns
        As for `read`; not for presets.
    rate_per_s : float, optional
        Requests a second, for presets and for files without recorded arrivals.
    spread_ticks : bool
        Spread arrivals that sit on a coarse grid (`spread_ticks`).
    steady_state : int
        For presets: requests in flight at the start (`synth`).

    Returns
    -------
    Trace

    Raises
    ------
    TraceError
        Neither a preset nor a path that exists (close names are offered), or what `read` and `synth` raise.
    """
    return load_with_report(
        spec,
        requests=requests,
        seed=seed,
        format=format,
        skip_bad=skip_bad,
        columns=columns,
        rate_per_s=rate_per_s,
        spread_ticks=spread_ticks,
        steady_state=steady_state,
    )[0]


def load_with_report(
    spec: str | PathLike[str],
    *,
    requests: int | None = None,
    seed: int = 0,
    format: str | None = None,
    skip_bad: int = 0,
    columns: Mapping[str, str] | None = None,
    rate_per_s: float | None = None,
    spread_ticks: bool = False,
    steady_state: int = 0,
) -> tuple[Trace, ReadReport | None]:
    """`load`, and how the file was read; None for a preset."""
    preset = preset_of(spec)
    if preset is not None:
        if format is not None or columns or skip_bad:
            raise TraceError(f"{spec} is a preset", fix="format, columns and skip_bad are for files")
        name = preset.removeprefix("preset:")
        return synth(
            name, DEFAULT_REQUESTS if requests is None else requests, seed, rate_per_s, steady_state
        ), None
    _check_exists(spec)
    trace, report = read_with_report(
        spec, format, skip_bad=skip_bad, columns=columns, seed=seed, rate_per_s=rate_per_s
    )
    if spread_ticks:
        trace = spread(trace, seed=seed)
    return (trace if requests is None else cycle(trace, requests, seed)), report


def _check_exists(spec: str | PathLike[str]) -> None:
    """A word that is no path may be meant as a preset."""
    text = str(spec)
    if not re.fullmatch(r"[\w-]+", text) or Path(text).exists():
        return
    paths = [p.name for p in Path().iterdir() if not p.name.startswith(".")]
    close = get_close_matches(text, [*PRESETS, *paths], n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(c) for c in close)}? " if close else ""
    raise TraceError(
        f"{text!r} is neither a preset nor a file",
        fix=f"{hint}Presets: {', '.join(PRESETS)}; or give the path of a trace",
    )

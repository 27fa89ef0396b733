"""`equipoise trace`: look at, convert and generate traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from equipoise.cli.numbers import Whole
from equipoise.cli.options import Json
from equipoise.errors import InputError

if TYPE_CHECKING:
    from equipoise.traces import ReadReport, Trace

__all__ = ["app"]

app = App(name="trace", help="Look at, convert and generate traces.")

Flag = Annotated[bool, Parameter(negative="")]


@app.command
def info(
    trace: str,
    /,
    *,
    format: str | None = None,
    columns: list[str] | None = None,
    skip_bad: Whole = 0,
    requests: Whole | None = None,
    seed: Whole = 0,
    rate_per_s: float | None = None,
    spread_ticks: Flag = False,
    as_json: Json = False,
) -> None:
    """Describe a trace: arrivals, lengths, sessions, and the contexts that decoding sees.

    Parameters
    ----------
    trace
        A file, a folder of session files, or a preset such as agentic-coding.
    format
        Read the file as this format; 'equipoise trace formats' lists them. Default: told from the content.
    columns
        Which column holds what, for CSV, JSON lines and Parquet of your own: context_tokens=A,output_tokens=B,...
    skip_bad
        Skip up to so many bad lines and count them.
    requests
        Take so many requests; a short file is repeated, each pass in another order. Presets: 40,000 by default.
    seed
        For presets, and for what a file does not record.
    rate_per_s
        Requests a second, for presets and for files without recorded arrivals.
    spread_ticks
        Spread arrivals that sit on a coarse grid evenly over it.
    """
    from equipoise.traces import describe
    from equipoise.traces.resolve import load_with_report

    loaded, report = load_with_report(
        trace,
        requests=requests,
        seed=seed,
        format=format,
        skip_bad=skip_bad,
        columns=_columns(columns),
        rate_per_s=rate_per_s,
        spread_ticks=spread_ticks,
    )
    statistics = describe(loaded)
    if as_json:
        from dataclasses import asdict

        _print_json(statistics.to_dict() | {"read": None if report is None else asdict(report)})
    else:
        from equipoise.cli.trace_tables import print_statistics

        _notes(report, skipped_only=True)
        print_statistics(statistics)


@app.command
def convert(
    trace: str,
    output: Path,
    /,
    *,
    format: str | None = None,
    columns: list[str] | None = None,
    skip_bad: Whole = 0,
    to: str | None = None,
    requests: Whole | None = None,
    seed: Whole = 0,
    rate_per_s: float | None = None,
    spread_ticks: Flag = False,
    rate_scale: float = 1.0,
    prefill_s: float = 0.0,
    prefill_s_per_token: float = 0.0,
) -> None:
    """Convert a trace to Parquet (lossless), Mooncake JSON lines or CSV.

    Parameters
    ----------
    trace
        A file, a folder of session files, or a preset.
    output
        File to write: .parquet, .jsonl or .csv; the latter two also with .gz or .zst.
    format
        Format of the input. Default: told from the content.
    columns
        Which column of the input holds what: context_tokens=A,output_tokens=B,arrival_s=C,...
    skip_bad
        Skip up to so many bad lines and count them.
    to
        Format of the output: equipoise, mooncake or csv. Default: told from the ending.
    requests
        Cut or repeat to so many requests.
    seed
        For presets, for what a file does not record, and for the order of repetitions.
    rate_per_s
        Requests a second, for presets and for files without recorded arrivals.
    spread_ticks
        Spread arrivals that sit on a coarse grid evenly over it.
    rate_scale
        Let requests arrive so many times as fast.
    prefill_s
        Add seconds of prefill to every arrival, as a decode pool behind prefill workers sees it.
    prefill_s_per_token
        Add further seconds of prefill for each context token.
    """
    from equipoise.traces import prefill_delay, scale_rate
    from equipoise.traces.resolve import load_with_report

    loaded, report = load_with_report(
        trace,
        requests=requests,
        seed=seed,
        format=format,
        skip_bad=skip_bad,
        columns=_columns(columns),
        rate_per_s=rate_per_s,
        spread_ticks=spread_ticks,
    )
    _notes(report)
    if rate_scale != 1.0:
        loaded = scale_rate(loaded, rate_scale)
    if prefill_s or prefill_s_per_token:
        loaded = prefill_delay(loaded, prefill_s, prefill_s_per_token)
    _write(loaded, output, to)


@app.command
def synth(
    preset: str = "agentic-coding",
    /,
    *,
    output: Path,
    requests: Whole = 40_000,
    seed: Whole = 0,
    rate_per_s: float | None = None,
    steady_state: Whole = 0,
    to: str | None = None,
) -> None:
    """Generate a trace from a preset.

    Parameters
    ----------
    preset
        agentic-coding, chat-long, chat-short, code-completion, reasoning or mixed-tail.
    output
        File to write: .parquet, .jsonl or .csv; the latter two also with .gz or .zst.
    requests
        How many.
    seed
        The same seed gives the same trace; asking for more requests keeps the first ones.
    rate_per_s
        Requests a second. Default: the preset's own rate.
    steady_state
        Begin with so many requests in flight, as in a pool that has always been running.
    to
        Format of the output: equipoise, mooncake or csv. Default: told from the ending.
    """
    from equipoise.traces import synth as make

    _write(make(preset.removeprefix("preset:"), requests, seed, rate_per_s, steady_state), output, to)


@app.command
def formats(*, as_json: Json = False) -> None:
    """List the formats that can be read and written, and the presets."""
    from equipoise.traces.presets import PRESETS, load_preset
    from equipoise.traces.readers import FORMATS
    from equipoise.traces.writing import WRITERS

    presets = {name: load_preset(name)["summary"] for name in PRESETS}
    if as_json:
        read = [
            {"name": f.name, "title": f.title, "example": f.example, "folder": f.folder}
            for f in FORMATS.values()
        ]
        _print_json(
            {"schema": "equipoise.trace-formats/1", "read": read, "write": list(WRITERS), "presets": presets}
        )
    else:
        from equipoise.cli.trace_tables import print_formats

        print_formats(FORMATS.values(), tuple(WRITERS), presets)


def _columns(texts: list[str] | None) -> dict[str, str] | None:
    """``target=column`` pairs, separated by commas or given one by one."""
    if texts is None:
        return None
    mapping: dict[str, str] = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        target, equals, column = (part.strip() for part in pair.partition("="))
        if not (target and equals and column):
            raise InputError(
                f"{pair!r} is no pair",
                where="--columns",
                fix="write context_tokens=COLUMN,output_tokens=COLUMN",
            )
        if target in mapping:
            raise InputError(f"{target} is mapped twice", where="--columns", fix="map it once")
        mapping[target] = column
    return mapping


def _write(trace: Trace, output: Path, to: str | None) -> None:
    from equipoise.traces import write

    for loss in write(trace, output, to):
        _note(loss)
    _note(f"wrote {len(trace):,} requests to {output}")


def _notes(report: ReadReport | None, *, skipped_only: bool = False) -> None:
    """What a reader did to the data; `info` prints most of it with the result."""
    if report is None:
        return
    for message in report.first_skipped:
        _note(f"skipped {message}")
    if report.skipped > len(report.first_skipped):
        _note(f"skipped {report.skipped:,} bad lines in all")
    if not skipped_only:
        for reason, count in report.dropped.items():
            _note(f"dropped {count:,}: {reason}")
        for text in report.notes:
            _note(text)


def _print_json(values: object) -> None:
    import json

    print(json.dumps(values, indent=2, allow_nan=False, ensure_ascii=False))


def _note(text: str) -> None:
    import sys

    print(f"note: {text}", file=sys.stderr)

"""Request traces: read them, make them, change them, describe them.

>>> from equipoise import traces
>>> trace = traces.synth("agentic-coding", requests=1000, seed=0)
>>> len(traces.cycle(trace, 2500))
2500
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.traces.interleave import assign_session_starts, cycle, reinterleave
    from equipoise.traces.presets import preset_names
    from equipoise.traces.readers import ReadReport, read, read_with_report
    from equipoise.traces.resolve import load
    from equipoise.traces.servegen import generate
    from equipoise.traces.statistics import TraceStatistics, describe
    from equipoise.traces.synthetic import synth
    from equipoise.traces.trace import PrefixBlocks, Trace
    from equipoise.traces.transforms import detect_tick, head, prefill_delay, scale_rate, spread_ticks
    from equipoise.traces.writing import write

__all__ = [
    "PrefixBlocks",
    "ReadReport",
    "Trace",
    "TraceStatistics",
    "assign_session_starts",
    "cycle",
    "describe",
    "detect_tick",
    "generate",
    "head",
    "load",
    "prefill_delay",
    "preset_names",
    "read",
    "read_with_report",
    "reinterleave",
    "scale_rate",
    "spread_ticks",
    "synth",
    "write",
]

__getattr__ = lazy(
    __name__,
    {
        "interleave": (
            "assign_session_starts",
            "cycle",
            "reinterleave",
        ),
        "presets": ("preset_names",),
        "readers": (
            "ReadReport",
            "read",
            "read_with_report",
        ),
        "resolve": ("load",),
        "servegen": ("generate",),
        "statistics": (
            "TraceStatistics",
            "describe",
        ),
        "synthetic": ("synth",),
        "trace": (
            "PrefixBlocks",
            "Trace",
        ),
        "transforms": (
            "detect_tick",
            "head",
            "prefill_delay",
            "scale_rate",
            "spread_ticks",
        ),
        "writing": ("write",),
    },
)

"""What a live run showed: differences between policies, and whether the prediction held; from its folder alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.live.findings.analysis import Analysis, analyse
    from equipoise.live.findings.pairs import Finding
    from equipoise.live.findings.plain import schema, summarize
    from equipoise.live.findings.repeats import Resolve, repeats_to_equal, repeats_to_resolve
    from equipoise.live.findings.writing import write_analysis

__all__ = [
    "Analysis",
    "Finding",
    "Resolve",
    "analyse",
    "repeats_to_equal",
    "repeats_to_resolve",
    "schema",
    "summarize",
    "write_analysis",
]

__getattr__ = lazy(
    __name__,
    {
        "analysis": ("Analysis", "analyse"),
        "pairs": ("Finding",),
        "plain": ("schema", "summarize"),
        "repeats": ("Resolve", "repeats_to_equal", "repeats_to_resolve"),
        "writing": ("write_analysis",),
    },
)

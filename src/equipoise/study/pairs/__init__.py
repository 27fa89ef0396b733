"""Finished runs side by side: what differs, by how much, and whether the difference is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from equipoise._lazy import lazy

if TYPE_CHECKING:
    from equipoise.study.pairs.measured import Measured, Pair, RunComparison
    from equipoise.study.pairs.plain import schema, summarize
    from equipoise.study.pairs.run_pairs import compare_runs
    from equipoise.study.pairs.words import pair_words

__all__ = ["Measured", "Pair", "RunComparison", "compare_runs", "pair_words", "schema", "summarize"]

__getattr__ = lazy(
    __name__,
    {
        "measured": ("Measured", "Pair", "RunComparison"),
        "plain": ("schema", "summarize"),
        "run_pairs": ("compare_runs",),
        "words": ("pair_words",),
    },
)

"""A swept parameter as PNG: what it costs and how even it leaves the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.report.palette import DASHES, Palette
from equipoise.report.plot_style import DASH_OF, INK, MARKERS, SOFT, legend_of, sheet, whiskers
from equipoise.report.views import Scene, Sweep, cheapest, logarithmic, most_even, optima_words

__all__ = ["plot_sweep"]


def plot_sweep(scene: Scene, curves: Sequence[Sweep], palette: Palette) -> Any:
    """Excess above, max/mean below; rings mark the least excess and the most even tokens."""
    first = curves[0]
    fixed = f" ({first.fixed})" if first.fixed else ""
    figure = sheet(optima_words(curves), f"{first.policy} over {first.parameter}{fixed}, {scene.words}")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    colour = palette.light(first.policy)
    for i, sweep in enumerate(curves):
        name = sweep.cells[0].setting.cost.name
        above.errorbar(
            sweep.values, [100 * c.excess.mean for c in sweep.cells], yerr=whiskers([c.excess for c in sweep.cells]),
            color=colour, linestyle=DASH_OF[DASHES[i % 6]], linewidth=2.6, marker=MARKERS[i % len(MARKERS)],
            markersize=8, capsize=4, elinewidth=1.2, label=f"excess under {name}",
        )  # fmt: skip
        value, cell = cheapest(sweep)
        _ring(above, value, 100 * cell.excess.mean)
    for field, words, ink, marker in (
        ("max_over_mean_context", "context tokens", INK, "o"),
        ("max_over_mean_batch", "batch", SOFT, "s"),
    ):
        series = [[c.mean(field) for c in sweep.cells] for sweep in curves]
        same = all(np.allclose(s, series[0], rtol=1e-9, equal_nan=True) for s in series)
        for i, values in enumerate(series[:1] if same else series):
            name = "" if same else f" under {curves[i].cells[0].setting.cost.name}"
            below.plot(
                first.values, values, color=ink, linestyle=DASH_OF[DASHES[i % 6]], linewidth=2.6, marker=marker,
                markersize=7, label=f"{words}{name}",
            )  # fmt: skip
            if words != "batch":
                value, cell = most_even(curves[i])
                _ring(below, value, cell.mean(field))
    if logarithmic(first.values):
        above.set_xscale("log")
    if len(first.values) <= 16:
        below.set_xticks(first.values, [f"{v:g}" for v in first.values])
        below.minorticks_off()
    above.set_ylim(bottom=0)
    above.set_ylabel("excess over ideal, %", color=SOFT)
    below.set_ylabel("max / mean of the ranks", color=SOFT)
    below.set_xlabel(first.parameter, color=SOFT)
    for panel in (above, below):
        panel.tick_params(axis="both", length=0, pad=8)
        panel.legend(*legend_of(panel), loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _ring(panel: Any, x: float, y: float) -> None:
    panel.plot(
        [x], [y], "o", markersize=20, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=2, zorder=5
    )

"""What happened along a run, as PNG: balance over time, and the ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.report.figure_parts import looks
from equipoise.report.figure_runs import spread
from equipoise.report.numbers import percent
from equipoise.report.over_time import over_time
from equipoise.report.palette import Palette
from equipoise.report.plot_style import DASH_OF, LINE, SOFT, sheet
from equipoise.report.ranks import RankMap
from equipoise.report.views import Scene, finalists
from equipoise.study import Comparison

__all__ = ["plot_over_time", "plot_ranks"]

LOW, MIDDLE, HIGH = "#2b6cb0", "#f4f2ee", "#b5491f"
"""Below, at and above the mean: blue and orange stay apart under every common colour blindness."""


def plot_over_time(comparison: Comparison, scene: Scene, palette: Palette) -> Any:
    """Max/mean of C above and of B below, for the finalists."""
    setting = scene.first
    figure = sheet(
        "Balance over time: the largest rank over the mean",
        f"{scene.words}, under {setting.cost.name}; first seed; shaded: warm-up, not counted",
    )
    panels = dict(zip(("context", "batch"), figure.subplots(2, 1, sharex=True), strict=True))
    tops = {"context": 1.0, "batch": 1.0}
    start = stop = 0.0
    for cell, dash in looks(finalists(comparison, setting)):
        result = cell.runs[0].result
        if result is None:
            continue
        line = over_time(result)
        start, stop = max(start, line.counted_s[0]), max(stop, line.counted_s[1])
        for field, panel in panels.items():
            values = getattr(line, field)
            inside = line.counted(values)
            if len(inside):
                tops[field] = max(tops[field], float(np.quantile(inside, 0.995)))
            colour = palette.light(cell.policy.name)
            panel.plot(
                line.time_s,
                values,
                color=colour,
                linestyle=DASH_OF[dash],
                linewidth=2,
                label=cell.policy.label,
            )
    for field, panel in panels.items():
        room = tops[field] - 1 or 0.1
        panel.set_ylim(1 - 0.05 * room, 1 + 1.1 * room)
        panel.set_xlim(0, stop or 1.0)
        panel.axvspan(0, start, color=LINE, alpha=0.5, linewidth=0, zorder=0)
        panel.set_ylabel(f"{field}, max / mean", color=SOFT)
        panel.tick_params(axis="both", length=0, pad=8)
    panels["batch"].set_xlabel("simulated time, s", color=SOFT)
    handles, labels = panels["context"].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
    return figure


def plot_ranks(scene: Scene, maps: Sequence[RankMap]) -> Any:
    """Ranks against time, coloured by own work over the mean; a panel a policy."""
    from matplotlib.colors import LinearSegmentedColormap, Normalize
    from matplotlib.ticker import MaxNLocator

    where = ", first instance" if scene.first.pool.instances > 1 else ""
    figure = sheet(
        "Own work of every rank over the mean of all ranks",
        f"{scene.words}, under {scene.first.cost.name}; first seed{where}; waiting is left out",
    )
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    colours = LinearSegmentedColormap.from_list("balance", [LOW, MIDDLE, HIGH])
    reach = spread(maps)
    image = None
    for panel, shown in zip(panels, maps, strict=True):
        times, rows = shown.start_s, np.arange(len(shown.ranks) + 1) - 0.5
        width = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
        edges = np.append(times, times[-1] + width)
        image = panel.pcolormesh(
            edges, rows, np.ma.masked_invalid(shown.relative), cmap=colours,
            norm=Normalize(1 - reach, 1 + reach), rasterized=True,
        )  # fmt: skip
        panel.invert_yaxis()
        panel.grid(visible=False)
        ticks = range(0, len(shown.ranks), math.ceil(len(shown.ranks) / 8))
        panel.set_yticks(ticks, [str(shown.ranks[i]) for i in ticks])
        panel.set_title(f"{shown.cell.policy.label} ({shown.role})", pad=30)
        panel.text(
            0, 1.015, f"the slowest rank does {percent(shown.slowest - 1, 1)} % more than the mean",
            transform=panel.transAxes, color=SOFT, fontsize=14,
        )  # fmt: skip
        panel.set_xlabel("simulated time, s", color=SOFT)
        panel.tick_params(axis="both", length=0, pad=8)
        for spine in panel.spines.values():
            spine.set_visible(False)
    panels[0].set_ylabel("rank", color=SOFT)
    bar = figure.colorbar(image, ax=list(panels), shrink=0.8, aspect=30, pad=0.015, format="%.2f")
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    bar.locator = MaxNLocator(5)
    bar.update_ticks()
    bar.set_label("own work / mean", color=SOFT, labelpad=12)
    return figure

"""Excess over ideal as PNG: bars by policy and cost, lines over the number of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.report.figure_parts import dodge, reach, two_lines
from equipoise.report.numbers import percent
from equipoise.report.palette import DASHES, Palette
from equipoise.report.plot_style import DASH_OF, INK, LINE, MARKERS, SOFT, grid_of, legend_of, sheet, whiskers
from equipoise.report.views import Scene, finalists, group_cell, tied
from equipoise.report.words import whisker_words
from equipoise.study import Comparison, Setting

__all__ = ["plot_excess", "plot_groups"]

FEW_BARS = 6
PANEL_POINTS = 400
"""Height that the bars of a panel share, in typographic points."""


def plot_excess(comparison: Comparison, scene: Scene, palette: Palette) -> Any:
    """Bars with whiskers by policy, a panel a cost, one scale."""
    figure = sheet(_headline(comparison, scene), f"{scene.words}. {whisker_words(comparison)}")
    top = 100 * max(reach(c) for s in scene.settings for c in comparison.of(s))
    panels = grid_of(figure, len(scene.settings))
    for panel, setting in zip(panels, scene.settings, strict=True):
        cells, best = comparison.of(setting), comparison.best(setting)
        rows = np.arange(len(cells))
        values = [100 * c.excess.mean for c in cells]
        panel.barh(rows, values, height=0.66, color=[palette.light(c.policy.name) for c in cells], zorder=2)
        panel.errorbar(
            values, rows, xerr=whiskers([c.excess for c in cells]), fmt="none", ecolor=INK, elinewidth=1.6,
            capsize=4.5, capthick=1.6, zorder=3,
        )  # fmt: skip
        row_points = PANEL_POINTS / max(FEW_BARS, len(cells)) / panel.get_subplotspec().get_gridspec().nrows
        for row, cell in zip(rows, cells, strict=True):
            text = f"{percent(cell.excess.mean)} %"
            if cell is best and len(cells) > 1:
                text += "  least"
            elif tied(comparison, cell):
                text += "  ~ not told apart"
            weight = "bold" if cell is best else "normal"
            panel.annotate(
                text, (100 * reach(cell), row), xytext=(9, 0), textcoords="offset points", va="center",
                fontsize=min(14, 0.6 * row_points), fontweight=weight, annotation_clip=False,
            )  # fmt: skip
        panel.set_title(f"under {setting.cost.name}")
        panel.set_xlim(0, top * (1.26 if len(scene.settings) < 3 else 1.45) or 1.0)
        room = max(0, FEW_BARS - len(cells)) / 2  # a few bars stand in the middle, no thicker than this many
        panel.set_ylim(len(cells) - 0.4 + room, -0.6 - room)
        outer = panel.get_subplotspec().is_first_col()
        panel.set_yticks(rows, [two_lines(c.policy.label, "\n") if outer else "" for c in cells])
        for label, cell in zip(panel.get_yticklabels(), cells, strict=True):
            wins = all(comparison.best(s).policy is cell.policy for s in scene.settings)
            label.set_fontweight("bold" if wins and len(cells) > 1 else "normal")
            label.set_fontsize(min(15, (0.42 if "\n" in label.get_text() else 0.7) * row_points))
        panel.tick_params(axis="both", length=0, pad=8)
        panel.grid(visible=False, axis="y")
        panel.spines["bottom"].set_visible(False)
        panel.spines["left"].set_color(SOFT)
        panel.set_xlabel("excess over ideal, %", color=SOFT)
    return figure


def _headline(comparison: Comparison, scene: Scene) -> str:
    """The finding, if one policy wins under every cost; what is drawn otherwise."""
    best = [comparison.best(s) for s in scene.settings]
    label = best[0].policy.label
    if any(c.policy.label != label for c in best) or len(comparison.of(scene.first)) == 1:
        return "Cost over ideal by policy"
    low, high = min(c.excess.mean for c in best), max(c.excess.mean for c in best)
    span = (
        percent(low, 1) if percent(low, 1) == percent(high, 1) else f"{percent(low, 1)} to {percent(high, 1)}"
    )
    return f"{label} costs least: {span} % above a perfect balance"


def plot_groups(comparison: Comparison, settings: Sequence[Setting], palette: Palette) -> Any:
    """Excess against the number of groups, a panel a cost, for the finalists."""
    scene = Scene((settings[0],))
    costs = list(dict.fromkeys(s.cost.name for s in settings))
    counts = sorted({s.pool.groups for s in settings})
    ways = list(dict.fromkeys(s.group_policy for s in settings if s.grouped))
    figure = sheet(
        "Excess by number of groups",
        f"{scene.words}. The group is chosen first, then the rank inside it. {whisker_words(comparison)}",
    )
    panels = grid_of(figure, len(costs), share=True)
    for panel, cost in zip(panels, costs, strict=True):
        mine = [s for s in settings if s.cost.name == cost]
        chosen = [c.policy for c in finalists(comparison, mine[0])]
        for k, policy in enumerate(chosen):
            for w, way in enumerate(ways):
                cells = [group_cell(comparison, mine, policy.label, n, way) for n in counts]
                colour = palette.light(policy.name)
                shift = dodge(k * len(ways) + w, len(chosen) * len(ways))
                panel.errorbar(
                    [i + shift for i in range(len(counts))], [100 * c.excess.mean for c in cells],
                    yerr=whiskers([c.excess for c in cells]), color=colour, linestyle=DASH_OF[DASHES[w % 6]],
                    linewidth=2.4, marker=MARKERS[k % len(MARKERS)], markersize=8, capsize=4, elinewidth=1.2,
                    label=policy.label + (f", by {way}" if len(ways) > 1 else ""),
                )  # fmt: skip
        panel.set_title(f"under {cost}")
        panel.set_xticks(range(len(counts)), [str(n) for n in counts])
        panel.set_xlabel("groups", color=SOFT)
        panel.set_ylim(bottom=0)
        panel.set_ylabel("excess over ideal, %" if panel is panels[0] else "", color=SOFT)
        panel.tick_params(axis="both", length=0, pad=8)
        panel.spines["left"].set_color(LINE)
    handles, labels = legend_of(panels[0])
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(labels)))
    return figure

"""Excess over ideal: bars for one cost, and lines over the number of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.report.figure_parts import (
    INK,
    SYMBOLS,
    Figure,
    axis,
    dodge,
    hover,
    layout,
    reach,
    safe,
    two_lines,
    whiskers,
)
from equipoise.report.numbers import percent, plain
from equipoise.report.palette import DASHES, Palette
from equipoise.report.views import Scene, finalists, group_cell, tied
from equipoise.study import Comparison, Setting

__all__ = ["excess_figure", "group_figure"]


def excess_figure(comparison: Comparison, setting: Setting, scene: Scene, palette: Palette) -> Figure:
    """Excess of every policy under one cost: bars with whiskers, on one scale for all costs of the scene."""
    cells = comparison.of(setting)
    best = comparison.best(setting)
    top = max(reach(c) for s in scene.settings for c in comparison.of(s))
    labels = [two_lines(safe(c.policy.label), "<br>") for c in cells]
    rows = list(range(len(cells)))
    notes = []
    for cell in cells:
        text = f"{percent(cell.excess.mean)} %"
        if cell is best and len(cells) > 1:
            text = f"<b>{text}  least</b>"
        elif tied(comparison, cell):
            text += "  ~"
        notes.append(text)
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": plain([100 * c.excess.mean for c in cells]),
        "y": rows,
        "marker": {"color": [palette.token(c.policy.name) for c in cells]},
        "error_x": whiskers([c.excess for c in cells]),
        "hovertext": [hover(c) for c in cells],
        "hoverinfo": "text",
        "width": 0.68,
    }
    values = {
        "type": "scatter",
        "mode": "text",
        "x": plain([100 * reach(c) for c in cells]),
        "y": rows,
        "text": [f"  {n}" for n in notes],
        "textposition": "middle right",
        "textfont": {"color": INK, "size": 12},
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
    ticks = [f"<b>{label}</b>" if c is best else label for label, c in zip(labels, cells, strict=True)]
    return {
        "data": [bars, values],
        "layout": layout(
            84 + 30 * len(cells),
            xaxis=axis("excess over ideal, %", range=[0, 100 * top * 1.34 or 1.0], fixedrange=True),
            yaxis=axis(
                tickvals=rows,
                ticktext=ticks,
                range=[len(cells) - 0.45, -0.55],
                showgrid=False,
                fixedrange=True,
                ticks="",
            ),
            bargap=0.3,
        ),
    }


def group_figure(comparison: Comparison, settings: Sequence[Setting], palette: Palette) -> Figure:
    """Excess against the number of groups, under one cost: a line a policy and way to choose a group."""
    counts = sorted({s.pool.groups for s in settings})
    ways = list(dict.fromkeys(s.group_policy for s in settings if s.grouped))
    data: list[dict[str, Any]] = []
    chosen = [c.policy for c in finalists(comparison, settings[0])]
    for k, policy in enumerate(chosen):
        colour = palette.token(policy.name)
        for w, way in enumerate(ways):
            cells = [group_cell(comparison, settings, policy.label, n, way) for n in counts]
            name = safe(policy.label) + (f", by {way}" if len(ways) > 1 else "")
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": [
                        round(i + dodge(k * len(ways) + w, len(chosen) * len(ways)), 4)
                        for i in range(len(counts))
                    ],
                    "y": plain([100 * c.excess.mean for c in cells]),
                    "error_y": whiskers([c.excess for c in cells], colour, 1),
                    "line": {"color": colour, "width": 2, "dash": DASHES[w % len(DASHES)]},
                    "marker": {"symbol": SYMBOLS[k % len(SYMBOLS)], "size": 7, "color": colour},
                    "hovertext": [
                        f"{hover(c)}<br>{n} group{'s' if n > 1 else ''}" + (f", by {way}" if n > 1 else "")
                        for c, n in zip(cells, counts, strict=True)
                    ],
                    "hoverinfo": "text",
                }
            )
    return {
        "data": data,
        "layout": layout(
            440,
            xaxis=axis(
                "groups",
                tickvals=list(range(len(counts))),
                ticktext=[str(n) for n in counts],
                fixedrange=True,
            ),
            yaxis=axis("excess over ideal, %", rangemode="tozero", fixedrange=True),
            showlegend=True,
        ),
    }

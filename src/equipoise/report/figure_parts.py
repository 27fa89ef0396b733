"""What all figures of the page are made of, in plotly's terms.

A figure is plain data. Colours are names of CSS variables (``--ui-ink``, ``--p-0``), which the page replaces by their
values in light or dark before it draws. Text that comes from outside is escaped, because plotly reads labels as a
small subset of HTML.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from equipoise.report.numbers import bounds, percent, plain, ratio
from equipoise.report.palette import DASHES
from equipoise.study import Cell, Interval

__all__ = [
    "BACK",
    "INK",
    "LINE",
    "SOFT",
    "SYMBOLS",
    "Figure",
    "axis",
    "dodge",
    "hover",
    "layout",
    "looks",
    "reach",
    "safe",
    "two_lines",
    "whiskers",
]

Figure = dict[str, Any]
INK, SOFT, LINE, BACK = "--ui-ink", "--ui-soft", "--ui-line", "--ui-card"
LONG_LABEL = 26
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with a quiet grid."""
    return {
        "title": {"text": title, "font": {"size": 13}, "standoff": 8},
        "gridcolor": LINE,
        "linecolor": LINE,
        "zeroline": False,
        "automargin": True,
        "tickfont": {"size": 12},
        **more,
    }


def layout(height: int, **more: Any) -> dict[str, Any]:
    """The layout all figures share."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 12},
        "hoverlabel": {
            "bgcolor": BACK,
            "bordercolor": LINE,
            "font": {"color": INK, "size": 13},
            "align": "left",
        },
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        "showlegend": False,
        **more,
    }


def whiskers(intervals: Sequence[Interval], colour: str = INK, thickness: float = 1.5) -> dict[str, Any]:
    """Error bars in percent; none where an interval is unknown."""
    return {
        "type": "data",
        "symmetric": False,
        "array": plain([100 * (i.high - i.mean) for i in intervals]),
        "arrayminus": plain([100 * (i.mean - i.low) for i in intervals]),
        "color": colour,
        "thickness": thickness,
        "width": 4,
    }


def hover(cell: Cell) -> str:
    """What pointing at a cell shows."""
    return (
        f"<b>{safe(cell.policy.label)}</b><br>{safe(cell.setting.cost.name)}: {percent(cell.excess.mean)} % "
        f"({bounds(cell.excess)})<br>max/mean batch {ratio(cell.mean('max_over_mean_batch'))}, "
        f"context {ratio(cell.mean('max_over_mean_context'))}"
    )


def safe(text: str) -> str:
    """Foreign text as plotly shows it unchanged: it knows tags and the entities of ``<``, ``>`` and ``&``."""
    return escape(text, quote=False)


def two_lines(label: str, newline: str) -> str:
    """A long label broken after the policy's name."""
    return label if len(label) <= LONG_LABEL else label.replace(" ", newline, 1)


def dodge(line: int, lines: int) -> float:
    """How far aside a line is drawn, in units of one tick, so that whiskers of several lines do not overlap."""
    return (line - (lines - 1) / 2) * min(0.035, 0.3 / max(1, lines))


def reach(cell: Cell) -> float:
    """How far right the bar and its whisker go; 0 where nothing is known."""
    return max([0.0, *(v for v in (cell.excess.mean, cell.excess.high) if math.isfinite(v))])


def looks(cells: Sequence[Cell]) -> list[tuple[Cell, str]]:
    """A line style each: solid for the first of a family, then the others."""
    seen: dict[str, int] = {}
    found = []
    for cell in cells:
        n = seen.get(cell.policy.name, 0)
        seen[cell.policy.name] = n + 1
        found.append((cell, DASHES[n % len(DASHES)]))
    return found

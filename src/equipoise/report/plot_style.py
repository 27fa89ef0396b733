"""The look of the PNG plots, and the one place that touches matplotlib.

Figures are drawn on their own Agg canvas: no pyplot, no backend chosen, no figure left behind. The style holds inside
a `with` block only; what the user has set comes back when it ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from equipoise.report.extra import need
from equipoise.study import Interval

__all__ = [
    "DASH_OF",
    "INK",
    "LINE",
    "MARKERS",
    "SOFT",
    "grid_of",
    "legend_of",
    "save",
    "sheet",
    "style",
    "whiskers",
]

MARKERS = ("o", "s", "D", "^", "X", "*")

INK, SOFT, LINE = "#1c2026", "#5d6570", "#e3e2de"
SIZE_INCHES = (16.0, 9.0)
DPI = 200
"""3200 x 1800 pixels: 1600 x 900 on a dense screen."""

DASH_OF: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2.5)),
    "dot": (0, (1.2, 1.8)),
    "dashdot": (0, (5, 2, 1.2, 2)),
    "longdash": (0, (9, 3)),
    "longdashdot": (0, (9, 2, 1.2, 2)),
}
"""Plotly's line styles as matplotlib's, so that both kinds of plots agree."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "font.size": 15,
    "text.color": INK,
    "text.parse_math": False,  # a name with a dollar sign is a name
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.titlesize": 17,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 14,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.unicode_minus": True,
    "grid.color": LINE,
    "grid.linewidth": 1.0,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 14,
    "legend.handlelength": 3.2,  # long enough to see the dashes
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this block."""
    with need("matplotlib.style").context(["default", STYLE]):
        yield


def sheet(title: str, subtitle: str) -> Any:
    """An empty figure with its headline; axes put on it keep clear of the headline."""
    figure = need("matplotlib.figure").Figure(figsize=SIZE_INCHES, dpi=DPI, layout="constrained")
    need("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.get_layout_engine().set(rect=(0.025, 0.025, 0.95, 0.83), w_pad=0.12, h_pad=0.12, wspace=0.03)
    figure.text(0.032, 0.945, title, fontsize=_fitting(title, 25, 70), fontweight="bold", va="center")
    figure.text(0.032, 0.895, subtitle, fontsize=_fitting(subtitle, 16, 115), color=SOFT, va="center")
    return figure


def _fitting(text: str, size: float, characters: int) -> float:
    """A font size at which a line stays on the sheet; so many characters fit at the wanted one."""
    return size * min(1.0, characters / max(1, len(text)))


def grid_of(figure: Any, panels: int, *, share: bool = False) -> list[Any]:
    """So many panels side by side, in two rows from the fourth on; with one scale for all if shared."""
    columns = panels if panels <= 3 else math.ceil(panels / 2)
    rows = math.ceil(panels / columns)
    axes = figure.subplots(rows, columns, sharex=share, sharey=share, squeeze=False).ravel()
    for spare in axes[panels:]:
        spare.set_visible(False)
    return list(axes[:panels])


def legend_of(panel: Any) -> tuple[list[Any], list[str]]:
    """Handles and labels of a panel, the lines without their whiskers."""
    handles, labels = panel.get_legend_handles_labels()
    return [h[0] if isinstance(h, tuple) else h for h in handles], list(labels)


def whiskers(intervals: Sequence[Interval]) -> list[list[float]]:
    """Lengths of error bars below and above, in percent; 0 where an interval is unknown."""
    lengths = [(100 * (i.mean - i.low), 100 * (i.high - i.mean)) for i in intervals]
    known = [pair if math.isfinite(sum(pair)) else (0.0, 0.0) for pair in lengths]
    return [[low for low, _ in known], [high for _, high in known]]


def save(figure: Any, path: Path) -> None:
    """Write a PNG that is the same for the same figure: no date, no version in it."""
    figure.savefig(path, format="png", metadata={"Software": None})

"""The PNG beside ``fit.html``: agreement, residuals by load, coverage, coefficients on one sheet."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.calibrate.calibration import Calibration
from equipoise.calibrate.result import FitResult
from equipoise.calibrate.words import quantity, share, tokens
from equipoise.report.fit_cells import residual_cells
from equipoise.report.fit_figures import BAND, FAR, WIDE, clock, short_name, ticks
from equipoise.report.plot_style import INK, SOFT, save, sheet, style

__all__ = ["write_fit_plot"]

LOW, MIDDLE, HIGH = "#2b6cb0", "#f4f2ee", "#b5491f"


def write_fit_plot(one: Calibration, path: Path) -> None:
    """Write the sheet.

    Raises
    ------
    InputError
        matplotlib is missing.
    """
    result = one.result
    rate = result.exchange_rate
    known = math.isfinite(rate.value)
    worth = f"one request = {quantity(rate.value)} context tokens; " if known else ""
    subtitle = (
        f"{worth}held-out error {share(result.heldout_mape)}; fixed share {share(result.fixed_share.value)}; "
        f"{result.steps:,} steps"
    )
    with style():
        figure = sheet(f"Step cost: {result.cost.name}", subtitle)
        panels = figure.subplots(2, 2)
        _agreement(panels[0][0], result)
        _residuals(figure, panels[0][1], result)
        _coverage(figure, panels[1][0], result)
        _coefficients(panels[1][1], result)
        for panel in panels.ravel():
            panel.tick_params(axis="both", length=0, pad=6, labelsize=12)
        save(figure, path)


def _agreement(panel: Any, result: FitResult) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    points = result.points
    divisor, unit = clock(points.observed_us)
    x, y = points.predicted_us / divisor, points.observed_us / divisor
    low, high = 0.95 * float(min(x.min(), y.min())), 1.05 * float(max(x.max(), y.max()))
    line = np.geomspace(low, high, 50)
    for factor in (1 - BAND, 1, 1 + BAND):
        dash = "-" if factor == 1 else (0, (1.2, 1.8))
        panel.plot(line, line * factor, color=INK if factor == 1 else SOFT, linestyle=dash, linewidth=1.2)
    panel.scatter(x, y, s=14, color=LOW, alpha=0.35 if len(x) > 300 else 0.8, linewidths=0)
    if high / low > WIDE:
        panel.set_xscale("log")
        panel.set_yscale("log")
        at = ticks(low, high)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(FixedLocator(at))
            axis.set_major_formatter(FixedFormatter([f"{t:,.6g}" for t in at]))
            axis.set_minor_locator(NullLocator())
    panel.set_xlim(low, high)
    panel.set_ylim(low, high)
    panel.set_title("Measured against predicted (dotted: 10 % off)")
    panel.set_xlabel(f"predicted, {unit}", color=SOFT)
    panel.set_ylabel(f"measured, {unit}", color=SOFT)


def _residuals(figure: Any, panel: Any, result: FitResult) -> None:
    from matplotlib.colors import LinearSegmentedColormap, Normalize

    cells = residual_cells(result.points)
    batch, context = cells.labels
    reach = 100 * cells.reach
    colours = LinearSegmentedColormap.from_list("residual", [LOW, MIDDLE, HIGH])
    shown = np.ma.masked_invalid(100 * cells.residual)
    image = panel.pcolormesh(
        shown, cmap=colours, norm=Normalize(-reach, reach), edgecolors="white", linewidth=1
    )
    _plane(panel, context, batch)
    panel.set_title("Measured over predicted, median, %")
    panel.set_xlabel("mean context tokens a rank, from", color=SOFT)
    panel.set_ylabel("mean requests a rank, from", color=SOFT)
    _bar(figure, panel, image)


def _coverage(figure: Any, panel: Any, result: FitResult) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import FuncFormatter

    cells = result.coverage
    shown = np.ma.masked_less(cells.rows, 1)
    colours = LinearSegmentedColormap.from_list("coverage", [MIDDLE, LOW])
    top = max(10, int(cells.rows.max()))
    image = panel.pcolormesh(shown, cmap=colours, norm=LogNorm(0.3, top), edgecolors="white", linewidth=1)
    if result.ranks > 1:
        i, j = np.nonzero(cells.slowest)
        size = cells.slowest[i, j] / max(1, int(cells.slowest.max()))
        panel.scatter(j + 0.5, i + 0.5, s=20 + 260 * size, facecolors="none", edgecolors=HIGH, linewidths=2)
    _plane(panel, [tokens(c) for c in cells.context_from], [f"{b:,}" for b in cells.batch_from])
    rings = "; rings: slowest ranks" if result.ranks > 1 else ""
    panel.set_title(f"Loads of ranks{rings}")
    panel.set_xlabel("context tokens of a rank, from", color=SOFT)
    panel.set_ylabel("requests of a rank, from", color=SOFT)
    bar = _bar(figure, panel, image)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _coefficients(panel: Any, result: FitResult) -> None:
    found = [(n, v, result.intervals[n]) for n, v in result.coefficients.items() if v > 0][::-1]
    reach = 5.0
    for y, (name, value, ends) in enumerate(found):
        low, high = (100 * (e / value - 1) if math.isfinite(e) else 0.0 for e in ends)
        reach = max(reach, abs(low), abs(high))
        panel.plot([low, high], [y, y], color=LOW, linewidth=3, solid_capstyle="butt")
        panel.plot([0], [y], "o", color=LOW, markersize=9)
        label = f"{short_name(result, name)}  {quantity(value)} us"
        panel.text(0.01, y, label, transform=panel.get_yaxis_transform(), fontsize=12, va="center")
    panel.axvline(0, color=SOFT, linewidth=1, zorder=0)
    reach = min(1.1 * reach, FAR[1])
    panel.set_xlim(-3.4 * reach, reach)  # names have the left half
    panel.set_xticks([-reach, 0, reach], [f"{t:+.0f}" if t else "0" for t in (-reach, 0, reach)])
    panel.set_ylim(-0.7, max(len(found), 1) - 0.3)
    panel.set_yticks([])
    panel.set_title("95 % intervals, % of the estimate")


def _plane(panel: Any, context: list[str], batch: list[str]) -> None:
    for labels, put in ((context, panel.set_xticks), (batch, panel.set_yticks)):
        every = max(1, -(-len(labels) // 8))
        put([i + 0.5 for i in range(0, len(labels), every)], labels[::every])
    panel.grid(visible=False)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _bar(figure: Any, panel: Any, image: Any) -> Any:
    bar = figure.colorbar(image, ax=panel, shrink=0.9, aspect=25, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", length=0, labelsize=11)
    return bar

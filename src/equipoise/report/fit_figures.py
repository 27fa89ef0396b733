"""The figures of ``fit.html``: agreement, residuals by load, coverage, coefficients, z."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from equipoise.calibrate.knobs import BestZ
from equipoise.calibrate.result import FitResult
from equipoise.calibrate.words import quantity, span, tokens
from equipoise.report.figure_parts import INK, LINE, SOFT, Figure, axis, layout, safe
from equipoise.report.fit_cells import residual_cells
from equipoise.report.numbers import plain

__all__ = [
    "agreement_figure",
    "clock",
    "coefficient_figure",
    "coverage_figure",
    "regime_figure",
    "residual_figure",
    "short_name",
    "ticks",
    "z_figure",
]

POINT, OTHER = "--ui-low", "--ui-high"
BAND: Final = 0.1
"""Half width of the band around the diagonal."""
MOST_POINTS: Final = 2000
WIDE: Final = 8.0
"""Largest over smallest time from which the axes are logarithmic."""
FAR: Final = (-150.0, 150.0)
"""Ends of the axis of intervals, in percent of the estimate."""


def clock(times_us: Any) -> tuple[float, str]:
    """Divisor and unit for times of this size."""
    return (1000.0, "ms") if float(np.median(times_us)) >= 1000 else (1.0, "us")


def ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... between two bounds, for logarithmic axes."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = [m * 10.0**e for e in range(first, last + 1) for m in (1, 2, 5)]
    return [t for t in every if low <= t <= high]


def short_name(result: FitResult, name: str) -> str:
    """A coefficient without its term, where there is only one term."""
    return name.rpartition(".")[2] if len(result.cost.terms) == 1 else name


def agreement_figure(result: FitResult) -> Figure:
    """Measured against predicted, with the diagonal and a band of a tenth."""
    points = result.points
    divisor, unit = clock(points.observed_us)
    at = np.unique(np.linspace(0, len(points.observed_us) - 1, MOST_POINTS).astype(int))
    x, y = points.predicted_us[at] / divisor, points.observed_us[at] / divisor
    low, high = 0.95 * float(min(x.min(), y.min())), 1.05 * float(max(x.max(), y.max()))
    wide = high / low > WIDE
    line = np.geomspace(low, high, 40) if wide else np.linspace(low, high, 2)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": plain(line.tolist()),
            "y": plain((line * factor).tolist()),
            "line": {"color": INK if factor == 1 else SOFT, "width": 1.2, "dash": dash},
            "hoverinfo": "skip",
        }
        for factor, dash in ((1.0, "solid"), (1 - BAND, "dot"), (1 + BAND, "dot"))
    ]
    text = [
        f"batch {b:.0f}, {tokens(c)} context tokens a rank"
        for b, c in zip(points.batch[at], points.context_tokens[at], strict=True)
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": plain(x.tolist()),
            "y": plain(y.tolist()),
            "text": text,
            "marker": {"color": POINT, "size": 6, "opacity": 0.45 if len(at) > 300 else 0.8},
            "hovertemplate": f"predicted %{{x:.4g}} {unit}, measured %{{y:.4g}} {unit}<br>%{{text}}<extra></extra>",
        }
    )
    at_ticks = ticks(low, high)
    labels = [f"{t:,.6g}" for t in at_ticks]
    kind = {"type": "log", "tickvals": at_ticks, "ticktext": labels} if wide else {}
    ends = [math.log10(low), math.log10(high)] if wide else [low, high]
    return {
        "data": data,
        "layout": layout(
            440,
            xaxis=axis(f"predicted, {unit}", range=ends, **kind),
            yaxis=axis(f"measured, {unit}", range=ends, **kind),
            hovermode="closest",
        ),
    }


def residual_figure(result: FitResult) -> Figure:
    """Median residual by cell of batch and context."""
    cells = residual_cells(result.points)
    batch, context = cells.labels
    percent = 100 * cells.residual
    reach = 100 * cells.reach
    text = [
        ["" if not math.isfinite(v) else f"{v:+.1f}" if abs(v) < 10 else f"{v:+.0f}" for v in row]
        for row in percent.tolist()
    ]
    hover = [
        [
            f"batch from {b}, context from {c} a rank<br>{n:,} steps, median {t or 'n/a'} %"
            for c, n, t in zip(context, counts, texts, strict=True)
        ]
        for b, counts, texts in zip(batch, cells.steps.tolist(), text, strict=True)
    ]
    shown = len(context) <= 14
    return {
        "data": [
            {
                "type": "heatmap",
                "x": list(range(len(context))),
                "y": list(range(len(batch))),
                "z": [plain(row, 3) for row in percent.tolist()],
                "zmin": -reach,
                "zmid": 0,
                "zmax": reach,
                "colorscale": [[0, POINT], [0.5, "--ui-mid"], [1, OTHER]],
                "xgap": 2,
                "ygap": 2,
                "text": text,
                "texttemplate": "%{text}" if shown else "",
                "textfont": {"size": 11},
                "hovertext": hover,
                "hoverinfo": "text",
                "colorbar": _bar("measured over predicted, %"),
            }
        ],
        "layout": _plane(context, batch, "mean context tokens a rank, from", "mean requests a rank, from"),
    }


def coverage_figure(result: FitResult) -> Figure:
    """Loads of ranks by cell of an octave each way; rings where slowest ranks lie."""
    cells = result.coverage
    batch, context = [f"{b:,}" for b in cells.batch_from], [tokens(c) for c in cells.context_from]
    rows = cells.rows.astype(np.float64)
    with np.errstate(divide="ignore"):
        z = np.where(rows > 0, np.log10(np.maximum(rows, 1)), np.nan)
    hover = [
        [
            f"batch from {b}, context from {c} a rank<br>{n:,} loads, {s:,} of slowest ranks"
            for c, n, s in zip(context, counts, slowest, strict=True)
        ]
        for b, counts, slowest in zip(batch, cells.rows.tolist(), cells.slowest.tolist(), strict=True)
    ]
    top = max(1, math.ceil(float(np.nanmax(z))))
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": list(range(len(context))),
            "y": list(range(len(batch))),
            "z": [plain(row, 4) for row in z.tolist()],
            "zmin": -0.3 * top,  # a single load is not nothing
            "zmax": top,
            "colorscale": [[0, "--ui-mid"], [1, POINT]],
            "xgap": 2,
            "ygap": 2,
            "hovertext": hover,
            "hoverinfo": "text",
            "colorbar": {
                **_bar("loads of ranks"),
                "tickvals": list(range(top + 1)),
                "ticktext": [f"{10**i:,}" for i in range(top + 1)],
            },
        }
    ]
    if result.ranks > 1:
        i, j = np.nonzero(cells.slowest)
        size = np.sqrt(cells.slowest[i, j] / max(1, int(cells.slowest.max())))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": j.tolist(),
                "y": i.tolist(),
                "marker": {
                    "symbol": "circle-open",
                    "size": plain((7 + 19 * size).tolist(), 3),
                    "color": OTHER,
                    "line": {"width": 2},
                },
                "hoverinfo": "skip",
            }
        )
    return {
        "data": data,
        "layout": _plane(context, batch, "context tokens of a rank, from", "requests of a rank, from"),
    }


def coefficient_figure(result: FitResult) -> Figure | None:
    """Intervals of all coefficients, in percent of each estimate; None where all are 0."""
    names = [n for n, v in result.coefficients.items() if v > 0 and math.isfinite(sum(result.intervals[n]))]
    if not names:
        return None
    names.reverse()
    y = list(range(len(names)))
    values = [result.coefficients[n] for n in names]
    ends = [[100 * (e / v - 1) for e in result.intervals[n]] for n, v in zip(names, values, strict=True)]
    reach = min(FAR[1], max(5.0, 1.15 * max(abs(e) for pair in ends for e in pair)))
    hover = [
        f"{safe(n)}<br>{quantity(v)} us ({span(*result.intervals[n])})"
        for n, v in zip(names, values, strict=True)
    ]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "markers",
                "x": [0.0] * len(names),
                "y": y,
                "marker": {"color": POINT, "size": 9},
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": plain([high for _, high in ends]),
                    "arrayminus": plain([-low for low, _ in ends]),
                    "color": POINT,
                    "thickness": 2,
                    "width": 6,
                },
                "hovertext": hover,
                "hoverinfo": "text",
            }
        ],
        "layout": layout(
            110 + 34 * len(names),
            xaxis=axis(
                "% of the estimate",
                range=[-reach, reach],
                zeroline=True,
                zerolinecolor=LINE,
            ),
            yaxis=axis(
                tickvals=y,
                ticktext=[
                    f"{safe(short_name(result, n))}  {quantity(v)}"
                    for n, v in zip(names, values, strict=True)
                ],
                range=[-0.6, len(names) - 0.4],
                fixedrange=True,
            ),
        ),
    }


def regime_figure(result: FitResult) -> Figure:
    """Held-out error by coarse regime."""
    found = [(n, 100 * e) for n, e in result.heldout_mape_by_regime.items() if math.isfinite(e)]
    found.reverse()
    top = max([e for _, e in found], default=1.0)
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": plain([e for _, e in found], 3),
                "y": list(range(len(found))),
                "text": [f"{e:.1f} %" for _, e in found],
                "textposition": "outside",
                "cliponaxis": False,
                "marker": {"color": POINT},
                "width": 0.6,
                "hoverinfo": "skip",
            }
        ],
        "layout": layout(
            100 + 34 * max(1, len(found)),
            xaxis=axis("mean absolute error on left-out regions, %", range=[0, 1.18 * (top or 1)]),
            yaxis=axis(
                tickvals=list(range(len(found))), ticktext=[safe(n) for n, _ in found], fixedrange=True
            ),
        ),
    }


def z_figure(z: BestZ) -> Figure:
    """Excess over the threshold of DualPath."""
    curve = [(v, 100 * e) for v, e in z.curve]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": plain([v for v, _ in curve]),
                "y": plain([e for _, e in curve], 4),
                "line": {"color": POINT, "width": 2},
                "marker": {
                    "size": [13 if v == z.z else 6 for v, _ in curve],
                    "color": [OTHER if v == z.z else POINT for v, _ in curve],
                },
                "hovertemplate": "z = %{x}: %{y:.2f} %<extra></extra>",
            }
        ],
        "layout": layout(
            340, xaxis=axis("z"), yaxis=axis("excess over ideal, %", rangemode="tozero"), hovermode="closest"
        ),
    }


def _bar(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "side": "right", "font": {"size": 12}},
        "thickness": 10,
        "outlinewidth": 0,
        "tickfont": {"size": 11},
    }


def _plane(context: list[str], batch: list[str], across: str, up: str) -> dict[str, Any]:
    def ticks(labels: list[str]) -> dict[str, Any]:
        every = max(1, -(-len(labels) // 12))
        return {"tickvals": list(range(0, len(labels), every)), "ticktext": labels[::every]}

    return layout(
        max(300, 120 + 26 * len(batch)),
        xaxis=axis(across, showgrid=False, fixedrange=True, **ticks(context)),
        yaxis=axis(up, showgrid=False, fixedrange=True, **ticks(batch)),
    )

"""A swept parameter: what it costs and how even it leaves the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.report.figure_parts import INK, SOFT, SYMBOLS, Figure, axis, hover, layout, safe, whiskers
from equipoise.report.numbers import plain
from equipoise.report.palette import DASHES, Palette
from equipoise.report.views import Sweep, cheapest, logarithmic, most_even

__all__ = ["sweep_figure"]


def sweep_figure(curves: Sequence[Sweep], palette: Palette) -> Figure:
    """One parameter against excess (above) and balance of tokens and batch (below), for every cost.

    Rings mark the least excess under each cost and the most even tokens: often not the same value.
    """
    colour = palette.token(curves[0].policy)
    data: list[dict[str, Any]] = []
    for i, sweep in enumerate(curves):
        name = safe(sweep.cells[0].setting.cost.name)
        value, cell = cheapest(sweep)
        look = {"color": colour, "dash": DASHES[i % len(DASHES)], "width": 2}
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": name,
                "x": sweep.values,
                "y": plain([100 * c.excess.mean for c in sweep.cells]),
                "error_y": whiskers([c.excess for c in sweep.cells], colour, 1),
                "line": look,
                "marker": {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 7, "color": colour},
                "hovertext": [hover(c) for c in sweep.cells],
                "hoverinfo": "text",
            }
        )
        data.append(
            _ring(
                value,
                100 * cell.excess.mean,
                f"least excess under {name}: {sweep.parameter} = {value:g}",
                "y",
            )
        )
    data += _balance_lines(curves)
    scale: dict[str, Any] = {"type": "log"} if logarithmic(curves[0].values) else {}
    if len(curves[0].values) <= 12:
        scale |= {"tickvals": curves[0].values, "ticktext": [f"{v:g}" for v in curves[0].values]}
    return {
        "data": data,
        "layout": layout(
            520,
            xaxis=axis(safe(curves[0].parameter), anchor="y2", fixedrange=True, **scale),
            yaxis=axis("excess over ideal, %", domain=[0.44, 1], rangemode="tozero", fixedrange=True),
            yaxis2=axis("max / mean", domain=[0, 0.36], fixedrange=True),
            showlegend=True,
        ),
    }


def _balance_lines(curves: Sequence[Sweep]) -> list[dict[str, Any]]:
    """Token and batch balance; one line each where all costs agree, as they do unless the cost sets the clock."""
    data: list[dict[str, Any]] = []
    for field, words, ink in (
        ("max_over_mean_context", "context tokens", INK),
        ("max_over_mean_batch", "batch", SOFT),
    ):
        series = [[c.mean(field) for c in sweep.cells] for sweep in curves]
        same = all(np.allclose(s, series[0], rtol=1e-9, equal_nan=True) for s in series)
        for i, (sweep, values) in enumerate(zip(curves, series, strict=True)):
            if same and i:
                continue
            name = f"{words}, max / mean" if same else f"{words}, {safe(sweep.cells[0].setting.cost.name)}"
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": sweep.values,
                    "y": plain(values),
                    "yaxis": "y2",
                    "line": {"color": ink, "width": 2, "dash": DASHES[i % len(DASHES)]},
                    "marker": {
                        "size": 6,
                        "symbol": "square" if field.endswith("batch") else "circle",
                        "color": ink,
                    },
                    "hovertemplate": f"{safe(sweep.parameter)} = %{{x}}<br>{name}: %{{y:.3f}}<extra></extra>",
                }
            )
            if field.endswith("context"):
                value, cell = most_even(sweep)
                words_ = f"most even tokens: {sweep.parameter} = {value:g}"
                data.append(_ring(value, cell.mean(field), words_, "y2"))
    return data


def _ring(x: float, y: float, words: str, panel: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "y": plain([y]),
        "yaxis": panel,
        "marker": {"symbol": "circle-open", "size": 16, "color": INK, "line": {"width": 2, "color": INK}},
        "hovertext": words,
        "hoverinfo": "text",
        "showlegend": False,
    }

"""What happened along a run: balance over time, and the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.report.figure_parts import LINE, Figure, axis, layout, looks, safe
from equipoise.report.numbers import plain
from equipoise.report.over_time import over_time
from equipoise.report.palette import Palette
from equipoise.report.ranks import RankMap
from equipoise.report.views import finalists
from equipoise.study import Comparison, Setting

__all__ = ["rank_figure", "time_figure"]


def time_figure(comparison: Comparison, setting: Setting, palette: Palette) -> Figure | None:
    """Max/mean of C and B along the first seed's run, for the finalists; the counted time is what the scale fits."""
    data: list[dict[str, Any]] = []
    tops = {"context": [1.0], "batch": [1.0]}
    start = stop = 0.0
    for cell, dash in looks(finalists(comparison, setting)):
        result = cell.runs[0].result
        if result is None:
            continue
        line = over_time(result)
        start, stop = max(start, line.counted_s[0]), max(stop, line.counted_s[1])
        for field, panel in (("context", "y"), ("batch", "y2")):
            values = getattr(line, field)
            inside = line.counted(values)
            if len(inside):
                tops[field].append(float(np.quantile(inside, 0.995)))
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": safe(cell.policy.label),
                    "legendgroup": safe(cell.policy.label),
                    "showlegend": panel == "y",
                    "x": plain(line.time_s.tolist()),
                    "y": plain(values.tolist(), 4),
                    "yaxis": panel,
                    "line": {"color": palette.token(cell.policy.name), "width": 1.6, "dash": dash},
                    "hovertemplate": f"{safe(cell.policy.label)}<br>%{{x:.4g}} s: %{{y:.3f}}<extra></extra>",
                }
            )
    if not data:
        return None

    def span(field: str) -> list[float]:
        top = max(tops[field])
        return [1 - 0.04 * (top - 1 or 1), top + 0.08 * (top - 1 or 1)]

    warm_up = {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": 0,
        "x1": start,
        "y0": 0,
        "y1": 1,
        "fillcolor": LINE,
        "opacity": 0.5,
        "line": {"width": 0},
        "layer": "below",
    }
    return {
        "data": data,
        "layout": layout(
            480,
            xaxis=axis("simulated time, s", anchor="y2", range=[0, stop]),
            yaxis=axis("context, max / mean", domain=[0.54, 1], range=span("context")),
            yaxis2=axis("batch, max / mean", domain=[0, 0.46], range=span("batch")),
            shapes=[warm_up],
            showlegend=True,
            hovermode="closest",
        ),
    }


def rank_figure(shown: RankMap, maps: Sequence[RankMap]) -> Figure:
    """Ranks against time, coloured by own work over the mean, on one scale for all maps that are compared."""
    reach = spread(maps)
    return {
        "data": [
            {
                "type": "heatmap",
                "x": plain(shown.start_s.tolist()),
                "y": shown.ranks.tolist(),
                "z": [plain(row, 3) for row in shown.relative.tolist()],
                "zmin": 1 - reach,
                "zmid": 1,
                "zmax": 1 + reach,
                "colorscale": [[0, "--ui-low"], [0.5, "--ui-mid"], [1, "--ui-high"]],
                "colorbar": {
                    "title": {"text": "own work / mean", "side": "right", "font": {"size": 12}},
                    "thickness": 10,
                    "outlinewidth": 0,
                    "tickfont": {"size": 11},
                },
                "hovertemplate": "rank %{y}, %{x:.4g} s: %{z:.2f} of the mean<extra></extra>",
            }
        ],
        "layout": layout(
            380,
            xaxis=axis("simulated time, s", showgrid=False, fixedrange=True),
            yaxis=axis("rank", showgrid=False, autorange="reversed", fixedrange=True),
        ),
    }


def spread(maps: Sequence[RankMap]) -> float:
    """Largest distance from the mean worth a colour of its own: the outermost hundredth may saturate."""
    distances = np.concatenate([np.abs(m.relative - 1).ravel() for m in maps])
    distances = distances[np.isfinite(distances)]
    return max(0.02, float(np.quantile(distances, 0.99))) if len(distances) else 0.02

"""Figures of ``live.html``, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from equipoise.live.findings.agreement import Level
from equipoise.live.findings.analysis import Analysis
from equipoise.live.findings.gap import Gap
from equipoise.live.findings.loads import KNOWN, grid, loads_at
from equipoise.live.findings.numbers import lives_of
from equipoise.live.findings.pairs import Finding
from equipoise.live.findings.runs import Run
from equipoise.live.findings.sentences import amount, finding_words
from equipoise.report.figure_parts import (
    INK,
    LINE,
    SOFT,
    SYMBOLS,
    Figure,
    axis,
    dodge,
    layout,
    safe,
    two_lines,
)
from equipoise.report.numbers import plain
from equipoise.report.palette import DASHES, Palette
from equipoise.study.statistics import Interval
from equipoise.types import Floats

__all__ = ["gap_figure", "level_figure", "pair_figure", "policy_name", "repeat_figure", "time_figure"]

WIDEST = 60.0
"""Percent that a figure of differences shows at most, unless differences themselves are larger."""
POINTS = 160
"""Moments of a figure over time."""


def policy_name(text: str) -> str:
    """Name of a policy without its parameters."""
    return text.partition(",")[0]


def pair_figure(findings: Sequence[Finding]) -> Figure:
    """Every pair of one measure: its change with its interval, and the margin as a band."""
    rows = list(range(len(findings)))
    unit = "%" if findings[0].measure.scale == "ratio" else "points"
    margin = 100 * findings[0].margin
    low = 100 * (1 / (1 + findings[0].margin) - 1) if unit == "%" else -margin
    colour = {"lower": "--ui-low", "higher": "--ui-high", "equal": INK}
    middle = [100 * f.change(f.interval.mean) for f in findings]
    ends = [(100 * f.change(f.interval.low), 100 * f.change(f.interval.high)) for f in findings]
    reach = max([margin, *(abs(v) for pair in ends for v in pair if math.isfinite(v)), *map(abs, middle)])
    reach = min(
        reach, max(WIDEST, 2 * max(map(abs, middle)))
    )  # an interval without end would flatten all others
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": plain(middle),
        "y": rows,
        "marker": {
            "size": 10,
            "color": [colour.get(f.verdict, SOFT) for f in findings],
            "symbol": ["square" if f.verdict == "equal" else "circle" for f in findings],
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": plain([high - m for m, (_, high) in zip(middle, ends, strict=True)]),
            "arrayminus": plain([m - low for m, (low, _) in zip(middle, ends, strict=True)]),
            "color": INK,
            "thickness": 1.5,
            "width": 4,
        },
        "hovertext": [safe(finding_words(f)) for f in findings],
        "hoverinfo": "text",
    }
    band = {"type": "rect", "x0": low, "x1": margin, "yref": "paper", "y0": 0, "y1": 1, "fillcolor": LINE}
    zero = {
        "type": "line",
        "x0": 0,
        "x1": 0,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": SOFT, "width": 1},
    }
    return {
        "data": [points],
        "layout": layout(
            90 + 34 * len(findings),
            xaxis=axis(f"A less B, {unit}", range=[-1.12 * reach, 1.12 * reach], fixedrange=True),
            yaxis=axis(
                tickvals=rows,
                ticktext=[two_lines(safe(f"{f.a} − {f.b}"), "<br>") for f in findings],
                range=[len(findings) - 0.45, -0.55],
                showgrid=False,
                fixedrange=True,
            ),
            shapes=[
                {**band, "opacity": 0.5, "line": {"width": 0}, "layer": "below"},
                {**zero, "layer": "below"},
            ],
        ),
    }


def level_figure(levels: Sequence[Level], measured: Sequence[Interval], palette: Palette) -> Figure:
    """Predicted and measured of one measure, policy by policy."""
    rows = list(range(len(levels)))
    colours = [palette.token(policy_name(x.policy)) for x in levels]
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": "measured, with its interval over repeats",
        "x": plain([x.measured for x in levels]),
        "y": rows,
        "marker": {"size": 10, "color": colours},
        "error_x": _errors(measured),
        "hoverinfo": "x",
    }
    diamonds = {
        "type": "scatter",
        "mode": "markers",
        "name": "predicted",
        "x": plain([x.predicted for x in levels]),
        "y": [r + 0.22 for r in rows],
        "marker": {"size": 11, "symbol": "diamond-open", "color": colours, "line": {"width": 2}},
        "hovertext": [
            f"predicted {amount(x.measure, x.predicted)}, {100 * x.off[0]:+.1f} % off" for x in levels
        ],
        "hoverinfo": "text",
    }
    return {
        "data": [dots, diamonds],
        "layout": layout(
            120 + 40 * len(levels),
            xaxis=axis(levels[0].measure.label, fixedrange=True),
            yaxis=_policy_axis([x.policy for x in levels]),
            showlegend=True,
        ),
    }


def repeat_figure(analysis: Analysis, name: str, label: str, palette: Palette) -> Figure:
    """One measure of every policy, repeat by repeat: what pairs up, and what drifts."""
    data = []
    seen: dict[str, int] = {}
    for i, p in enumerate(analysis.policies):
        if name not in p.values:
            continue
        family = policy_name(p.policy)
        dash = DASHES[seen.setdefault(family, 0) % len(DASHES)]
        seen[family] += 1
        repeats = sorted(analysis.runs.of(p.policy))
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": safe(p.policy),
                "x": [round(k + 1 + dodge(i, len(analysis.policies)), 4) for k in repeats],
                "y": plain(list(p.values[name])),
                "line": {"color": palette.token(family), "width": 2, "dash": dash},
                "marker": {"symbol": SYMBOLS[i % len(SYMBOLS)], "size": 8, "color": palette.token(family)},
                "hoverinfo": "y+name",
            }
        )
    repeats = sorted({r.repeat for r in analysis.runs.runs})
    return {
        "data": data,
        "layout": layout(
            360,
            xaxis=axis(
                "repeat",
                tickvals=[k + 1 for k in repeats],
                ticktext=[str(k + 1) for k in repeats],
                fixedrange=True,
            ),
            yaxis=axis(label, fixedrange=True),
            showlegend=True,
        ),
    }


def gap_figure(gaps: Sequence[Gap]) -> Figure:
    """Parts of measured less predicted ITL, policy by policy."""
    rows = list(range(len(gaps)))
    parts = (
        ("other loads", "--ui-low", [g.loads_ms.mean if g.loads_ms else math.nan for g in gaps]),
        ("price, prompts in between", SOFT, [g.prompts_ms.mean if g.prompts_ms else math.nan for g in gaps]),
        ("price, the rest", "--ui-high", [_rest(g) for g in gaps]),
    )
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "x": plain(values),
                "y": rows,
                "marker": {"color": colour},
                "hoverinfo": "x+name",
            }
            for name, colour, values in parts
            if any(math.isfinite(v) for v in values)
        ],
        "layout": layout(
            120 + 44 * len(gaps),
            barmode="group",
            xaxis=axis(
                "measured less predicted mean ITL, ms", fixedrange=True, zeroline=True, zerolinecolor=SOFT
            ),
            yaxis=_policy_axis([g.policy for g in gaps]),
            showlegend=True,
        ),
    }


def _rest(g: Gap) -> float:
    if g.price_ms is None:
        return math.nan
    return g.price_ms.mean - (g.prompts_ms.mean if g.prompts_ms else 0.0)


def time_figure(analysis: Analysis, palette: Palette, *, context: bool) -> Figure | None:
    """Largest over mean of B or C along the first run of every policy; None where ranks are not known."""
    data = []
    for policy in analysis.runs.policies:
        run = analysis.runs.of(policy)[min(analysis.runs.of(policy))]
        found = _over_time(run, analysis.runs.ranks, context=context)
        if found is None:
            continue
        at_s, ratio = found
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": safe(policy),
                "x": plain(list(at_s)),
                "y": plain(list(ratio), 4),
                "line": {"color": palette.token(policy_name(policy)), "width": 1.5},
                "hoverinfo": "y+name",
            }
        )
    if not data:
        return None
    what = "context tokens" if context else "batch"
    return {
        "data": data,
        "layout": layout(
            320,
            xaxis=axis("seconds of the run", fixedrange=True),
            yaxis=axis(f"{what}, largest over mean", fixedrange=True),
            showlegend=True,
        ),
    }


def _over_time(run: Run, ranks: Sequence[int], *, context: bool) -> tuple[Floats, Floats] | None:
    lives = lives_of(run)
    if lives.known < KNOWN:
        return None
    fine = loads_at(lives, grid(lives, 10 * POINTS), sum(ranks))
    values = fine.context_tokens if context else fine.batch
    ends = np.cumsum([0, *ranks])
    most = sum(values[:, a:b].max(axis=1) for a, b in pairwise(ends))
    mean = sum(values[:, a:b].mean(axis=1) for a, b in pairwise(ends))
    top, bottom = (np.asarray(v).reshape(POINTS, 10).sum(axis=1) for v in (most, mean))
    ratio = np.divide(top, bottom, out=np.full(POINTS, np.nan), where=bottom > 0)
    return fine.at_s.reshape(POINTS, 10).mean(axis=1), ratio


def _policy_axis(policies: Sequence[str]) -> dict[str, object]:
    rows = list(range(len(policies)))
    return axis(
        tickvals=rows,
        ticktext=[two_lines(safe(p), "<br>") for p in policies],
        range=[len(rows) - 0.4, -0.6],
        showgrid=False,
        fixedrange=True,
    )


def _errors(intervals: Sequence[Interval]) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": plain([i.high - i.mean for i in intervals]),
        "arrayminus": plain([i.mean - i.low for i in intervals]),
        "color": INK,
        "thickness": 1.5,
        "width": 4,
    }

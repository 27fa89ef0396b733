"""`write_html`: a comparison as one file that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from equipoise.report import content, words
from equipoise.report.board import Board, paint
from equipoise.report.figure_excess import excess_figure, group_figure
from equipoise.report.figure_runs import rank_figure, time_figure
from equipoise.report.figure_sweep import sweep_figure
from equipoise.report.numbers import percent
from equipoise.report.palette import Palette
from equipoise.report.ranks import RankMap, rank_maps
from equipoise.report.views import Scene, Sweep, first_scenes, optima_words, sweeps, tied
from equipoise.study import Comparison, Setting

__all__ = ["render", "write_html"]

MOST_SWEEPS = 8


def write_html(
    comparison: Comparison, path: Path, *, maps: Sequence[Sequence[RankMap]] | None = None
) -> None:
    """Write the report.

    Parameters
    ----------
    comparison : Comparison
        One cell is enough.
    path : Path
    maps : sequence, optional
        Rank maps if they are at hand; otherwise two replays a trace are run to make them.

    Raises
    ------
    InputError
        The libraries of the extra `report` are missing.
    """
    path.write_text(render(comparison, maps=maps), "utf-8")


def render(comparison: Comparison, *, maps: Sequence[Sequence[RankMap]] | None = None) -> str:
    """The page as text: the same comparison gives the same text, the environment section apart."""
    palette = Palette.of(p.name for p in comparison.plan.policies)
    board = Board()
    shown, others = content.verdict_pairs(comparison)
    context = {
        "version": version("equipoise"),
        "title": content.title(comparison),
        "subtitle": content.subtitle(comparison),
        "headlines": content.headlines(comparison, palette),
        "verdicts": shown,
        "more_verdicts": others,
        "excess": _excess(comparison, palette, board),
        "any_tied": any(tied(comparison, c) for c in comparison.cells),
        **_sweeps(comparison, palette, board),
        "over_time": _over_time(comparison, palette, board),
        "rank_maps": _rank_maps(comparison, board, rank_maps(comparison) if maps is None else maps),
        "groups": _groups(comparison, palette, board),
        "settings": [content.setting_tables(comparison, s, palette) for s in comparison.settings()],
        "whisker_words": words.whisker_words(comparison),
        "interval_words": words.interval_words(comparison),
        "reading": words.reading(comparison),
        "costs": [
            {"name": c.name, "formula": words.formula_lines(c), "words": words.cost_words(c)}
            for c in comparison.plan.costs
        ],
        "config": content.config_text(comparison),
        "environment": content.environment_rows(comparison),
    }
    context["contents"] = _contents(context)
    return paint(
        "report.html.j2",
        context,
        board,
        {"palette_light": palette.css(dark=False), "palette_dark": palette.css(dark=True)},
    )


def _excess(comparison: Comparison, palette: Palette, board: Board) -> list[dict[str, Any]]:
    found = []
    for scene in first_scenes(comparison):
        pinned = [
            board.pin(
                excess_figure(comparison, s, scene, palette),
                title=f"under {s.cost.name}",
                alt=f"Excess over ideal by policy under {s.cost.name}",
            )
            for s in scene.settings
        ]
        found.append({"words": scene.words, "figures": pinned})
    return found


def _sweeps(comparison: Comparison, palette: Palette, board: Board) -> dict[str, Any]:
    """One figure a swept parameter and trace, with all costs in it."""
    pinned: list[dict[str, Any]] = []
    names: list[tuple[str, str]] = []
    left_out = 0
    several = len(first_scenes(comparison)) > 1
    for scene in first_scenes(comparison):
        by_cost = [sweeps(comparison.of(s)) for s in scene.settings]
        for curves in zip(*by_cost, strict=True):
            first: Sweep = curves[0]
            names.append((first.policy, first.parameter))
            if len(pinned) >= MOST_SWEEPS:
                left_out += 1
                continue
            parts = [
                f"{first.policy} over {first.parameter}",
                first.fixed,
                scene.first.trace if several else "",
            ]
            title = ", ".join(part for part in parts if part)
            figure = sweep_figure(curves, palette)
            pinned.append(board.pin(figure, title=title, alt=title, caption=f"{optima_words(curves)}."))
    swept = list(dict.fromkeys(names))
    title = "Parameters"
    if len(swept) == 1:
        title = f"The choice of {swept[0][1]}"
    words_ = f"{left_out} more curves are not drawn; their numbers are in the tables." if left_out else ""
    return {"sweeps": pinned, "sweep_title": title, "sweeps_left_out": words_}


def _over_time(comparison: Comparison, palette: Palette, board: Board) -> list[dict[str, Any]]:
    found = []
    several = len(first_scenes(comparison)) > 1
    for scene in first_scenes(comparison):
        figure = time_figure(comparison, scene.first, palette)
        if figure is not None:
            words_ = f"{scene.first.trace}, " if several else ""
            title = f"{words_}under {scene.first.cost.name}"
            found.append(
                board.pin(figure, title=title, alt=f"Largest over mean of context and batch, {title}")
            )
    return found


def _rank_maps(
    comparison: Comparison, board: Board, maps: Sequence[Sequence[RankMap]]
) -> list[dict[str, Any]]:
    found = []
    for scene, shown in zip(first_scenes(comparison), maps, strict=True):
        pinned = [
            board.pin(
                rank_figure(m, shown),
                title=f"{m.cell.policy.label} ({m.role}), under {scene.first.cost.name}",
                alt=f"Own work of every rank over time, {m.cell.policy.label}",
                caption=_map_caption(m, scene),
            )
            for m in shown
        ]
        found.append({"words": scene.words, "figures": pinned})
    return found


def _map_caption(shown: RankMap, scene: Scene) -> str:
    more = percent(shown.slowest - 1, 1)
    which = " The first instance is shown." if scene.first.pool.instances > 1 else ""
    return f"On average over these steps the slowest rank does {more} % more than the mean.{which}"


def _groups(comparison: Comparison, palette: Palette, board: Board) -> list[dict[str, Any]]:
    """A figure a trace and cost, where the pool was cut in more than one way."""
    by_cost: dict[tuple[str, str, str | None], list[Setting]] = {}
    for setting in comparison.settings():
        by_cost.setdefault((setting.trace, setting.cost.name, setting.deployment_name), []).append(setting)
    found = []
    for (trace, cost, _), settings in by_cost.items():  # a deployment comes with its groups
        if len({s.pool.groups for s in settings}) > 1:
            title = f"{trace}, under {cost}"
            found.append(
                board.pin(
                    group_figure(comparison, settings, palette),
                    title=title,
                    alt=f"Excess by number of groups, {title}",
                )
            )
    return found


def _contents(context: dict[str, Any]) -> list[tuple[str, str]]:
    entries = [
        ("verdict", "Verdict", True),
        ("excess", "Cost over ideal", True),
        ("sweep", context["sweep_title"], context["sweeps"]),
        ("time", "Over time", context["over_time"]),
        ("ranks", "Ranks", context["rank_maps"]),
        ("groups", "Groups", context["groups"]),
        ("numbers", "All numbers", True),
        ("reading", "How to read this", True),
        ("costs", "Costs", True),
        ("setup", "Configuration", True),
    ]
    return [(anchor, words_) for anchor, words_, there in entries if there]

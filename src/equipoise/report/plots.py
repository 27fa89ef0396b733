"""The PNG plots beside a report: the same content as the page's figures, for slides and READMEs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from equipoise.report.palette import Palette
from equipoise.report.plot_excess import plot_excess, plot_groups
from equipoise.report.plot_runs import plot_over_time, plot_ranks
from equipoise.report.plot_style import save, style
from equipoise.report.plot_sweep import plot_sweep
from equipoise.report.ranks import RankMap, rank_maps
from equipoise.report.views import first_scenes, settings_by_trace, sweeps
from equipoise.study import Comparison

__all__ = ["write_plots"]


def write_plots(
    comparison: Comparison, folder: Path, *, maps: Sequence[Sequence[RankMap]] | None = None
) -> list[Path]:
    """Write ``excess.png``, ``balance_over_time.png``, ``ranks.png``, and what else there is to show.

    That is ``z_curve.png`` (or another parameter's) where one was swept, and ``groups.png`` where the pool was cut
    in several ways. The second trace gets ``excess-2.png`` and so on.

    Parameters
    ----------
    comparison : Comparison
    folder : Path
        Must exist.
    maps : sequence, optional
        Rank maps if they are at hand.

    Returns
    -------
    list of Path
        The files, in the order they were written.

    Raises
    ------
    InputError
        matplotlib is missing.
    """
    palette = Palette.of(p.name for p in comparison.plan.policies)
    written: list[Path] = []

    def keep(figure: Any, stem: str) -> None:
        path, n = folder / f"{stem}.png", 2
        while path in written:
            path, n = folder / f"{stem}-{n}.png", n + 1
        save(figure, path)
        written.append(path)

    with style():
        if maps is None:
            maps = rank_maps(comparison)
        for scene, shown in zip(first_scenes(comparison), maps, strict=True):
            keep(plot_excess(comparison, scene, palette), "excess")
            for curves in zip(*(sweeps(comparison.of(s)) for s in scene.settings), strict=True):
                name = re.sub(r"\W+", "_", curves[0].parameter)[:40]
                keep(plot_sweep(scene, curves, palette), f"{name}_curve")
            keep(plot_over_time(comparison, scene, palette), "balance_over_time")
            keep(plot_ranks(scene, shown), "ranks")
        for settings in settings_by_trace(comparison):
            if len({s.pool.groups for s in settings}) > 1:
                keep(plot_groups(comparison, settings, palette), "groups")
    return written

"""Reports of a comparison: tables in the terminal, one offline page, PNG plots, a Perfetto timeline."""

from __future__ import annotations

from pathlib import Path

from equipoise.report.extra import need
from equipoise.report.fleet_timeline import fleet_timeline, write_fleet_timeline
from equipoise.report.html import write_html
from equipoise.report.plots import write_plots
from equipoise.report.ranks import rank_maps
from equipoise.report.tables import print_tables
from equipoise.report.timeline import write_timeline
from equipoise.study import Comparison

__all__ = [
    "fleet_timeline",
    "print_tables",
    "write_fleet_timeline",
    "write_html",
    "write_plots",
    "write_report",
    "write_timeline",
]


def write_report(comparison: Comparison, folder: Path) -> None:
    """Write ``report.html``, the PNG plots and ``timeline.json`` into a folder.

    Parameters
    ----------
    comparison : Comparison
    folder : Path
        Must exist; `equipoise.study.folder.staged` gives one whose files appear all at once.

    Raises
    ------
    InputError
        The libraries of the extra `report` are missing; nothing has been written then.
    """
    for module in ("jinja2", "plotly.offline", "matplotlib.figure"):
        need(module)
    maps = rank_maps(comparison)
    write_html(comparison, folder / "report.html", maps=maps)
    write_plots(comparison, folder, maps=maps)
    write_timeline(comparison, folder / "timeline.json")

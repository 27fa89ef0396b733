"""What the pages share: a board of figures under fixed ids, and the one place that fills a template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from equipoise.report.extra import need
from equipoise.report.figure_parts import Figure

__all__ = ["Board", "paint"]


class Board:
    """Gathers the figures of a page under fixed ids."""

    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}

    def pin(self, figure: Figure, *, title: str = "", alt: str, caption: str = "") -> dict[str, Any]:
        """Keep a figure and return what the template needs to place it."""
        name = f"figure-{len(self.figures) + 1}"
        self.figures[name] = figure
        height = figure["layout"]["height"]
        return {"id": name, "title": title, "alt": alt, "caption": caption, "height": height}

    def json(self) -> str:
        """All figures; no ``<`` is left, so that nothing in it can end the script element it stands in."""
        text = json.dumps(self.figures, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def paint(template: str, context: Mapping[str, Any], board: Board, styles: Mapping[str, str]) -> str:
    """Fill a template of the folder ``page``; what comes from outside is escaped.

    Parameters
    ----------
    template : str
        Its file name.
    context : mapping
        What it shows.
    board : Board
        Its figures.
    styles : mapping of str to str
        Style sheets made by the caller, taken as they are.

    Raises
    ------
    InputError
        The libraries of the extra `report` are missing.
    """
    jinja2, plotly = need("jinja2"), need("plotly.offline")
    page = files("equipoise.report") / "page"
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (page / name).read_text("utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    safe = {
        "css": (page / "report.css").read_text("utf-8"),
        "js": (page / "report.js").read_text("utf-8"),
        "plotly_js": plotly.get_plotlyjs(),
        "figures_json": board.json(),
        **styles,
    }
    from_here = {k: environment.filters["safe"](v) for k, v in safe.items()}
    return str(environment.get_template(template).render(**context, **from_here))

"""`equipoise live analyse`: what a live run showed, from its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equipoise.cli.options import Json, Many, split

__all__ = ["analyse"]


def analyse(
    folder: Path,
    /,
    *,
    margin_percent: float = 2.0,
    measure: Many = (),
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    cost: str | None = None,
    output_dir: Path | None = None,
    no_html: Annotated[bool, Parameter(negative="")] = False,
    as_json: Json = False,
) -> None:
    """Say what a live run showed: which policies differ, which are equal, and whether the prediction held.

    Reads the folder that `equipoise live` wrote, finished or not, and writes analysis.json and live.html into it.

    Parameters
    ----------
    folder
        Folder of a live run.
    margin_percent
        Policies are shown equal where the whole interval of their difference is within so many percent.
    measure
        Compare policies by these only, such as itl_ms.mean. Commas or repeated.
    ttft_ms
        For goodput: time to first token that a good request meets. Default: as the run was told.
    tpot_ms
        For goodput: and time per token after it.
    cost
        Predict with this step cost, a preset or a file. Default: fitted to the probe's steps.
    output_dir
        Write there instead.
    no_html
        Do not write live.html.
    """
    from equipoise.cost import load
    from equipoise.live.findings import analyse as run
    from equipoise.live.findings.numbers import Slo
    from equipoise.live.findings.writing import write_analysis

    if not no_html:
        from equipoise.report.extra import need

        for module in ("jinja2", "plotly.offline"):
            need(module)
    slo = Slo(ttft_ms, tpot_ms)
    found = run(
        folder,
        margin_percent=margin_percent,
        measures=split(measure, "--measure") or None,
        slo=slo if slo else None,
        cost=None if cost is None else load(cost),
    )
    target = folder if output_dir is None else output_dir
    text = write_analysis(found, target, html=not no_html)
    if as_json:
        print(text, end="")
        return
    from rich.console import Console

    from equipoise.live.findings.tables import print_analysis

    print_analysis(found, target, Console(highlight=False), html=not no_html)

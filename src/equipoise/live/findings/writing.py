"""The files of an analysis, beside the tables it was made from."""

from __future__ import annotations

from pathlib import Path

from equipoise.live.files import replacing
from equipoise.live.findings.analysis import Analysis
from equipoise.live.findings.plain import to_json

__all__ = ["JSON", "PAGE", "write_analysis"]

JSON, PAGE = "analysis.json", "live.html"


def write_analysis(analysis: Analysis, folder: Path, *, html: bool = True) -> str:
    """Write ``analysis.json``, and ``live.html`` if asked; give the text of the former.

    Raises
    ------
    InputError
        A file cannot be written, or the libraries of the extra `report` are missing.
    """
    files = {JSON: to_json(analysis)}
    if html:
        from equipoise.live.findings.page import render

        files[PAGE] = render(analysis)
    for name, text in files.items():
        with replacing(folder / name) as file:
            file.write(text.encode("utf-8"))
    return files[JSON]

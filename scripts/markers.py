"""Parts of a documentation page that a script writes: what stands between two comments that name the part."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DOCS", "ROOT", "replace"]

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def replace(page: str, title: str, script: str, body: str) -> str:
    """Put a body between the markers of a part; a page without them is refused.

    Parameters
    ----------
    page : str
        Text of the page.
    title, script : str
        Name of the part, and the script that writes it, as the markers spell them.
    body : str
    """
    begin, end = f"<!-- {title}: written by scripts/{script} -->", f"<!-- /{title} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"a page lacks the markers {begin} and {end}")
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"

"""What the tests of the documentation share: where pages are, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

FENCE = re.compile(
    r"(?P<mark><!-- not run: [^\n]*-->\n)?^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str | None
    body: str
    runs: bool
    line: int


def pages() -> list[Path]:
    return sorted(DOCS.rglob("*.md"))


def text_of(page: Path | str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: Path | str) -> Iterator[Block]:
    text = text_of(page)
    for found in FENCE.finditer(text):
        yield Block(
            found["language"],
            found["title"],
            found["body"],
            found["mark"] is None,
            text.count("\n", 0, found.start()) + 1,
        )

"""Links inside the documentation lead somewhere, headings included; every page is in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import DOCS, ROOT, pages

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
WRITTEN_ELSEWHERE = {DOCS / "explain" / "benchmarks.md"}
"""Pages that come with the benchmarks."""


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Ids of the headings of a page, as Markdown's table of contents makes them."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        heading = re.match(r"#+ (.*?)(?: \{ #([\w-]+) \})?$", line)
        if heading is None:
            continue
        words = re.sub(r"[^\w\s-]", "", heading[1].replace("`", "")).strip().lower()
        found.add(heading[2] or re.sub(r"[-\s]+", "-", words))
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(DOCS)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.is_relative_to(DOCS), f"{target} leaves the documentation"
        if file in WRITTEN_ELSEWHERE and not file.exists():
            continue
        assert file.is_file(), target
        if anchor:
            assert anchor in anchors(file), f"{target}: {sorted(anchors(file))}"


def navigation() -> list[str]:
    config = ROOT / "mkdocs.yml"
    if not config.is_file():
        pytest.skip("the tests run without the site's configuration, beside an installed wheel")
    text = config.read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"[\w/.-]+\.md", text)


def test_every_page_is_in_the_navigation() -> None:
    assert sorted(set(navigation())) == sorted(navigation())
    have = {str(p.relative_to(DOCS)) for p in pages()}
    assert have <= set(navigation())
    assert set(navigation()) - have <= {str(p.relative_to(DOCS)) for p in WRITTEN_ELSEWHERE}


def test_the_index_of_decisions_is_complete() -> None:
    index = (DOCS / "adr" / "index.md").read_text(encoding="utf-8")
    records = sorted(p.name for p in (DOCS / "adr").glob("0*.md"))
    assert records
    for name in records:
        title = (DOCS / "adr" / name).read_text(encoding="utf-8").splitlines()[0]
        number, words = title.removeprefix("# ").split(" ", 1)
        assert name.startswith(number)
        assert f"[{number}]({name}) | {words} |" in index, title


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(DOCS)))
def test_no_machine_paths_and_nothing_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/work/|/tmp/|/home/|/root/", text)
    assert "<script" not in text
    assert "<img" not in text


def test_the_mirror_has_the_same_commands() -> None:
    english, chinese = (
        re.findall(
            r"^\$ (?:.*\\\n)*.*$", (DOCS / "tutorial" / name).read_text(encoding="utf-8"), re.MULTILINE
        )
        for name in ("first-study.md", "first-study.zh.md")
    )
    assert english == chinese

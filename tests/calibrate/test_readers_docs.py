"""The reference page names every format, with its example, and every target of a column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from equipoise.calibrate.readers import formats
from equipoise.calibrate.readers.columns import TARGETS, USUAL_NAMES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "step-log-formats.md").read_text()


@pytest.mark.parametrize("entry", formats(), ids=lambda entry: entry["name"])
def test_every_format_has_its_section_and_its_example(entry: dict[str, str]) -> None:
    section = PAGE.partition(f"\n### {entry['name']}\n")[2].partition("\n### ")[0]
    assert entry["example"] in section


def test_formats_stand_in_the_order_they_are_tried() -> None:
    table = PAGE.partition("## How a format is told")[2].partition("## Rules")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == [entry["name"] for entry in formats()]


def test_every_target_and_usual_name_is_listed() -> None:
    for name in (*TARGETS, *(usual for names in USUAL_NAMES.values() for usual in names)):
        assert f"`{name}`" in PAGE, name

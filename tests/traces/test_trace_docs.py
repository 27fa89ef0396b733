"""The reference pages name every format, preset, parameter and field that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from equipoise.traces import describe, synth
from equipoise.traces.presets import PRESETS, load_preset
from equipoise.traces.readers import FORMATS, ReadReport
from equipoise.traces.readers.generic import TARGETS, USUAL_NAMES
from equipoise.traces.writing import WRITERS

DOCS = Path(__file__).resolve().parents[2] / "docs"
FORMATS_PAGE = (DOCS / "reference/trace-formats.md").read_text()
PRESETS_PAGE = (DOCS / "reference/synthetic-presets.md").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_its_row_its_section_and_its_example(name: str) -> None:
    row = re.search(rf"^\| `{name}` \|.*\| (yes )?\|$", FORMATS_PAGE, re.MULTILINE)
    assert row
    assert bool(row[1]) == (name in WRITERS)
    assert re.search(rf"^### .*\b{name}\b", FORMATS_PAGE, re.MULTILINE)
    if name not in ("jsonl", "parquet", "equipoise"):
        assert FORMATS[name].example in FORMATS_PAGE


def test_formats_stand_in_the_order_they_are_tried() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", FORMATS_PAGE.partition("## Rules")[0], re.MULTILINE)[6:] == list(
        FORMATS
    )


def test_every_target_and_guessed_name_is_listed() -> None:
    for name in (*TARGETS, *(usual for names in USUAL_NAMES.values() for usual in names)):
        assert f"`{name}`" in FORMATS_PAGE, name


def test_every_field_of_info_is_listed() -> None:
    values = describe(synth("agentic-coding", 50)).to_dict()
    names = [name for name in values if name != "schema"] + list(values["arrivals"]) + list(values["decode"])
    names += [name for name in ReadReport.__dataclass_fields__ if name != "rows"]
    section = FORMATS_PAGE.partition("## What `trace info` computes")[2]
    for name in names:
        assert f"`{name}`" in section, name


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("preset", "value"):
                yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


@pytest.mark.parametrize("preset", PRESETS)
def test_every_parameter_of_a_preset_is_in_its_section(preset: str) -> None:
    table = load_preset(preset)
    section = PRESETS_PAGE.partition(f"### {preset}\n")[2].partition("\n### ")[0]
    plain = section.replace(",", "").replace("39.5k", "39500")
    stated = {float(text) for text in re.findall(r"-?\d+(?:\.\d+)?", plain)}
    row = re.search(rf"^\| `{preset}` \|.*\| ([\d.]+) \|$", PRESETS_PAGE, re.MULTILINE)
    assert row
    assert float(row[1]) == table["rate_per_s"]
    parts = {key: inner for key, inner in table.items() if key not in ("rate_per_s", "arrivals")}
    for number in numbers(parts):
        wanted = {number, round(number * 100, 9), -number}
        assert wanted & stated or number in (0, 1.0), f"{number} is not in the section on {preset}"

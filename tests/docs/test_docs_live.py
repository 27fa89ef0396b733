"""The tables of a live run are documented: every column, every outcome, every key of its runs."""

from __future__ import annotations

import re

import msgspec
import pytest
from pages import text_of

from equipoise.live.about import RunAbout
from equipoise.live.rows import TABLES, Outcome

PAGE = "reference/live-tables.md"


@pytest.mark.parametrize("table", TABLES)
def test_every_column(table: str) -> None:
    section = text_of(PAGE).partition(f"## `{table}.parquet`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section.partition("| outcome |")[0], re.MULTILINE)
    shown = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(shown) == sorted(TABLES[table])


def test_every_outcome_and_key() -> None:
    page = text_of(PAGE)
    assert all(f"| `{outcome}` | " in page for outcome in Outcome)
    assert all(f"`{field.name}`" in page for field in msgspec.structs.fields(RunAbout))

"""The page on runs against the schema, the files and the code it describes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pages import DOCS, blocks, text_of

from equipoise.study.run_summary import run_schema

jsonschema = pytest.importorskip("jsonschema")
NAME = "reference/run-schema.md"


def section(title: str) -> str:
    """A section, up to the next one of its level or above."""
    page = text_of(NAME)
    level = title.split()[0]
    after = page.partition(f"\n{title}")[2]
    assert after, title
    return re.split(rf"\n#{{2,{len(level)}}} ", after)[0]


def first_column(text: str) -> list[str]:
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_example_fits_the_schema() -> None:
    text = re.findall(r"```json\n(.*?)```", text_of(NAME), re.DOTALL)[0]
    jsonschema.validate(json.loads(text), run_schema())


def test_every_key_is_explained() -> None:
    parts = run_schema()
    top = set(parts["properties"])
    told = first_column(section("### What was run")) + first_column(section("### Steps"))
    assert top - {"counts", "requests", "classes"} == set(told)
    assert len(told) == len(set(told))
    assert set(parts["properties"]["counts"]["properties"]) == set(first_column(section("### Counts")))
    requests = first_column(section("### Requests"))
    assert set(parts["$defs"]["requests"]["properties"]) == set(requests)
    page = text_of(NAME)
    inner = [
        parts["properties"]["counted_window"],
        parts["properties"]["parts"],
        parts["properties"]["slo"],
        parts["properties"]["information"]["anyOf"][1],
        parts["$defs"]["part"],
        *(parts["$defs"][name]["anyOf"][1] for name in ("percentiles", "goodput")),
    ]
    for part in inner:
        for key in part["properties"]:
            assert f"`{key}`" in page, key


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the code of the page writes; by the slow twin, on fewer requests."""
    folder = tmp_path_factory.mktemp("page")
    space: dict[str, Any] = {}
    smaller = {
        "requests=4000": "requests=150",
        "rate_scale=4.0": "rate_scale=4.0, engine='reference', warmup_turnovers=0.2",
        "60.0, 60.5": "1.0, 1.2",
    }
    code = [b for b in blocks(DOCS / NAME) if b.language == "python"]
    assert len(code) == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in code:
            text = block.body
            for old, new in smaller.items():
                text = text.replace(old, new)
            exec(compile(text, NAME, "exec"), space)
    return folder / "run"


def test_every_file_is_listed(ran: Path) -> None:
    listed = first_column(text_of(NAME).partition("\n## ")[0])
    assert sorted(listed) == sorted(p.name for p in ran.iterdir() if p.name != "timeline.json")


@pytest.mark.parametrize(
    ("name", "title"), [("steps", "## `steps.parquet`"), ("requests", "## `requests.parquet`")]
)
def test_every_column_is_explained(ran: Path, name: str, title: str) -> None:
    assert first_column(section(title)) == pl.read_parquet(ran / f"{name}.parquet").columns


def test_every_aiperf_metric_is_named(ran: Path) -> None:
    metrics = set(json.loads((ran / "profile_export_aiperf.json").read_text())) - {
        "schema_version",
        "equipoise_version",
    }
    text = section("## AIPerf")
    missing = {m for m in metrics if f"`{m}`" not in text}
    assert not missing


def test_the_timeline_was_drawn(ran: Path) -> None:
    events = json.loads((ran / "timeline.json").read_text())["traceEvents"]
    assert sum(e["name"].startswith("step ") for e in events) > 5

"""Generated parts of the documentation are those of the code; of the measured tables a sample is measured again."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from pages import DOCS, ROOT, text_of

SCRIPTS = str(ROOT / "scripts")


@pytest.fixture(scope="module", autouse=True)
def scripts() -> Any:
    sys.path.insert(0, SCRIPTS)
    yield
    sys.path.remove(SCRIPTS)


@pytest.fixture(scope="module")
def reference(scripts: None) -> ModuleType:
    return importlib.import_module("reference_pages")


@pytest.fixture(scope="module")
def measured(scripts: None) -> ModuleType:
    return importlib.import_module("measurements")


def test_the_reference_is_up_to_date(reference: ModuleType) -> None:
    for path, text in reference.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python scripts/reference_pages.py"


def test_a_stale_page_would_be_noticed(reference: ModuleType) -> None:
    replace = importlib.import_module("markers").replace
    page = text_of("reference/errors.md")
    stale = page.replace("| `CostError` |", "| `CostMistake` |")
    assert stale != page
    assert replace(stale, "classes", "reference_pages.py", reference.error_classes()) == page


def test_the_errors_of_the_shortcuts_are_current() -> None:
    script = importlib.import_module("shortcut_errors")
    page = text_of("explain/calibration.md")
    for row in script.rows():
        assert f"| {' | '.join(row)} |" in page, "run python scripts/shortcut_errors.py"


def test_a_page_without_markers_is_refused(reference: ModuleType) -> None:
    replace = importlib.import_module("markers").replace
    with pytest.raises(SystemExit, match="lacks the markers"):
        replace("# Page\n", "classes", "reference_pages.py", "")


def part(page: str, name: str) -> list[list[str]]:
    """The rows of a measured table as the page shows them."""
    found = re.search(rf"<!-- measured {name}: .*?-->\n\n(.*?)\n\n<!-- /measured", text_of(page), re.DOTALL)
    assert found is not None, f"{page} has no table {name}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()[2:]]


SAMPLES: dict[str, tuple[str, Callable[[ModuleType], list[list[str]]]]] = {
    "article": ("explain/policies.md", lambda m: m.article(("least_batch", "dualpath,z=1.2"))),
    "readings": ("explain/policies.md", lambda m: m.readings((1.1,))),
    "scale": ("explain/policies.md", lambda m: m.scale((8,))),
    "models": ("howto/choose-a-policy.md", lambda m: m.by_model(("glm-5",), ("chat-long",))),
    "dilution": ("explain/step-cost.md", lambda m: m.dilution(("h200",))),
    "load": ("howto/timed-mode.md", lambda m: m.load_levels((24,))),
    "counted": ("explain/replay.md", lambda m: m.counted(("least_batch",))),
    "blocking": ("explain/replay.md", lambda m: m.blocking((4_500_000,))),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_of_each_measured_table_is_current(name: str, measured: ModuleType) -> None:
    page, measure = SAMPLES[name]
    shown = part(page, name)
    for row in measure(measured):
        assert row in shown, f"{page}: run python scripts/measured_tables.py {name}"


def test_every_measured_part_is_on_its_page() -> None:
    tables = importlib.import_module("measured_tables")
    names = [*tables.SCREENS, *tables.TABLES]
    for name in names:
        for path in tables.pages_of(name):
            text = path.read_text(encoding="utf-8")
            assert f"<!-- measured {name}: written by scripts/measured_tables.py -->\n\n" in text
    marked = re.findall(r"<!-- measured ([\w-]+):", "".join(p.read_text("utf-8") for p in DOCS.rglob("*.md")))
    assert set(marked) == set(names)

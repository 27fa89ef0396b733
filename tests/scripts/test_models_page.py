"""The generated tables of the documentation are those of the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("models_page", ROOT / "scripts" / "models_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(script: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    assert script.render(page) == page, "run python scripts/models_page.py"


def test_a_stale_table_would_be_noticed(script: ModuleType) -> None:
    page = (ROOT / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    stale = page.replace("0.72482, 0.27518", "0.72482, 0.27519")
    assert stale != page
    assert script.render(stale) == page

"""The page on engines names every adapter, fault, fact, key and header there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from equipoise.engines import names
from equipoise.engines.facts import SESSION_HEADERS
from equipoise.engines.workers import FIELDS
from equipoise.testing.mock_engine.faults import KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "engines.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*names(), *KINDS, *FIELDS])
def test_named(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_session_headers(name: str) -> None:
    assert name in PAGE.lower()

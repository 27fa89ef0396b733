"""Every key and quantity of ``equipoise.compare-runs/1`` is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pages import text_of

from equipoise.study.pairs import schema
from equipoise.study.pairs.measured import QUANTITIES


def keys(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        yield from part.get("properties", {})
        for value in part.values():
            yield from keys(value)
    elif isinstance(part, list):
        for value in part:
            yield from keys(value)


def test_every_key_of_compare_runs() -> None:
    page = text_of("reference/compare-runs-schema.md")
    missing = {k for k in {*keys(schema()), *QUANTITIES} if not re.search(rf"`{k}`", page)}
    assert not missing
    assert {"pairs", "block_s", "within_margin", "rows"} <= set(keys(schema()))

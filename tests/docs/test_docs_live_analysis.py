"""Every key and measure of ``equipoise.live-analysis/1`` is documented."""

from __future__ import annotations

import re

from pages import text_of
from test_docs_compare_runs import keys

from equipoise.live.findings import schema
from equipoise.live.findings.numbers import MEASURES


def test_every_key_of_live_analysis() -> None:
    page = text_of("reference/live-analysis-schema.md")
    wanted = {*keys(schema()), *(m.quantity for m in MEASURES.values())}
    assert not {k for k in wanted if not re.search(rf"`{k}`", page)}
    assert {"levels", "to_show_equal", "prompts_ms"} <= set(keys(schema()))

"""The pages on the servers have every code, header and route that the servers have."""

from __future__ import annotations

import re
from pathlib import Path

from pages import ROOT, text_of

from equipoise.engines.facts import GENERATING
from equipoise.router import RejectReason
from equipoise.serve.answers import WORDS
from equipoise.serve.exchange import FAILURES

SERVE = ROOT / "src" / "equipoise" / "serve"


def source() -> str:
    return "".join(path.read_text("utf-8") for path in sorted(SERVE.glob("*.py")))


def test_every_reason() -> None:
    page = text_of("reference/http-api.md") + text_of("reference/router-settings.md")
    given = set(re.findall(r'(?:refusal|Failure)\(\s*\d{3}, "(\w+)"', source()))
    given |= set(re.findall(r'return \d{3}, "(\w+)"', source()))
    assert len(given) > 12
    for code in {*given, *FAILURES, *WORDS, *(reason.value for reason in RejectReason)}:
        assert f"`{code}`" in page, code


def test_every_route() -> None:
    page = text_of("reference/http-api.md")
    routes = set(re.findall(r'"(/[\w/]+)": \{"(?:GET|POST)"', source())) | set(GENERATING)
    assert len(routes) > 18
    for route in routes:
        assert (
            f"`{route}`" in page or f"{route}`" in page or f" {route}?" in page or f"`GET {route}" in page
        ), route


def test_every_word_for_a_reason() -> None:
    assert {reason.value for reason in RejectReason} <= set(WORDS)


def test_the_environment_of_the_command() -> None:
    page = text_of("reference/serve-options.md")
    text = Path(ROOT / "src/equipoise/cli/serve.py").read_text("utf-8")
    for name in re.findall(r'"(EQUIPOISE_\w+)"', text):
        assert f"`{name}`" in page

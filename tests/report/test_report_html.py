"""The page: complete, offline, escaped, the same every time."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import small_comparisons as small

from equipoise.cost import load
from equipoise.errors import InputError
from equipoise.policies import parse
from equipoise.report import write_report
from equipoise.report.html import render
from equipoise.report.numbers import bounds, percent
from equipoise.study import Comparison, verdicts

VOID = {"meta", "br", "img", "link", "input", "hr", "base"}
LOADERS = {"src", "href", "srcset", "data", "poster", "action", "background", "xlink:href"}


class Page(HTMLParser):
    """Text, elements and figures of a page; fails on a tag that closes what is not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            key = self.elements[-1][1].get("id") or f"script {len(self.scripts)}"
            self.scripts[key] = self.scripts.get(key, "") + data
        elif not self._open or self._open[-1] != "style":
            self.text += data

    @property
    def figures(self) -> dict[str, Any]:
        """The figures; NaN and infinity are not JSON."""
        found: dict[str, Any] = json.loads(self.scripts["figures"], parse_constant=_refuse)
        return found

    def tags(self, name: str) -> list[dict[str, str | None]]:
        """Attributes of all elements of a name."""
        return [attrs for tag, attrs in self.elements if tag == name]


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} in the figures")


def squeezed(text: str) -> str:
    """Text with every run of white space as one space."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def page(usual: Comparison) -> Page:
    return Page(render(usual))


ALL = ["usual", "single", "brief", "grouped", "timed"]


@pytest.mark.parametrize("name", ALL)
def test_every_label_number_and_verdict_is_on_the_page(name: str, request: pytest.FixtureRequest) -> None:
    comparison: Comparison = request.getfixturevalue(name)
    text = squeezed(Page(render(comparison)).text)
    for cell in comparison.cells:
        assert cell.policy.label in text
        assert percent(cell.excess.mean) in text
        assert bounds(cell.excess) in text or cell.excess.method == "none"
    for sentence in verdicts(comparison):
        assert squeezed(sentence.partition(": ")[2])[1:] in text


@pytest.mark.parametrize("name", ALL)
def test_every_figure_has_one_place_and_plotly_takes_it(name: str, request: pytest.FixtureRequest) -> None:
    import plotly.graph_objects as go

    page = Page(render(request.getfixturevalue(name)))
    places = [attrs["id"] for attrs in page.tags("div") if attrs.get("class") == "figure"]
    assert places == list(page.figures)
    assert len(places) == len(set(places))
    for figure in page.figures.values():
        coloured = re.sub(r'"--(?:ui|p)-[a-z0-9]+"', '"#123456"', json.dumps(figure))
        assert '"--' not in coloured
        go.Figure(json.loads(coloured))  # raises on a name or a value plotly does not know


def test_colours_are_defined_for_light_and_dark(usual: Comparison, page: Page) -> None:
    text = render(usual)
    light, dark = re.findall(r":root \{ (--p-0:[^}]*)\}", text)
    for name in sorted(set(re.findall(r'"--(p-\d+)"', json.dumps(page.figures)))):
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
    assert light != dark


def test_a_family_has_one_colour_in_all_figures(usual: Comparison, page: Page) -> None:
    seen: dict[str, set[str]] = {}
    for figure in page.figures.values():
        for trace in figure["data"]:
            if trace["type"] == "bar":
                names = [t.replace("<b>", "") for t in figure["layout"]["yaxis"]["ticktext"]]
                for label, colour in zip(names, trace["marker"]["color"], strict=True):
                    seen.setdefault(label.split()[0].replace("</b>", ""), set()).add(colour)
            elif trace.get("name", "").split(" ")[0] in {c.policy.name for c in usual.cells}:
                seen.setdefault(trace["name"].split(" ")[0], set()).add(trace["line"]["color"])
    assert set(seen) == {c.policy.name for c in usual.cells}
    assert all(len(colours) == 1 for colours in seen.values())
    assert len({next(iter(colours)) for colours in seen.values()}) == len(seen)


@pytest.mark.parametrize("name", ALL)
def test_nothing_is_loaded_from_anywhere(name: str, request: pytest.FixtureRequest) -> None:
    text = render(request.getfixturevalue(name))
    page = Page(text)
    for tag, attrs in page.elements:
        for attribute in LOADERS & set(attrs):
            assert (attrs[attribute] or "").startswith("#"), f"<{tag} {attribute}={attrs[attribute]!r}>"
    assert not {"link", "iframe", "img", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    styles = "".join(re.findall(r"<style>(.*?)</style>", text, re.S))
    assert "url(" not in styles
    assert "@import" not in styles
    policy = next(m for m in page.tags("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert (policy["content"] or "").startswith("default-src 'none'")
    assert not re.search(r"https?:", policy["content"] or "")


HOSTILE = '<script>alert(1)</script><img src="x">&amp;"\'{{ 7 * 7 }}$x$'


def test_foreign_text_is_escaped(tmp_path: Path) -> None:
    cost = replace(load("v1"), name=HOSTILE, source=HOSTILE)
    trace = small.trace_file(tmp_path, "<script>alert(2)<!-- -->.csv")
    mine = parse("least_batch")
    policies = [replace(mine, spec=replace(mine.spec, name=HOSTILE)), parse("least_tokens")]
    comparison = small.run(
        traces=[trace], costs=[cost], policies=policies, concurrency=8, requests=40, seeds=2
    )
    text = render(comparison)
    page = Page(text)
    assert len(page.tags("script")) == 3
    assert page.tags("img") == []
    assert "alert(2)" in page.text
    assert squeezed(HOSTILE) in squeezed(page.text)
    assert "<" not in page.scripts["figures"]
    drawn = json.dumps(page.figures)
    assert "&lt;script&gt;alert(1)" in drawn
    assert "<script" not in drawn
    assert "<img" not in drawn


def _without_environment(text: str) -> str:
    cut, marks = re.subn(r"<dl>.*?</dl>", "", text, flags=re.S)
    assert marks == 1
    return cut


def test_the_same_comparison_gives_the_same_bytes(usual: Comparison) -> None:
    assert _without_environment(render(usual)) == _without_environment(render(small.run()))


def test_one_policy_has_no_differences_and_no_marks(single: Comparison) -> None:
    page = Page(render(single))
    assert "Differences" not in page.text
    assert "least_batch on agentic-coding" in page.text
    assert "blocks of one run" in page.text
    drawn = json.dumps(page.figures)
    assert "least_batch" in drawn
    assert "  least" not in drawn


def test_unknown_intervals_are_said_and_drawn_as_nothing(brief: Comparison) -> None:
    assert {c.excess.method for c in brief.cells} == {"none"}
    page = Page(render(brief))
    assert "no interval" in page.text
    assert "nan" not in page.text.lower().replace("finance", "")
    bars = [t for f in page.figures.values() for t in f["data"] if t["type"] == "bar"]
    assert bars
    assert all(v is None for t in bars for v in t["error_x"]["array"])


def test_bars_and_whiskers_are_the_numbers_of_the_cells(usual: Comparison, page: Page) -> None:
    for number, setting in enumerate(usual.settings(), start=1):
        bars = page.figures[f"figure-{number}"]["data"][0]
        for i, cell in enumerate(usual.of(setting)):
            assert bars["x"][i] == pytest.approx(100 * cell.excess.mean, rel=1e-5)
            assert bars["x"][i] + bars["error_x"]["array"][i] == pytest.approx(
                100 * cell.excess.high, rel=1e-4
            )
            assert bars["x"][i] - bars["error_x"]["arrayminus"][i] == pytest.approx(
                100 * cell.excess.low, rel=1e-4
            )


def test_groups_are_drawn_and_every_setting_is_in_the_tables(grouped: Comparison) -> None:
    page = Page(render(grouped))
    drawn = [f for f in page.figures.values() if f["layout"]["xaxis"]["title"]["text"] == "groups"]
    assert len(drawn) == 1
    assert drawn[0]["layout"]["xaxis"]["ticktext"] == ["1", "2", "4"]
    assert len(drawn[0]["data"]) == 4  # two policies, two ways to choose a group
    assert page.text.count("4 groups by least_tokens") >= 2


def test_latencies_of_timed_runs(timed: Comparison) -> None:
    text = Page(render(timed)).text
    for words in ("TPOT p50, ms", "TPOT p99, ms", "queue wait p99, ms"):
        assert words in text


def test_a_missing_library_is_named_before_anything_is_written(
    usual: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(InputError, match=r"jinja2.*equipoise\[report\]"):
        write_report(usual, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_whole_report(usual: Comparison, tmp_path: Path) -> None:
    write_report(usual, tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {
        "report.html",
        "timeline.json",
        "excess.png",
        "z_curve.png",
        "balance_over_time.png",
        "ranks.png",
    }


def test_a_parameter_without_three_values_has_no_curve() -> None:
    comparison = small.run(policies=[parse("dualpath,z=1.05"), parse("dualpath,z=1.2")], seeds=2)
    assert 'id="sweep"' not in render(comparison)

"""The fast reader of Prometheus text against the reference parser."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import FIXTURES, recorded

from equipoise.engines.exposition import samples
from equipoise.errors import EngineError

parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'equipoise[serve]'")


def reference(page: bytes) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in parser.text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def same(mine: list[tuple[dict[str, str], float]], theirs: list[tuple[dict[str, str], float]]) -> bool:
    def key(sample: tuple[dict[str, str], float]) -> tuple[object, ...]:
        labels, value = sample
        return sorted(labels.items()), "NaN" if math.isnan(value) else value

    return [key(s) for s in mine] == [key(s) for s in theirs]


@pytest.mark.parametrize("name", sorted(p.name for p in FIXTURES.glob("*-metrics.txt")))
def test_recorded_pages_as_the_reference_reads_them(name: str) -> None:
    page = recorded(name)
    theirs = reference(page)
    mine = samples(page, theirs, "page")
    for family in theirs:
        assert same([tuple(s) for s in mine[family]], theirs[family]), family


NAMES = st.sampled_from(["a", "a:b", "ab", "a_total", "vllm:x", "b"])
LABELS = st.dictionaries(
    st.sampled_from(["engine", "le", "m_n", "_"]),
    st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8)
    | st.sampled_from(['"', "\\", "\n", "a\\nb", "},", 'x="y"']),
    max_size=3,
)
VALUES = st.one_of(
    st.floats(allow_nan=False).map(repr), st.sampled_from(["NaN", "+Inf", "-Inf", "0", "1e5", "17", "1e-07"])
)


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def lines(draw: st.DrawFn) -> str:
    labels = draw(LABELS)
    inner = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
    stamp = draw(st.sampled_from(["", " 1796014641000"]))
    braces = (
        "{" + inner + draw(st.sampled_from(["", ","] if inner else [""])) + "}"
        if labels or draw(st.booleans())
        else ""
    )
    return f"{draw(NAMES)}{braces} {draw(VALUES)}{stamp}"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(lines() | st.sampled_from(["", "# HELP a b", "# TYPE a gauge", "# a 1"]), max_size=12),
    st.booleans(),
)
def test_any_page_as_the_reference_reads_it(page_lines: list[str], ends: bool) -> None:
    page = ("\n".join(page_lines) + ("\n" if ends else "")).encode()
    theirs = reference(page)
    wanted = ["a", "a:b", "ab", "a_total", "vllm:x", "b", "absent"]
    mine = samples(page, wanted, "page")
    for family in wanted:
        assert same([tuple(s) for s in mine[family]], theirs.get(family, [])), family


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.booleans())
def test_any_bytes(tail: bytes, labelled: bool) -> None:
    with contextlib.suppress(EngineError):
        samples(b"x 1\na" + (b"{" if labelled else b" ") + tail, ["a", "x"], "page")


@pytest.mark.parametrize(
    "line",
    [
        b"a",
        b"a ",
        b"a one",
        b"a 1 2 3",
        b"a{ 1",
        b'a{x="1} 1',
        b"a{x=1} 1",
        b'a{x="1"y="2"} 1',
        b"a 0x1f",
        b"a 1_0",
        b'a{x="\xff"} 1',
    ],
)
def test_malformed_lines(line: bytes) -> None:
    page = b"b 2\n" + line + b"\n"
    assert samples(page, ["b"], "page")["b"][0].value == 2  # nobody asked for a
    if line == b"a":
        assert samples(page, ["a"], "page")["a"] == []
    else:
        with pytest.raises(EngineError, match="page: a "):
            samples(page, ["a"], "page")


def test_a_family_in_pieces_is_found_whole() -> None:
    page = b'a{e="0"} 1\nb 5\na{e="1"} 2\nab 7\n'
    assert [s.value for s in samples(page, ["a"], "page")["a"]] == [1, 2]

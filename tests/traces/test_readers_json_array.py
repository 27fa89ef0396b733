"""One JSON array of records reads as the same records one a line."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from trace_cases import FILES, WEKA, assert_same

from equipoise.errors import TraceError
from equipoise.traces import Trace
from equipoise.traces.readers import detect, read, read_with_report

LAYOUTS = {
    "one line": lambda lines: "[" + ", ".join(lines) + "]",
    "one a line": lambda lines: "[\n" + ",\n".join(lines) + "\n]\n",
    "printed": lambda lines: "\ufeff" + json.dumps([json.loads(x) for x in lines], indent=2),
}


def assert_like(a: Trace, b: Trace) -> None:
    """Equal but for the name of the file."""
    assert_same(replace(a, source=""), replace(b, source=""))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["mooncake", "bailian", "jsonl"])
def test_an_array_is_its_lines(tmp_path: Path, name: str, layout: str) -> None:
    text = FILES[name][1]
    lines, array = tmp_path / "t.jsonl", tmp_path / "t.json"
    lines.write_text(text)
    array.write_text(LAYOUTS[layout](text.splitlines()), encoding="utf-8")
    assert detect(array).name == name
    assert_like(read(array), read(lines))
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(array.read_bytes()))
    assert_like(read(packed), read(lines))


def test_a_long_record_is_recognised_by_its_keys(tmp_path: Path) -> None:
    """The first record goes on beyond what is looked at."""
    record = {"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": list(range(60_000))}
    path = tmp_path / "t.json"
    path.write_text(json.dumps([record, record]))
    assert len(path.read_bytes()) > 1 << 18
    assert detect(path).name == "mooncake"
    assert len(read(path)) == 2


def test_long_arrays_are_cut_between_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.traces.readers.json_array.ELEMENTS_AT_A_TIME", 3)
    records = [{"timestamp": i, "input_length": 10 + i, "output_length": 5} for i in range(10)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(records))
    assert read(path).context_tokens.tolist() == list(range(10, 20))
    records[7]["input_length"] = -1
    path.write_text(json.dumps(records))
    with pytest.raises(TraceError, match=r"t\.json, element 8, column input_length: -1"):
        read(path)


def test_a_column_map_reads_an_array(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"p": 10, "g": 5, "note": "a\\nb"},\n {"p": 12, "g": 6}]')
    trace = read(path, columns={"context_tokens": "p", "output_tokens": "g"})
    assert trace.context_tokens.tolist() == [10, 12]


def test_weka_documents_in_an_array(tmp_path: Path) -> None:
    other = {**WEKA, "id": "trace_0043"}
    lines, array = tmp_path / "w.jsonl", tmp_path / "w.json"
    lines.write_text("\n".join(map(json.dumps, (WEKA, other))))
    array.write_text(json.dumps([WEKA, other]))
    assert detect(array).name == "weka"
    assert_like(read(array), read(lines))
    array.write_text(json.dumps([WEKA, {**other, "block_size": "x"}]))
    with pytest.raises(TraceError, match=r"w\.json, element 2, column block_size"):
        read(array)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "the file is empty"),
        ("[\n]", "the file is empty"),
        ('[{"timestamp": 1, "input_length": 5, "output_length": 2}', "is no JSON array .* jq"),
        ('[{"timestamp": 1, "input_length": 5, "output_length": 2}] x', "is no JSON array"),
        (
            '[{"timestamp": 1, "input_length": 5, "output_length": 2}, 7]',
            r"element 2: '7' is not a JSON object; expected one JSON object an element; .* bad elements",
        ),
        ('[{"timestamp": 1}]', "its first record has the keys 'timestamp'"),
    ],
)
def test_what_is_wrong_with_an_array_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        read(path)
    assert "t.json" in str(caught.value)


def test_bad_elements_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"timestamp": 1, "input_length": 5, "output_length": 2}, {"timestamp": 2}]')
    trace, report = read_with_report(path, skip_bad=1)
    assert len(trace) == 1
    assert report.skipped == 1

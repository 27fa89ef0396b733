"""What cannot be read: one sentence with file, line, column, value and what was expected."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
import zstandard
from trace_cases import FILES, WEKA, write_example

from equipoise.errors import TraceError
from equipoise.traces.readers import FORMATS, read, read_with_report

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,100,10\n"
GOOD = "2023-11-16 18:17:04,100,10\n"
MOONCAKE = '{{"timestamp": 0, "input_length": {}, "output_length": 5}}\n'


def message(path: Path, **options: object) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, **options)  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("line", "column", "what"),
    [
        ("2023-11-16 18:17:04,-4,10", "ContextTokens", "'-4' is below 1"),
        ("2023-11-16 18:17:04,0,10", "ContextTokens", "'0' is below 1"),
        ("2023-11-16 18:17:04,nan,10", "ContextTokens", "'nan' is not finite"),
        ("2023-11-16 18:17:04,1e400,10", "ContextTokens", "'1e400' is not finite"),
        ("2023-11-16 18:17:04,200000000,10", "ContextTokens", "'200000000' is above 100000000"),
        ("2023-11-16 18:17:04,12.5,10", "ContextTokens", "'12.5' is not a whole number"),
        ("2023-11-16 18:17:04,1_0,10", "ContextTokens", "'1_0' is not a number"),
        ("2023-11-16 18:17:04,,10", "ContextTokens", "nothing is not a number"),
        ("2023-11-16 18:17:04,100", "GeneratedTokens", "nothing is not a number"),
        ("2023-11-16 18:17:04,100,0", "GeneratedTokens", "'0' is below 1"),
        ("yesterday,100,10", "TIMESTAMP", "'yesterday' is not a date and time"),
        ("2023-13-16 18:17:04,100,10", "TIMESTAMP", "is not a date and time"),
        ("1969-11-16 18:17:04,100,10", "TIMESTAMP", "is outside the years 1970 to 2199"),
    ],
)
def test_a_bad_value_is_named_with_line_and_column(tmp_path: Path, line: str, column: str, what: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "\n" + line + "\n" + GOOD)
    text = message(path)
    assert text.startswith(f"{path}:4, column {column}: ")
    assert what in text
    assert "expected " in text
    trace, report = read_with_report(path, skip_bad=1)
    assert len(trace) == 2
    assert report.skipped == 1
    assert report.first_skipped[0].startswith(f"{path}:4, column {column}")
    assert "1 bad line skipped" in trace.source


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("-1", "-1 is below 1"),
        ("true", "true is not a number"),
        ('"7"', "'7' is not a number"),
        ("null", "null is not a number"),
        ("[1]", "a list of 1 is not a number"),
        ("2.5", "2.5 is not a whole number"),
        ("9" * 99, "an integer of 329 bits is above 100000000"),
    ],
)
def test_a_bad_json_value_is_named(tmp_path: Path, value: str, what: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(MOONCAKE.format(5) + MOONCAKE.format(value))
    assert message(path).startswith(
        f"{path}:2, column input_length: {what}; expected a whole number of tokens"
    )
    assert read_with_report(path, skip_bad=1)[1].skipped == 1


@pytest.mark.parametrize(
    "line", ["{", "[1, 2]", "nonsense", '{"timestamp": 1e999}', "[" * 5000, '{"timestamp": 0}']
)
def test_a_line_that_is_no_record(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(MOONCAKE.format(5) + line + "\n")
    assert message(path).startswith(f"{path}:2")
    assert len(read(path, skip_bad=1)) == 1


def test_whole_floats_are_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "2023-11-16 18:17:04, 12.0 ,1e2\n")
    trace = read(path)
    assert trace.context_tokens.tolist() == [100, 12]
    assert trace.output_tokens.tolist() == [10, 100]


def test_skip_bad_is_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "x,y,z\n" * 3)
    assert "bad line number 3, and only 2 may be skipped" in message(path, skip_bad=2)
    assert read_with_report(path, skip_bad=3)[1].skipped == 3
    assert "skip_bad = -1" in message(path, skip_bad=-1)


def test_too_many_fields_and_broken_quotes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(AZURE + "2023-11-16 18:17:04,1,2,3\n")
    assert f"{path}:3: there are 4 fields; expected 3 fields" in message(path)
    path.write_text(AZURE + '2023-11-16 18:17:04,1,"2\n' + GOOD)
    assert f"{path}:3" in message(path)
    assert len(read(path, skip_bad=1)) == 2


@pytest.mark.parametrize("name", ["a.csv.gz", "m.jsonl.zst"])
def test_files_cut_short(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = (MOONCAKE.format(5) * 5000).encode()
    packed = gzip.compress(text) if name.endswith("gz") else zstandard.compress(text)
    path.write_bytes(packed[: len(packed) // 2])
    assert "ends in the middle" in message(path, format="mooncake")
    path.write_bytes(packed[:40] + b"\xff" * 20 + packed[60:])
    assert "corrupt" in message(path, format="mooncake") or "not JSON" in message(path, format="mooncake")


def test_packed_members_may_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(
        gzip.compress(MOONCAKE.format(5).encode()) + gzip.compress(MOONCAKE.format(6).encode()) + b"\0" * 99
    )
    assert read(path).context_tokens.tolist() == [5, 6]
    path.write_bytes(
        zstandard.compress(MOONCAKE.format(5).encode()) + zstandard.compress(MOONCAKE.format(6).encode())
    )
    assert read(path).context_tokens.tolist() == [5, 6]


def test_no_file_empty_file_junk_and_folder(tmp_path: Path) -> None:
    assert "there is no such file" in message(tmp_path / "none.csv")
    (tmp_path / "trace.csv").write_text("")
    assert "the file is empty" in message(tmp_path / "trace.csv")
    assert f"did you mean {tmp_path / 'trace.csv'}?" in message(tmp_path / "trce.csv")
    (tmp_path / "junk").write_bytes(bytes(range(256)) * 10)
    assert "is in no known trace format, it is not text" in message(tmp_path / "junk")
    (tmp_path / "empty").mkdir()
    assert "it is a folder without session files" in message(tmp_path / "empty")
    for name, known in FORMATS.items():
        if not known.folder:
            assert "is a folder" in message(tmp_path / "empty", format=name)
    assert "there is no such file" in message(Path("\0"))


@pytest.mark.parametrize("name", FILES)
def test_header_only_or_no_rows_left(tmp_path: Path, name: str) -> None:
    filename, text = FILES[name]
    path = tmp_path / filename
    first = text.partition("\n")[0]
    path.write_text(first + "\n" if "csv" in filename else "\n\n")
    assert "holds no requests" in message(path, format=name) or "empty" in message(path, format=name)


def test_a_csv_without_header(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("2023-11-16 18:17:04,100,10\n")
    assert "its first line is '2023-11-16 18:17:04,100,10'" in message(path)
    assert f"{path}:1: there is no column 'TIMESTAMP'" in message(path, format="azure")


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("name", FILES)
def test_the_wrong_format_forced(tmp_path: Path, name: str, wanted: str) -> None:
    """Either the file happens to satisfy that format too, or a plain error says what is missing."""
    path = write_example(tmp_path, name)
    try:
        read(path, format=wanted)
    except TraceError as error:
        assert str(path) in str(error) or str(path.parent) in str(error)  # noqa: PT017
    assert "did you mean 'azure'" in message(path, format="azur")


def test_weka_errors_say_where_in_the_document(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    document = json.loads(json.dumps(WEKA))
    document["requests"][1]["requests"][1]["in"] = -3
    path.write_text(json.dumps(document))
    assert message(path).startswith(f"{path}, column requests[1].requests[1].in: -3 is below 1")
    assert len(read(path, skip_bad=1)) == 3
    path.write_text('{"id": "x", "block_size": 64, "requests": 7}')
    assert "there is no list 'requests'" in message(path)
    path.write_text(
        '{"id": "x", "block_size": 64, "requests": [' + '{"requests": [' * 300 + "]}" * 300 + "]}"
    )
    assert "nested too deeply" in message(path)


def test_one_broken_session_of_a_folder_can_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text(json.dumps(WEKA))
    assert "a.json: is not JSON" in message(tmp_path)
    assert read_with_report(tmp_path, skip_bad=1)[1].skipped == 1


def test_column_maps_are_checked(tmp_path: Path) -> None:
    path = write_example(tmp_path, "csv")
    assert "did you mean 'context_tokens'" in message(path, columns={"context_token": "x"})
    assert "there is no column 'x'; the columns are" in message(path, columns={"context_tokens": "x"})
    assert "two columns are arrival times" in message(path, columns={"arrival_ms": "turn"})
    assert "has columns of its own" in message(
        write_example(tmp_path, "azure"), format="azure", columns={"turn": "x"}
    )
    other = tmp_path / "o.csv"
    other.write_text("a,b\n1,2\n")
    assert "no column holds the output_tokens" in message(other, columns={"context_tokens": "a"})
    other.write_text("a,a\n1,2\n")
    assert "the column 'a' is there twice" in message(
        other, columns={"context_tokens": "a", "output_tokens": "a"}
    )


def test_bad_rows_of_a_parquet_file_are_numbered(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pl.DataFrame({"context_tokens": [5, None, 7], "output_tokens": [1, 2, -3]}).write_parquet(path)
    assert message(path).startswith(f"{path}:2, column context_tokens: null")
    trace, report = read_with_report(path, skip_bad=2)
    assert trace.context_tokens.tolist() == [5]
    assert report.skipped == 2
    path.write_bytes(path.read_bytes()[:-20] + b"PAR1")
    assert "is not a readable Parquet file" in message(path)


def test_quoted_newlines_are_refused_not_misread(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text('context_tokens,output_tokens,prompt\n1,2,"a, b"\n3,4,"two\nlines"\n5,6,x\n')
    assert f"{path}:3" in message(path)
    assert read(path, skip_bad=2).context_tokens.tolist() == [1, 5]

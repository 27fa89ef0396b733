"""Whatever the bytes: a trace or a TraceError; and the fast path reads exactly what the exact path reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trace_cases import FILES, pack, write_pool

from equipoise.errors import TraceError
from equipoise.traces.readers import FORMATS, read
from equipoise.traces.readers.azure import SCHEMA as AZURE
from equipoise.traces.readers.burstgpt import SCHEMA as BURSTGPT
from equipoise.traces.readers.json_lines import read_json_lines
from equipoise.traces.readers.kinds import INDEX, TOKENS, Blocks, Field, Identity, session_numbers
from equipoise.traces.readers.mooncake import SCHEMA as MOONCAKE
from equipoise.traces.readers.parquet import read_columns
from equipoise.traces.readers.problems import Problems
from equipoise.traces.readers.rows import Columns, Schema
from equipoise.traces.readers.table import read_table

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def reads_or_says_why(path: Path, format: str | None, skip_bad: int) -> None:
    message = ""
    try:
        trace = read(path, format=format, skip_bad=skip_bad)
    except TraceError as error:
        message = str(error)
    else:
        assert len(trace) >= 1
    assert "\n" not in message


def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """The same file with some bytes changed, cut out or doubled."""
    damaged = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        if not damaged:
            break
        at = draw(st.integers(0, len(damaged) - 1))
        what = draw(st.sampled_from(["change", "cut", "insert"]))
        if what == "change":
            damaged[at] = draw(st.integers(0, 255))
        elif what == "cut":
            del damaged[at : at + draw(st.integers(1, 40))]
        else:
            damaged[at:at] = draw(
                st.one_of(st.binary(max_size=8), st.sampled_from([b"\n", b'"', b",", b"-", b"9" * 30]))
            )
    return bytes(damaged)


@st.composite
def damaged_examples(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(sorted(FILES)))
    data = FILES[name][1].encode()
    if draw(st.booleans()):
        data = pack(data, draw(st.sampled_from([".gz", ".zst"])))
    return mutated(draw, data)


@quick
@given(
    data=st.binary(max_size=300), format=st.sampled_from([None, *FORMATS]), skip_bad=st.sampled_from([0, 3])
)
@example(data=b"\x1f\x8b", format=None, skip_bad=0)
@example(data=b"\x28\xb5\x2f\xfd", format=None, skip_bad=0)
@example(data=b"PAR1", format=None, skip_bad=0)
@example(data=b"\xef\xbb\xbf", format="csv", skip_bad=0)
@example(data=b"{}", format="weka", skip_bad=0)
def test_any_bytes(tmp_path: Path, data: bytes, format: str | None, skip_bad: int) -> None:
    path = tmp_path / "any"
    path.write_bytes(data)
    reads_or_says_why(path, format, skip_bad)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=damaged_examples(),
    format=st.sampled_from([None, None, None, *FORMATS]),
    skip_bad=st.sampled_from([0, 0, 100]),
)
def test_damaged_files(tmp_path: Path, data: bytes, format: str | None, skip_bad: int) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(data)
    reads_or_says_why(path, format, skip_bad)


@quick
@given(data=st.data())
def test_damaged_parquet(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "p.parquet"
    frame = pl.DataFrame({"context_tokens": [5, 6], "output_tokens": [1, 2], "session": ["a", "b"]})
    frame.write_parquet(path)
    path.write_bytes(data.draw(st.composite(mutated)(path.read_bytes())))
    reads_or_says_why(path, None, 0)


@quick
@given(data=st.data())
def test_damaged_client_pools(tmp_path: Path, data: st.DataObject) -> None:
    write_pool(tmp_path)
    path = data.draw(st.sampled_from(sorted(tmp_path.iterdir())))
    whole = path.read_bytes()
    path.write_bytes(data.draw(st.composite(mutated)(whole)))
    reads_or_says_why(tmp_path, "servegen", 0)
    path.write_bytes(whole)


# Values near every border between the two paths.
NUMBERS = st.one_of(
    st.integers(-5, 20).map(str),
    st.floats(allow_nan=True).map(repr),
    st.sampled_from(
        ["", " 7", "7 ", "+7", "7.0", "7.5", ".5", "5.", "1e3", "1E2", "1_0", "inf", "NaN", "0x1", "٣", "\t8"]
    ),
    st.sampled_from(
        [
            '"7"',
            '"7',
            '7"',
            "1,2",
            "\r",
            "\r7",
            "100000000",
            "100000001",
            "1e400",
            "-0",
            "00012",
            "true",
            "null",
        ]
    ),
)
CLOCKS = st.one_of(
    st.datetimes().map(str),
    st.sampled_from(
        ["2023-11-16 18:17:03.9799600", "2023-11-16T18:17:03", "2023-11-16 24:00:00", "2023-02-30 00:00:00"]
    ),
    st.sampled_from(
        ["2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00+02:00", "2024-05-10 00:00:60", "2024"]
    ),
    st.sampled_from(
        ["2024-05-10 00:00:00.1234567891", "1969-01-01 00:00:00", "2250-01-01 00:00:00", "2024-05-10  1:2:3"]
    ),
)
NAMES = st.one_of(st.integers(-2, 3).map(str), st.sampled_from(["", "a", "b ", " b", "\u00a0b", "007", "+7"]))


def either_way(
    reader: object, path: Path, schema: Schema, fast: bool
) -> tuple[Columns | str, int, dict[str, int]]:
    problems = Problems(path, skip_bad=2)
    try:
        columns: Columns | str = reader(path, schema, problems, fast=fast)  # type: ignore[operator]
    except TraceError as error:
        columns = str(error)
    return columns, problems.skipped, problems.dropped


def assert_alike(reader: object, path: Path, schema: Schema) -> None:
    fast, exact = (either_way(reader, path, schema, way) for way in (True, False))
    assert fast[1:] == exact[1:]
    if isinstance(fast[0], str) or isinstance(exact[0], str):
        assert fast[0] == exact[0]
        return
    assert fast[0].keys() == exact[0].keys()
    for target, values in fast[0].items():
        other = exact[0][target]
        if isinstance(values, tuple):
            assert [v.tolist() for v in values] == [v.tolist() for v in other]
        else:
            assert (
                values.to_list() == other.to_list()
                if hasattr(values, "to_list")
                else values.tolist() == other.tolist()
            )
            assert values.dtype == other.dtype


def csv_of(header: str, *columns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    row = st.tuples(*columns).map(",".join)
    return st.lists(row, max_size=6).map(lambda rows: header + "\n" + "\n".join(rows) + "\n")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=csv_of("TIMESTAMP,ContextTokens,GeneratedTokens", CLOCKS, NUMBERS, NUMBERS))
def test_fast_equals_exact_on_azure(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, newline="")
    assert_alike(read_table, path, AZURE)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=csv_of(
        "Timestamp,Session ID,Elapsed time,Request tokens,Response tokens",
        NUMBERS,
        NAMES,
        NUMBERS,
        NUMBERS,
        NUMBERS,
    )
)
def test_fast_equals_exact_on_burstgpt(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.csv"
    path.write_text(text, newline="")
    assert_alike(read_table, path, BURSTGPT)


VALUES = st.one_of(
    st.integers(-2, 2**70),
    st.floats(),
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.lists(st.one_of(st.integers(-(2**65), 2**65), st.integers(0, 9)), max_size=3),
    st.integers(1, 9).map(float),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_fast_equals_exact_on_json_lines(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "m.jsonl"
    good = {
        "timestamp": st.integers(0, 5),
        "input_length": st.integers(1, 9),
        "output_length": st.integers(1, 9),
        "hash_ids": st.lists(st.integers(0, 9), max_size=3),
    }
    lines = []
    for _ in range(data.draw(st.integers(0, 5))):
        record = {key: data.draw(values) for key, values in good.items() if data.draw(st.integers(0, 20))}
        if data.draw(st.booleans()):
            record[data.draw(st.sampled_from(sorted(good)))] = data.draw(VALUES)
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    assert_alike(read_json_lines, path, MOONCAKE)


@quick
@given(data=st.data())
def test_fast_equals_exact_on_json_names(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "s.jsonl"
    schema = Schema(
        (
            Field("s", "session", Identity()),
            Field("t", "turn", INDEX, required=False),
            Field("n", "n", TOKENS),
        )
    )
    names = st.one_of(NAMES, st.integers(-5, 2**66), st.none(), st.booleans(), st.floats(0, 5))
    records = data.draw(
        st.lists(st.fixed_dictionaries({"s": names, "t": st.integers(-1, 3), "n": st.just(4)}), max_size=4)
    )
    path.write_text("".join(json.dumps(r) + "\n" for r in records) + "\n")
    assert_alike(read_json_lines, path, schema)


@quick
@given(
    context=st.lists(st.one_of(st.integers(1, 9), st.none(), st.integers(-5, 2**60)), min_size=1, max_size=5),
    dtype=st.sampled_from([pl.Int64, pl.Float64, pl.String]),
)
def test_parquet_rows_are_judged_alike_one_by_one(
    tmp_path: Path, context: list[int | None], dtype: type[pl.DataType]
) -> None:
    path = tmp_path / "p.parquet"
    pl.DataFrame({"c": pl.Series(context, dtype=pl.Int64).cast(dtype)}).write_parquet(path)
    problems = Problems(path, skip_bad=99)
    got = read_columns(path, Schema((Field("c", "c", TOKENS),)), problems)["c"]
    good = [] if dtype == pl.String else [c for c in context if c is not None and 1 <= c <= 10**8]
    assert got.tolist() == good
    assert problems.skipped == len(context) - len(good)


@quick
@given(st.lists(NAMES, max_size=12))
def test_session_numbers_keep_who_belongs_together(names: list[str]) -> None:
    names = [name.strip() for name in names]
    numbers = session_numbers(pl.Series(names, dtype=pl.String))
    none = [name in ("", "-1") for name in names]
    integers = all(name.lstrip("+-").isdigit() or name == "" for name in names)
    for i, a in enumerate(names):
        assert (numbers[i] == -1) == (none[i] or (integers and int(a) < 0))
        for j, b in enumerate(names):
            if numbers[i] >= 0 and numbers[j] >= 0:
                assert (numbers[i] == numbers[j]) == (int(a) == int(b) if integers else a == b)


def test_blocks_larger_than_memory_would_be_cut_between_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small block size must not change what is read, nor the line numbers in messages."""
    monkeypatch.setattr("equipoise._files.BLOCK_BYTES", 64)
    monkeypatch.setattr("equipoise._files.READ_BYTES", 7)
    path = tmp_path / "v.csv"
    rows = "".join(f"{i},{i + 1},{i + 2}\n" for i in range(500))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    np.testing.assert_array_equal(read(path).context_tokens, np.arange(1, 501))
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows + "1,2,x\n")
    with pytest.raises(TraceError, match=r"v\.csv:502, column num_decode_tokens"):
        read(path)
    monkeypatch.setattr("equipoise._files.MAX_LINE_BYTES", 1000)
    path.write_text("arrived_at," + "x" * 5000)
    with pytest.raises(TraceError, match="longer than"):
        read(path, format="vidur")


def test_block_ids_need_integers() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        Blocks().json([2**64])

"""Tables with a column map: names, units, means and sums, three kinds of file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reader_cases import dropped, one, write

from equipoise.calibrate.readers import detect
from equipoise.calibrate.records import Flag
from equipoise.errors import CalibrationError

ROWS = [{"id": i, "r": i % 2, "n": 4 + i, "mean": 1000.0 + i, "lat": 30.0 + i} for i in range(6)]
MAP = {"step": "id", "rank": "r", "batch": "n", "context_mean": "mean", "time_ms": "lat"}


def _csv(rows: list[dict[str, object]], separator: str = ",") -> str:
    lines = [separator.join(rows[0])] + [separator.join(str(v) for v in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "jsonl", "parquet"])
def test_a_mapped_table(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "t"
    if kind == "parquet":
        pl.DataFrame(ROWS).write_parquet(path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        text = _csv(ROWS, "\t" if kind == "tsv" else ",").encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    assert detect(path, columns=MAP) == "columns"
    records = one(path, columns=MAP)
    assert records.step.tolist() == list(range(6))
    assert records.rank.tolist() == [0, 1] * 3
    assert records.batch.tolist() == list(range(4, 10))
    assert records.context_tokens.tolist() == [(4 + i) * (1000 + i) for i in range(6)]
    np.testing.assert_allclose(records.time_s, [0.030 + i / 1000 for i in range(6)])
    first = 2 if "csv" in kind or "tsv" in kind else 1
    assert records.line.tolist() == list(range(first, first + 6))


@given(st.sampled_from(["s", "ms", "us", "ns"]), st.floats(1e-6, 1e6))
def test_units_stand_in_the_target(tmp_path_factory: pytest.TempPathFactory, unit: str, value: float) -> None:
    path = write(tmp_path_factory.mktemp("u") / "t", f"b,c,t\n4,400,{value!r}\n")
    records = one(path, columns={"batch": "b", "context_tokens": "c", f"time_{unit}": "t"})
    assert records.time_s[0] == pytest.approx(value / {"s": 1, "ms": 1e3, "us": 1e6, "ns": 1e9}[unit])


def test_usual_names_need_no_map(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "batch_size,kv_len,latency_ms\n4,1000,30\n8,2000,40\n")
    assert detect(path) == "columns"
    records = one(path)
    assert records.context_tokens.tolist() == [4000, 16000]
    assert records.time_s.tolist() == [0.03, 0.04]
    assert records.flags.tolist() == [0, 0]


def test_steps_are_chained_only_where_they_have_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "step,batch,context_tokens,time_s\n1,4,9,1\n2,4,9,1\n3,0,0,1\n4,4,9,1\n")
    assert one(path).flags.tolist() == [Flag.FIRST, 0, Flag.IDLE, Flag.FIRST]


def test_times_that_are_none_are_dropped(tmp_path: Path) -> None:
    rows = "4,9,nan\n4,9,-1\n4,9,0\n4,9,inf\n4,9,1\n"
    records = one(write(tmp_path / "t.csv", "batch,context_tokens,time_s\n" + rows))
    assert len(records) == 1
    assert dropped(records) == {"the time is not a number": 2, "negative time": 1, "the time is zero": 1}


@pytest.mark.parametrize(
    ("row", "shown"), [("x,9,1", "'x'"), ("4.5,9,1", "'4.5'"), (",9,1", "nothing"), ("4,1e300,1", "1e300")]
)
def test_a_bad_number_is_named(tmp_path: Path, row: str, shown: str) -> None:
    path = write(tmp_path / "t.csv", f"batch,context_tokens,time_s\n4,9,1\n{row}\n5,9,1\n")
    with pytest.raises(CalibrationError, match=rf"t\.csv:3: .*{shown}"):
        one(path)
    records = one(path, skip_bad=1)
    assert records.batch.tolist() == [4, 5]
    assert dropped(records) == {"bad line": 1}


def test_a_table_without_contexts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "batch,time_s\n4,1\n")
    with pytest.raises(CalibrationError, match=r"a log without context lengths.*context_mean=MEAN"):
        one(path)
    assert one(path, without_context=True).context_tokens.tolist() == [-1]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"batsh": "b"}, "did you mean 'batch'"),
        ({"batch": "bb"}, "no column 'bb'"),
        ({"batch": "b"}, "no column is known to hold times"),
        ({"time_s": "t"}, "no column is known to hold batch sizes"),
        ({"batch": "b", "time_s": "t", "time_ms": "t"}, "both mapped"),
    ],
)
def test_a_map_that_does_not_fit(tmp_path: Path, columns: dict[str, str], what: str) -> None:
    path = write(tmp_path / "t.csv", "b,c,t\n4,400,1\n")
    with pytest.raises(CalibrationError, match=what):
        one(path, columns=columns)

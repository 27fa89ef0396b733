"""Written files: lossless where promised, complete or absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_cases import assert_same, blocks_of, traces, write_example

from equipoise.errors import TraceError
from equipoise.traces import PrefixBlocks, Trace, read, synth, write
from equipoise.traces.readers import detect

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(trace=traces())
def test_parquet_is_lossless(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.parquet"
    assert write(trace, path) == ()
    assert detect(path).name == "equipoise"
    assert_same(read(path), trace)


@quick
@given(trace=traces(prefix=False), packing=st.sampled_from(["", ".gz", ".zst"]))
def test_csv_keeps_all_columns(tmp_path: Path, trace: Trace, packing: str) -> None:
    path = tmp_path / f"t.csv{packing}"
    write(trace, path)
    back = read(path)
    assert_same(
        replace(back, name=trace.name, source=trace.source, arrivals_known=trace.arrivals_known), trace
    )


@quick
@given(trace=traces())
def test_mooncake_keeps_lengths_blocks_and_times_to_the_nanosecond(tmp_path: Path, trace: Trace) -> None:
    path = tmp_path / "t.jsonl"
    lost = write(trace, path)
    back = read(path)
    np.testing.assert_array_equal(back.context_tokens, trace.context_tokens)
    np.testing.assert_array_equal(back.output_tokens, trace.output_tokens)
    np.testing.assert_allclose(back.arrival_s, trace.arrival_s, rtol=0, atol=1e-9)
    if trace.prefix is not None and trace.prefix.block_tokens == 512 and len(trace.prefix.ids):
        assert blocks_of(back) == blocks_of(trace)
    else:
        assert back.prefix is None
    assert any("sessions" in text for text in lost) == bool((trace.session >= 0).any())


def test_bytes_depend_on_nothing_but_the_trace(tmp_path: Path) -> None:
    trace = synth("chat-short", requests=500)
    for name in ("t.parquet", "t.csv.gz", "t.jsonl.zst"):
        write(trace, tmp_path / name)
        first = (tmp_path / name).read_bytes()
        write(trace, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first


def test_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = synth("chat-short", requests=500)
    path = tmp_path / "t.csv"
    path.write_text("what was there before")

    def fails(self: object, rows: object = None) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("equipoise.traces.writing._frame", fails)
    with pytest.raises(TraceError, match=r"t\.csv: cannot be written \(No space left on device\)"):
        write(trace, path)
    assert path.read_text() == "what was there before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "format", "text"),
    [
        ("t.xlsx", None, "the ending .xlsx says no format"),
        ("t", None, r"the ending \(none\) says no format"),
        ("t.csv", "parque", "cannot be written as 'parque'"),
        ("t.parquet.gz", None, "Parquet is compressed inside"),
        ("none/t.csv", None, "cannot be written"),
    ],
)
def test_where_and_what_cannot_be_written(tmp_path: Path, name: str, format: str | None, text: str) -> None:
    with pytest.raises(TraceError, match=text):
        write(synth("chat-short", requests=5), tmp_path / name, format)
    assert not list(tmp_path.iterdir())


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    weka = read(write_example(tmp_path, "weka"))
    assert write(weka, tmp_path / "x.parquet") == ()
    lost = " / ".join(write(weka, tmp_path / "x.jsonl"))
    assert "blocks of 64 tokens" in lost
    assert "sessions" in lost
    assert "drawn, not recorded" in lost
    assert "prefix blocks" in write(weka, tmp_path / "x.csv")[0]


def test_our_parquet_is_checked_when_read(tmp_path: Path) -> None:
    import polars as pl

    path = tmp_path / "t.parquet"
    trace = read(write_example(tmp_path, "mooncake"))
    write(trace, path)
    meta = {"equipoise.trace": pl.read_parquet_metadata(path)["equipoise.trace"]}
    frame = pl.read_parquet(path)
    for damaged, text in (
        (frame.drop("think_s"), "no column 'think_s'"),
        (frame.with_columns(pl.lit(None).cast(pl.Int64).alias("turn")), "column turn holds something"),
        (frame.with_columns(pl.lit("x").alias("session")), "column session holds something"),
        (frame.with_columns(pl.lit(2**40).alias("turn")), "column turn holds a number out of range"),
        (frame.with_columns(pl.lit(-1).cast(pl.Int64).alias("output_tokens")), "output_tokens = -1 in row 0"),
        (frame.with_columns(pl.lit(1).alias("prefix_blocks")), "prefix_blocks is not a list"),
    ):
        damaged.write_parquet(path, metadata=meta)
        with pytest.raises(TraceError, match=text):
            read(path)
    frame.write_parquet(path, metadata={"equipoise.trace": "{}"})
    with pytest.raises(TraceError, match="metadata"):
        read(path)
    frame.write_parquet(
        path, metadata={"equipoise.trace": meta["equipoise.trace"].replace('"version":1', '"version":9')}
    )
    with pytest.raises(TraceError, match="is of version 9"):
        read(path)


def test_empty_block_lists_stay_empty(tmp_path: Path) -> None:
    prefix = PrefixBlocks(np.array([0, 0, 2, 2]), np.array([5, 6]), 16)
    trace = Trace.from_columns("x", np.zeros(3), np.ones(3, np.int64), np.ones(3, np.int64), prefix=prefix)
    write(trace, tmp_path / "t.parquet")
    assert blocks_of(read(tmp_path / "t.parquet")) == [[], [5, 6], []]

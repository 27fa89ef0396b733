"""Each format on a file small enough to work out by hand, in every packing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from trace_cases import FILES, WEKA, assert_same, blocks_of, write_example, write_pool

from equipoise import traces
from equipoise.traces import Trace
from equipoise.traces.readers import FORMATS, detect, read, read_with_report

# arrival_s, context, output, session, turn, think_s
EXPECTED = {
    "mooncake": ([0, 0, 3], [600, 700, 80], [5, 6, 7], [-1] * 3, [0] * 3, [0] * 3),
    # chat 11's parent 3 is outside the file; think = gap - 25 ms x previous output
    "bailian": (
        [0, 0.5, 7, 10],
        [32, 20, 64, 90],
        [40, 4, 8, 9],
        [10, 3, 10, 10],
        [0, 0, 1, 2],
        [0, 0, 6, 2.8],
    ),
    "azure": ([0, 0.0520001], [4808, 3180], [10, 8], [-1] * 2, [0] * 2, [0] * 2),
    # think = gap - elapsed
    "burstgpt": ([0, 2.5, 10], [900, 40, 1100], [120, 11, 7], [0, -1, 0], [0, 0, 1], [0, 0, 6]),
    "vidur": ([0, 0.125], [591, 547], [140, 248], [-1] * 2, [0] * 2, [0] * 2),
    "csv": ([0, 1.25], [10, 12], [5, 6], [3, 3], [0, 1], [0, 1]),
    "jsonl": ([0, 1.25], [10, 12], [5, 6], [-1] * 2, [0] * 2, [0] * 2),
}


def columns(trace: Trace) -> tuple[list[float], ...]:
    names = ("arrival_s", "context_tokens", "output_tokens", "session", "turn", "think_s")
    return tuple(getattr(trace, name).tolist() for name in names)


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", EXPECTED)
def test_every_column_is_as_worked_out(tmp_path: Path, name: str, packing: str) -> None:
    path = write_example(tmp_path, name, packing)
    trace = read(path)
    for got, wanted in zip(columns(trace), EXPECTED[name], strict=True):
        assert got == pytest.approx(wanted, abs=1e-12)
    assert trace.arrivals_known
    assert trace.name == path.name.split(".")[0]
    assert detect(path).name == name
    assert_same(trace, read(path, format=name))


@pytest.mark.parametrize("name", FILES)
def test_the_example_in_the_listing_is_of_its_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / "example"
    path.write_text(FORMATS[name].example)
    assert detect(path).name == name
    assert len(read(path)) == 1


def test_prefix_blocks(tmp_path: Path) -> None:
    mooncake = read(write_example(tmp_path, "mooncake"))
    assert blocks_of(mooncake) == [[0, 1], [0, 2], []]
    assert mooncake.prefix is not None
    assert mooncake.prefix.block_tokens == 512
    bailian = read(write_example(tmp_path, "bailian"))
    assert bailian.prefix is not None
    assert bailian.prefix.block_tokens == 16


def test_failed_requests_of_burstgpt_are_dropped_and_counted(tmp_path: Path) -> None:
    _, report = read_with_report(write_example(tmp_path, "burstgpt"))
    assert report.dropped == {"failed requests (0 response tokens)": 1}
    assert report.skipped == 0
    assert report.rows == 3


def test_burstgpt_of_version_1_has_no_sessions(tmp_path: Path) -> None:
    path = tmp_path / "v1.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n"
    )
    trace = read(path)
    assert columns(trace)[3] == [-1]


def offsets_of(trace: Trace, session: int) -> list[float]:
    at = trace.arrival_s[trace.session == session]
    return (at - at[0]).tolist()


def test_threads_of_the_slim_session_csv_follow_the_call_that_launched_them(tmp_path: Path) -> None:
    trace, report = read_with_report(write_example(tmp_path, "claude-sessions"))
    assert report.dropped == {"aborted calls (0 output tokens)": 1}
    assert not trace.arrivals_known
    mine = trace.session == 7
    # the main call was answered at 6 s: the sub-agent's calls come at 6 and 9, the next main call at 20
    assert offsets_of(trace, 7) == pytest.approx([0, 6, 9, 20])
    assert trace.context_tokens[mine].tolist() == [1000, 200, 250, 1200]
    assert trace.turn[mine].tolist() == [0, 1, 2, 3]
    assert trace.think_s[mine].tolist() == [0, 0, 2, 14]
    assert trace.turn[trace.session == 9].tolist() == [0]


def test_a_weka_sub_agent_begins_its_duration_before_its_mark(tmp_path: Path) -> None:
    trace, report = read_with_report(write_example(tmp_path, "weka"))
    assert report.dropped == {"aborted calls (0 output tokens)": 1}
    assert set(trace.session.tolist()) == {42}
    assert offsets_of(trace, 42) == pytest.approx([0, 10, 14.5, 50])
    assert trace.context_tokens.tolist() == [1000, 300, 400, 1500]
    assert trace.turn.tolist() == [0, 1, 2, 3]
    assert trace.think_s.tolist() == [0, 0, 1.5, 9]
    assert blocks_of(trace) == [[0, 1], [3], [3, 4], [0, 1, 2]]


def test_a_folder_of_weka_sessions_is_one_trace_whose_local_blocks_do_not_meet(tmp_path: Path) -> None:
    for number in (42, 43):
        (tmp_path / f"trace_{number}.json").write_text(json.dumps(WEKA | {"id": f"trace_{number}"}))
    (tmp_path / "README.md").write_text("not a session")
    trace, report = read_with_report(tmp_path)
    assert report.files == 2
    assert sorted(set(trace.session.tolist())) == [42, 43]
    blocks = blocks_of(trace)
    assert blocks is not None
    of = {s: {i for row in np.flatnonzero(trace.session == s) for i in blocks[row]} for s in (42, 43)}
    assert not of[42] & of[43]
    assert offsets_of(trace, 42) == pytest.approx(offsets_of(trace, 43))


def test_global_weka_blocks_are_shared(tmp_path: Path) -> None:
    for number in (1, 2):
        document = WEKA | {"id": f"trace_{number}", "hash_id_scope": "global"}
        (tmp_path / f"trace_{number}.json").write_text(json.dumps(document))
    trace = read(tmp_path)
    assert trace.prefix is not None
    assert len(set(trace.prefix.ids.tolist())) == 5


def test_one_weka_session_a_line_reads_like_a_folder(tmp_path: Path) -> None:
    documents = [WEKA | {"id": f"trace_{n}"} for n in (42, 43)]
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps(d) + "\n" for d in documents))
    folder = tmp_path / "folder"
    folder.mkdir()
    for d in documents:
        (folder / f"{d['id']}.json").write_text(json.dumps(d, indent=1))
    a, b = read(lines), read(folder)
    np.testing.assert_allclose(a.arrival_s, b.arrival_s)
    np.testing.assert_array_equal(a.context_tokens, b.context_tokens)
    assert blocks_of(a) == blocks_of(b)


def test_a_column_map_reads_any_file(tmp_path: Path) -> None:
    table = {"prompt_len": [10, 12], "gen": [5, 6], "ts": [0.25, 1.5], "who": ["x", "y"]}
    mapping = {"context_tokens": "prompt_len", "output_tokens": "gen", "arrival_s": "ts", "session": "who"}
    frame = pl.DataFrame(table)
    frame.write_csv(tmp_path / "t.csv")
    frame.write_ndjson(tmp_path / "t.jsonl")
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_csv(tmp_path / "semicolons.csv", separator=";")
    for name in ("t.csv", "t.jsonl", "t.parquet", "semicolons.csv"):
        trace = read(tmp_path / name, columns=mapping)
        assert columns(trace)[:4] == ([0.0, 1.25], [10, 12], [5, 6], [0, 1]), name


def test_usual_names_are_guessed_and_said(tmp_path: Path) -> None:
    path = write_example(tmp_path, "jsonl")
    _, report = read_with_report(path)
    assert report.notes == ("columns taken as context_tokens=prompt_tokens,output_tokens=completion_tokens",)


@pytest.mark.parametrize(
    ("target", "factor"), [("arrival_s", 1), ("arrival_ms", 1e3), ("arrival_us", 1e6), ("arrival_ns", 1e9)]
)
def test_times_carry_their_unit(tmp_path: Path, target: str, factor: float) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"when,context_tokens,output_tokens\n{2 * factor:.0f},1,1\n{5 * factor:.0f},1,1\n")
    trace = read(path, columns={target: "when"})
    assert trace.arrival_s.tolist() == [0, 3]


def test_wall_clock_times_keep_their_tenth_of_a_microsecond(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "at,context_tokens,output_tokens\n"
        "2024-05-10 00:00:00.0000001+00:00,1,1\n"
        "2024-05-10 02:00:00.5000003+02:00,1,1\n"
    )
    trace = read(path, columns={"arrival_time": "at"})
    assert trace.arrival_s[1] == pytest.approx(0.5000002, abs=1e-12)


def test_without_arrivals_they_are_drawn_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("context_tokens,output_tokens\n" + "".join(f"{i},10\n" for i in range(1, 200)))
    trace, report = read_with_report(path, seed=3)
    assert trace.context_tokens.tolist() == list(range(1, 200))
    assert not trace.arrivals_known
    assert trace.arrival_s[-1] > 0
    assert report.notes == ("arrivals are not recorded, drawn with seed 3",)
    assert read(path, seed=4).arrival_s[-1] != trace.arrival_s[-1]
    assert len(read(path, rate_per_s=10.0)) / read(path, rate_per_s=10.0).arrival_s[-1] == pytest.approx(
        10, rel=0.1
    )


def test_sessions_without_arrivals_follow_turn_and_think_time(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "context_tokens,output_tokens,session,turn,think_s\n10,40,a,1,5\n10,80,a,0,0\n10,40,b,0,0\n"
    )
    trace = read(path)
    mine = trace.session == 0
    assert trace.turn[mine].tolist() == [0, 1]
    # turn 1 comes 80 x 25 ms + 5 s after turn 0
    assert np.diff(trace.arrival_s[mine]) == pytest.approx([7.0])


def test_arrivals_out_of_order_are_sorted_stably_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [(3000, 1), (1000, 2), (3000, 3), (1000, 4)]
    path.write_text(
        "".join(
            json.dumps({"timestamp": t, "input_length": c, "output_length": 9, "hash_ids": [c]}) + "\n"
            for t, c in rows
        )
    )
    trace, report = read_with_report(path)
    assert trace.context_tokens.tolist() == [2, 4, 1, 3]
    assert blocks_of(trace) == [[2], [4], [1], [3]]
    assert report.notes == ("2 arrivals were earlier than the line before, sorted",)


def test_unsigned_block_hashes_keep_their_equality(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    big = 2**64 - 1
    line = json.dumps({"timestamp": 0, "input_length": 9, "output_length": 9, "hash_ids": [big, 1, big]})
    path.write_text(line + "\n")
    assert blocks_of(read(path)) == [[-1, 1, -1]]


def test_source_says_how_the_file_was_read(tmp_path: Path) -> None:
    trace = read(write_example(tmp_path, "burstgpt"))
    assert trace.source == "bg.csv: burstgpt; 3 requests; 1 dropped: failed requests (0 response tokens)"


def test_a_servegen_pool_reads_as_a_day(tmp_path: Path) -> None:
    write_pool(tmp_path)
    by_folder = read(tmp_path)
    assert by_folder.arrival_s[-1] <= 86_400
    for name in ("toy_clients_arrival.csv", "toy_clients_lengths_quantiles.csv"):
        assert detect(tmp_path / name).name == "servegen"
        np.testing.assert_array_equal(read(tmp_path / name).context_tokens, by_folder.context_tokens)
    assert "seed 0" in by_folder.source
    assert traces.read(tmp_path, seed=1).arrival_s[5] != by_folder.arrival_s[5]

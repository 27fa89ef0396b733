"""ForwardPassMetrics: columns, alignment of the ranks, prefill pairs, what is dropped and said."""

from __future__ import annotations

import gzip
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from reader_cases import dropped, fpm, one, write

from equipoise.calibrate.readers import detect
from equipoise.calibrate.readers.align import counter_offsets, windows
from equipoise.calibrate.records import Flag
from equipoise.errors import CalibrationError


def test_a_recorder_line_becomes_a_row(tmp_path: Path) -> None:
    path = write(
        tmp_path / "fpm.jsonl", "".join(fpm(c, r, batch=4 + r, at_s=c * 0.03) for c in (5, 6) for r in (0, 1))
    )
    assert detect(path) == "fpm"
    records = one(path)
    assert records.format == "fpm"
    assert records.step.tolist() == [5, 5, 6, 6]
    assert records.rank.tolist() == [0, 1, 0, 1]
    assert records.batch.tolist() == [4, 5, 4, 5]
    assert records.query_tokens.tolist() == [4, 5, 4, 5]
    assert records.context_tokens.tolist() == [8000] * 4
    assert records.context_variance.tolist() == [100.0] * 4
    assert records.time_s.tolist() == [0.03] * 4
    assert records.line.tolist() == [1, 2, 3, 4]
    assert records.flags.tolist() == [Flag.FIRST, Flag.FIRST, 0, 0]
    assert records.time_is == "step"
    assert any("in lockstep" in n for n in records.notes)
    assert any("wall_time" in n for n in records.notes)
    assert records.where(2) == f"{path}:3"


@pytest.mark.parametrize("pack", [lambda b: b, gzip.compress, zstandard.ZstdCompressor().compress])
def test_raw_and_recorded_plain_and_packed_read_the_same(tmp_path: Path, pack: object) -> None:
    rows = [(c, r, c * 0.03 + r * 1e-4) for c in range(30) for r in range(3)]
    raw, recorded = tmp_path / "raw", tmp_path / "recorded"
    raw.write_bytes(pack("".join(fpm(c, r) for c, r, _ in rows).encode()))  # type: ignore[operator]
    recorded.write_bytes(pack("".join(fpm(c, r, at_s=t) for c, r, t in rows).encode()))  # type: ignore[operator]
    a, b = one(raw), one(recorded)
    for name in ("step", "rank", "batch", "context_tokens", "time_s", "flags", "line"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert np.isnan(a.clock_s).all()
    assert not np.isnan(b.clock_s).any()


def test_workers_are_instances(tmp_path: Path) -> None:
    text = "".join(fpm(c, 0, worker=w, batch=b, at_s=c) for c in range(5) for w, b in (("a", 1), ("b", 2)))
    records = one(write(tmp_path / "f", text))
    assert records.instance.tolist() == [0] * 5 + [1] * 5
    assert records.batch.tolist() == [1] * 5 + [2] * 5
    assert records.labels["workers"] == {"0": "a", "1": "b"}


def test_one_file_a_rank_joins_into_one_table(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"r{r}", "".join(fpm(c, r, at_s=c * 0.03) for c in range(4))) for r in range(3)]
    records = one(paths)
    assert records.step.tolist() == [c for c in range(4) for _ in range(3)]
    assert records.rank.tolist() == [0, 1, 2] * 4
    assert len(records.step_starts()) == 5


def _scrambled(offsets: list[int], skip: float, jitter_s: float, seed: int = 0) -> str:
    """Lines of ranks in lockstep whose counters began apart, with lost lines and shuffled receipt."""
    rng = random.Random(seed)
    lines = []
    for c in range(200):
        for r, ahead in enumerate(offsets):
            if rng.random() >= skip:
                at = c * 0.03 + rng.random() * jitter_s
                # the batch names the true step, which the reader cannot know
                lines.append((at, fpm(c + ahead, r, batch=c + 1, at_s=at)))
    return "".join(line for _, line in sorted(lines))


def test_counters_a_fixed_distance_apart_are_aligned(tmp_path: Path) -> None:
    records = one(write(tmp_path / "f", _scrambled([0, 17, -4], skip=0.02, jitter_s=0.002)))
    starts = records.step_starts()
    for begin, end in pairwise(starts):
        assert len(set(records.batch[begin:end].tolist())) == 1
    assert any("fixed distance" in n for n in records.notes)


def test_counters_out_of_lockstep_are_aligned_on_the_clock(tmp_path: Path) -> None:
    """An idle rank does not count: its counter falls behind by more and more."""
    rng = random.Random(3)
    lines, own = [], [0, 0, 0]
    for c in range(300):
        for r in range(3):
            if r and rng.random() < 0.3:
                continue
            own[r] += 1
            lines.append(fpm(own[r], r, batch=c + 1, at_s=c * 0.03 + rng.random() * 0.003))
    records = one(write(tmp_path / "f", "".join(lines)))
    assert any("time of receipt" in n for n in records.notes)
    starts = records.step_starts()
    assert len(starts) == 301
    for begin, end in pairwise(starts):
        assert len(set(records.batch[begin:end].tolist())) == 1
    after_idle = (records.flags & Flag.FIRST) > 0
    assert after_idle[records.rank == 0].sum() == 1
    assert after_idle[records.rank == 1].sum() > 30


@given(
    st.integers(2, 6),
    st.integers(3, 40),
    st.integers(0, 2**32),
)
def test_windows_find_the_steps_whatever_the_order(ranks: int, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    step = np.repeat(np.arange(steps), ranks)
    rank = np.tile(np.arange(ranks), steps)
    keep = rng.random(len(step)) < 0.7
    position = step + rng.random(len(step)) * 0.3
    shuffle = rng.permutation(np.flatnonzero(keep))
    found = windows(position[shuffle], rank[shuffle], 0.5)
    true = step[shuffle]
    assert len(set(zip(found.tolist(), true.tolist(), strict=True))) == len(set(true.tolist()))


def test_counter_offsets_refuse_what_drifts() -> None:
    clock = np.arange(100.0)
    rank = np.tile([0, 1], 50)
    counter = np.repeat(np.arange(50), 2)
    assert counter_offsets(counter, clock, rank) == {0: 0, 1: 0}
    drifting = np.where(rank == 1, counter // 2, counter)
    assert counter_offsets(drifting, clock, rank) is None


def test_raw_lines_with_counters_apart_follow_the_order_of_lines(tmp_path: Path) -> None:
    text = "".join(fpm(c if r == 0 else c + 1000, r, batch=c + 1) for c in range(20) for r in (0, 1))
    records = one(write(tmp_path / "f", text))
    assert records.step.tolist() == [c for c in range(20) for _ in (0, 1)]
    assert any("order of the lines" in n for n in records.notes)


def _pairs(prompts: list[tuple[int, int]]) -> float:
    """The definition: every new token attends to what came before it and to itself."""
    return float(sum(before + i + 1 for tokens, before in prompts for i in range(tokens)))


@given(st.integers(1, 500), st.integers(0, 2000))
def test_pairs_of_one_prompt(tmp_path_factory: pytest.TempPathFactory, tokens: int, before: int) -> None:
    line = fpm(
        2,
        batch=0,
        context=0,
        num_prefill_requests=1,
        sum_prefill_tokens=tokens,
        sum_prefill_kv_tokens=before,
    )
    other = fpm(1, num_prefill_requests=1, sum_prefill_tokens=7, sum_prefill_kv_tokens=0)
    records = one(write(tmp_path_factory.mktemp("p") / "f", other + line))
    assert records.prefill_pairs[1] == _pairs([(tokens, before)])
    assert records.flags[1] & Flag.PREFILL
    assert records.flags[0] & Flag.MIXED


@given(st.lists(st.integers(1, 300), min_size=2, max_size=6))
def test_pairs_of_whole_prompts(tmp_path_factory: pytest.TempPathFactory, lengths: list[int]) -> None:
    line = fpm(
        2,
        num_prefill_requests=len(lengths),
        sum_prefill_tokens=sum(lengths),
        var_prefill_length=float(np.var(lengths)),
    )
    records = one(write(tmp_path_factory.mktemp("p") / "f", fpm(1) + line))
    assert records.prefill_pairs[1] == pytest.approx(_pairs([(n, 0) for n in lengths]), rel=1e-9)
    assert records.prefill_pairs[0] == 0


def test_pairs_that_the_sums_do_not_tell_are_unknown(tmp_path: Path) -> None:
    line = fpm(1, num_prefill_requests=2, sum_prefill_tokens=10, sum_prefill_kv_tokens=5)
    assert np.isnan(one(write(tmp_path / "f", line)).prefill_pairs[0])


def test_new_tokens_counted_among_those_read_are_taken_off(tmp_path: Path) -> None:
    lines = [
        fpm(c, num_prefill_requests=1, sum_prefill_tokens=t, sum_prefill_kv_tokens=t + before)
        for c, (t, before) in enumerate([(100, 0), (50, 30), (80, 0)])
    ]
    records = one(write(tmp_path / "f", "".join(lines)))
    assert records.prefill_pairs.tolist() == [_pairs([(100, 0)]), _pairs([(50, 30)]), _pairs([(80, 0)])]
    assert any("taken off" in n for n in records.notes)


def test_variances_that_are_never_written_are_unknown(tmp_path: Path) -> None:
    text = fpm(1, var_decode_kv_tokens=0.0) + fpm(2, batch=1, var_decode_kv_tokens=0.0)
    records = one(write(tmp_path / "f", text))
    assert np.isnan(records.context_variance[0])
    assert records.context_variance[1] == 0
    assert any("unknown" in n for n in records.notes)


def test_a_heartbeat_makes_the_next_step_a_first_one(tmp_path: Path) -> None:
    text = fpm(1) + fpm(2) + fpm(3, batch=0, context=0, wall=0.0) + fpm(4) + fpm(5)
    records = one(write(tmp_path / "f", text))
    assert records.step.tolist() == [1, 2, 4, 5]
    assert records.flags.tolist() == [Flag.FIRST, 0, Flag.FIRST, 0]
    assert dropped(records) == {"idle heartbeat": 1}


def test_times_that_are_none_are_dropped_and_counted(tmp_path: Path) -> None:
    bad = fpm(3).replace('"wall_time": 0.03', '"wall_time": NaN')
    text = fpm(1) + fpm(2, wall=-0.1) + bad + fpm(4, wall=0.0) + fpm(5, wall=-1.0) + fpm(6)
    path = write(tmp_path / "f", text)
    records = one(path)
    assert records.step.tolist() == [1, 6]
    assert dropped(records) == {"negative time": 2, "the time is not a number": 1, "the time is zero": 1}
    assert {d.first for d in records.dropped} == {f"{path}:2", f"{path}:3", f"{path}:4"}


def test_a_step_twice_keeps_the_first(tmp_path: Path) -> None:
    path = write(tmp_path / "f", fpm(1) + fpm(2, batch=5) + fpm(2, batch=9) + fpm(3))
    records = one(path)
    assert records.batch.tolist() == [8, 5, 8]
    (drop,) = records.dropped
    assert (drop.rows, drop.first) == (1, f"{path}:3")
    assert "twice" in drop.reason


def test_a_clock_that_jumps_back_is_counted(tmp_path: Path) -> None:
    ats = [0.0, 0.03, 0.06, -3600.0, -3599.97, -3599.94]
    path = write(tmp_path / "f", "".join(fpm(c, at_s=at) for c, at in enumerate(ats)))
    records = one(path)
    assert records.step.tolist() == list(range(6))
    (note,) = [n for n in records.notes if "backwards" in n]
    assert "once" in note
    assert f"{path}:4" in note
    assert "3.6e+03 s" in note


def test_a_rank_that_vanishes_is_named(tmp_path: Path) -> None:
    text = "".join(fpm(c, r, at_s=c * 0.03) for c in range(50) for r in (0, 1, 2) if not (r == 1 and c >= 20))
    records = one(write(tmp_path / "f", text))
    (note,) = [n for n in records.notes if "lost" in n]
    assert note.startswith("Rank 1 has no rows from step 20 on, the last 30 of 50 steps")
    assert len(records) == 50 * 2 + 20


def test_ranks_with_times_of_their_own(tmp_path: Path) -> None:
    text = "".join(fpm(c, r, wall=0.02 + 0.01 * r, at_s=c * 0.05) for c in range(20) for r in (0, 1))
    records = one(write(tmp_path / "f", text))
    assert records.time_is == "rank"


def test_records_without_contexts_are_refused_with_the_fix(tmp_path: Path) -> None:
    path = write(tmp_path / "f", fpm(1, context=0) + fpm(2, context=0))
    with pytest.raises(CalibrationError, match=r"f:1: a log without context lengths: .*--without-context"):
        one(path)
    records = one(path, without_context=True)
    assert records.context_tokens.tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"metrics": 3}\n', "no record"),
        ("[1, 2]\n", "no record"),
        (fpm(7).replace('"version": 1', '"version": 2'), "version 2"),
        (fpm(7, rank=-1), "dp_rank = -1"),
        (fpm(7, rank=10**6), "dp_rank = 1000000"),
        (fpm(10**40), "no record"),
        (fpm(2**60), "absurd"),
        (fpm(-(2**63)), "absurd"),
        (fpm(7)[:60] + "\n", "no record"),
        ("\xff\xfe\n", "no record"),
    ],
)
def test_a_bad_line_is_named_or_skipped(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes((fpm(1) + "\n").encode() + line.encode("latin-1") + fpm(3).encode())
    with pytest.raises(CalibrationError, match=rf"f\.jsonl:3: .*{what}.*--skip-bad"):
        one(path)
    records = one(path, skip_bad=1)
    assert records.step.tolist() == [1, 3]
    assert records.line.tolist() == [1, 4]
    assert records.dropped[0].rows == 1
    assert records.dropped[0].first == f"{path}:3"
    assert any(f"{path}:3: " in n for n in records.notes)


def test_ids_that_are_no_workers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "f", "".join(fpm(c, worker=f"w{c}") for c in range(5000)))
    with pytest.raises(CalibrationError, match="more than 4,096 workers"):
        one(path)
